"""Op: what is computed, never how."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from math import prod

from haotuner.errors import UsageError
from haotuner.ops.dtypes import DTYPE_ALIASES, DTYPE_BYTES, DTYPES
from haotuner.ops.epilogue import STEPS, operands_of
from haotuner.ops.groups import GROUPS
from haotuner.ops.index import kind_in, kind_named, kind_names
from haotuner.ops.kind import Operand, OpKind, Option
from haotuner.spec.limits import MAX_EXTRA
from haotuner.spec.shape import AXIS_LIMIT, Shape

_FIELDS = ("dtype", "epilogue")  # of every spec, beside axes and the options of a kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator: a kind, the extents known when tuning (``static``), and how data is stored.

    Axes that are not static are dynamic: known only when a request arrives. ``options``: what of the kind's options differs
    from its default, such as ``(("weight", "kn"),)``.
    """

    kind: str
    static: tuple[tuple[str, int], ...]
    dtype: str = "fp32"
    options: tuple[tuple[str, str], ...] = ()
    epilogue: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kind = _kind(self.kind)
        inputs = [axis for axis, _ in self.static]
        if len(set(inputs)) != len(inputs):
            raise UsageError(f"op {self.kind}: an axis is given twice: {', '.join(inputs)}")
        for axis, extent in self.static:
            if axis not in kind.axes:
                raise UsageError(f"op {self.kind} has no axis {axis!r}; its axes are {', '.join(kind.axes)}")
            if not 1 <= extent <= AXIS_LIMIT:
                raise UsageError(f"op {self.kind}: {axis}={extent} must be in 1..2^31-1")
        if self.dtype not in DTYPE_BYTES:
            raise UsageError(f"op {self.kind}: unknown dtype {self.dtype!r}; known: {', '.join(DTYPE_BYTES)}")
        self._check_options(kind)
        for step in self.epilogue:
            if step not in STEPS:
                raise UsageError(f"op {self.kind}: unknown epilogue {step!r}; known: {', '.join(STEPS)}")
        if len(set(self.epilogue)) != len(self.epilogue):
            raise UsageError(f"op {self.kind}: an epilogue step is given twice: {'+'.join(self.epilogue)}")
        read = [name for name, _ in operands_of(self.epilogue)]
        if len(read) > MAX_EXTRA:
            raise UsageError(
                f"op {self.kind}: an epilogue reads {MAX_EXTRA} operands at most, not {len(read)}: {', '.join(read)}"
            )
        own = {operand.name for operand in kind.operands} | {v for option in kind.options.values() for v in option.choices}
        taken = own & {*self.epilogue, *read}
        if taken:
            raise UsageError(
                f"op {self.kind}: it has an operand or an option {', '.join(sorted(taken))} of its own; "
                "leave out that epilogue step"
            )
        why = kind.objection(dict(self.static), self.all_options()) if kind.objection is not None else ""
        if why:
            raise UsageError(f"op {self.kind}: {why}")
        ordered = tuple((axis, extent) for axis in kind.axes for a, extent in self.static if a == axis)
        object.__setattr__(self, "static", ordered)

    def _check_options(self, kind: OpKind) -> None:
        known, inputs = kind.options, dict(self.options)
        if len(inputs) != len(self.options):
            raise UsageError(f"op {self.kind}: an option is given twice: {', '.join(name for name, _ in self.options)}")
        for name, value in self.options:
            if name not in known:
                raise UsageError(f"op {self.kind} has no option {name!r}; its options are {', '.join(known) or 'none'}")
            if not known[name].allows(value):
                raise UsageError(f"op {self.kind}: {name}={value!r}; allowed are {known[name].allowed()}")
        if inputs.get("in", "own") != "own" and self.dtype != "int8":
            raise UsageError(f"op {self.kind}: in={inputs['in']} is for ops in int8, not in {self.dtype}; leave it out")
        option_values = tuple(
            (name, inputs[name]) for name, option in known.items() if inputs.get(name, option.default) != option.default
        )
        object.__setattr__(self, "options", option_values)

    @property
    def meaning(self) -> OpKind:
        """The kind: axes, operands, reference and tolerance."""
        return _variant(self.kind, self.options)

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes, in the order of the kind."""
        return tuple(self.meaning.axes)

    @property
    def every_axis(self) -> tuple[str, ...]:
        """All axes, then those whose extent follows from theirs."""
        return (*self.axes, *self.meaning.derived)

    @property
    def dynamic(self) -> tuple[str, ...]:
        """The axes whose extent is known only at run time."""
        known = {axis for axis, _ in self.static}
        return tuple(axis for axis in self.axes if axis not in known)

    @property
    def plain(self) -> bool:
        """True if it is fp32 throughout: what it reads, its sums and its result."""
        return self.dtype == "fp32" and self.dtype_of(self.meaning.output) == "fp32"

    @property
    def epilogue_operands(self) -> dict[str, tuple[str, ...]]:
        """Operands of the epilogue beside the result, in the order of a call: name to axes."""
        whole = self.meaning.output.axes(self.all_options())
        channel = (*self.meaning.ends_of_groups, self.meaning.channel_axis)
        return {name: channel if extent == "channel" else whole for name, extent in operands_of(self.epilogue)}

    @property
    def channel_operands(self) -> tuple[str, ...]:
        """Of these what has one value a channel (and a group, where rows come in groups), and is bound once."""
        return tuple(name for name, extent in operands_of(self.epilogue) if extent == "channel")

    @property
    def parallel(self) -> tuple[str, ...]:
        """The axes of the output that may be cut: no reduction runs over them. In the output's order."""
        kind = self.meaning
        return tuple(a for a in kind.output.axes(self.all_options()) if kind.axes.get(a, "spatial") == "spatial")

    def option(self, name: str) -> str:
        """Value of one option of the kind, the default where nothing else was asked."""
        return dict(self.options).get(name, _kind(self.kind).options[name].default)

    def all_options(self) -> dict[str, str]:
        """Every option of the kind with its value."""
        inputs = dict(self.options)
        return {name: inputs.get(name, option.default) for name, option in _kind(self.kind).options.items()}

    @property
    def name(self) -> str:
        """Canonical name; appends only what differs from the defaults, and parses back."""
        known = () if self.kind in GROUPS else self.static  # a group's static extents are its definition's
        words = [self.kind, *(f"{axis}{extent}" for axis, extent in known)]
        if self.dtype != "fp32":
            words.append(self.dtype)
        options = _kind(self.kind).options
        words += [_word_of(name, options[name], value) for name, value in self.options]
        return "_".join([*words, *self.epilogue])

    def __getitem__(self, axis: str) -> int:
        """Extent of a static axis."""
        return dict(self.static)[axis]

    def extents(self, shape: Shape) -> dict[str, int]:
        """Every axis with its extent for one run-time shape, those that follow from others among them."""
        result = dict(self.static)
        for axis in self.dynamic:
            result[axis] = shape[axis]
        return self.meaning.complete(result, self.all_options()) if self.meaning.derived else result

    def dtype_of(self, operand: Operand) -> str:
        """Element type of one operand."""
        if operand.role == "output" and (requested := dict(self.options).get("out")):
            return requested
        if (
            operand.role == "input"
            and not operand.own
            and operand.dtype is None
            and (requested := dict(self.options).get("in"))
        ):
            return requested
        return operand.dtype or DTYPES[self.dtype].of("constant" if operand.own else operand.role)

    @property
    def sums(self) -> str:
        """Element type that sums are kept in."""
        return DTYPES[self.dtype].sums

    def extra_dtype(self, name: str) -> str:
        """Element type of what the epilogue reads: of a channel the op's, of a tensor like the result the result's.

        Next to integers both are fp32.
        """
        result = self.dtype if name in self.channel_operands else self.dtype_of(self.meaning.output)
        return result if DTYPES[result].eps else "fp32"

    def operand_shape(self, operand: Operand, shape: Shape) -> tuple[int, ...]:
        """Dimensions of one operand as it is stored, for one run-time shape."""
        return operand.shape(self.extents(shape), dict(self.options))

    def flops(self, shape: Shape) -> int:
        """Floating-point operations of one call."""
        return self.meaning.flops(self.extents(shape))

    def least_bytes(self, shape: Shape) -> int:
        """Bytes moved when every operand is read once and the result written once."""
        extents, options = self.extents(shape), dict(self.options)
        extra = sum(
            prod(extents[axis] for axis in axes) * DTYPE_BYTES[self.extra_dtype(name)]
            for name, axes in self.epilogue_operands.items()
        )
        return extra + sum(prod(o.shape(extents, options)) * DTYPE_BYTES[self.dtype_of(o)] for o in self.meaning.operands)

    @staticmethod
    def parse(text: str) -> Op:
        """Op from a spec (``dense:n=2304,k=768,dtype=fp16``) or from a name (``dense_n2304_k768_fp16``)."""
        return _from_spec(text) if ":" in text else _from_name(text)


@cache
def _variant(kind: str, options: tuple[tuple[str, str], ...]) -> OpKind:
    """The kind with these options, those left out at their defaults."""
    general = _kind(kind)
    if general.variant is None:
        return general
    return general.variant({name: option.default for name, option in general.options.items()} | dict(options))


def _worded(value: str) -> str:
    """An option as a name has it, which is also a C identifier: ``1.0.1.0`` is ``1x0x1x0``, ``1e-6`` is ``1em6``."""
    return value.replace(".", "x").replace("-", "m").replace("_", "")


def _word_of(name: str, option: Option, value: str) -> str:
    """An option as a name has it: a choice alone, where that says what it is, else behind the option's word."""
    return _worded(value) if option.choices and not option.prefixed else f"{name}{_worded(value)}"


def _kind(name: str) -> OpKind:
    result = kind_named(name)
    if result is not None:
        return result
    if name == "group" or name.startswith("group_"):
        raise UsageError(
            f"op {name!r}: a group is known by its file or by the pack that holds it; name --op group:FILE, or open the pack"
        )
    names = kind_names()
    near = difflib.get_close_matches(name, names, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"unknown op kind {name!r}; {meant}known kinds: {', '.join(names)}")


def _from_spec(text: str) -> Op:
    kind, _, rest = text.partition(":")
    options = _kind(kind.strip()).options
    static: list[tuple[str, int]] = []
    fields: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise UsageError(f"op {text!r}: {part!r} is not KEY=VALUE; write for example dense:n=2304,k=768")
        if key in _FIELDS or key in options:
            if key in fields:
                raise UsageError(f"op {text!r}: {key} is given twice")
            fields[key] = DTYPE_ALIASES.get(value, value) if key == "dtype" else value
        elif re.fullmatch(r"[0-9]{1,10}", value):
            static.append((key, int(value)))
        else:
            raise UsageError(f"op {text!r}: {key}={value!r} is not a whole number")
    return Op(
        kind=kind.strip(),
        static=tuple(static),
        dtype=fields.get("dtype", "fp32"),
        options=tuple((key, value) for key, value in fields.items() if key in options),
        epilogue=tuple(filter(None, fields.get("epilogue", "").split("+"))),
    )


def _from_name(text: str) -> Op:
    """Kinds may have underscores in their names: the longest one that the text begins with is meant."""
    text = text.strip()
    if text in GROUPS:
        return Op(kind=text, static=tuple(GROUPS[text].extents.items()))
    kind = kind_in(text) or text.partition("_")[0]
    options = _kind(kind).options
    chosen = {_word_of(name, option, value): (name, value) for name, option in options.items() for value in option.choices}
    static: list[tuple[str, int]] = []
    dtypes: list[str] = []
    result: list[tuple[str, str]] = []
    epilogue: list[str] = []
    for word in text[len(kind) + 1 :].split("_") if len(text) > len(kind) else ():
        number = re.fullmatch(r"([a-z]+)([0-9]{1,10}(?:x[0-9]{1,10})*)", word)
        if word in DTYPE_BYTES:
            dtypes.append(word)
        elif word in chosen:
            result.append(chosen[word])
        elif word in STEPS:
            epilogue.append(word)
        elif number and number[1] in options:
            result.append((number[1], number[2].replace("x", ".")))
        elif number and number[2].isdigit():
            static.append((number[1], int(number[2])))
        else:
            raise UsageError(f"op {text!r}: cannot read {word!r}; write for example dense:n=2304,k=768 or dense_n2304_k768")
    for words in (dtypes, [value for _, value in result]):
        if len(words) > 1 and (words is dtypes or len({name for name, _ in result}) < len(result)):
            raise UsageError(f"op {text!r}: names {' and '.join(words)}, only one can hold")
    return Op(kind=kind, static=tuple(static), dtype=(*dtypes, "fp32")[0], options=tuple(result), epilogue=tuple(epilogue))
