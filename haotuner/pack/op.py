"""PackOp: one op of a manifest, read strictly. Every number that an index follows is checked here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from haotuner.ops.arithmetic import arithmetic_of
from haotuner.ops.convolution import is_convolution
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.groups import LONGEST, digest_of
from haotuner.ops.kind import WRITTEN
from haotuner.pack.facts import OP, check_facts
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import MAX_AXES, MAX_DYNAMIC, MAX_OPERANDS, MAX_THREADS
from haotuner.spec.op import Op

ROLES = ("input", "constant", "beside", "output")
MOST_AXES = 2 * MAX_AXES  # of a manifest's op: the library has no need of all of them
MOST_KERNELS = 255  # uint8 in the library's tables
_WORD = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LAYERS = ("dense", "grouped")  # kinds that bind a weight and a bias


@dataclass(frozen=True, slots=True, kw_only=True)
class PackAxis:
    """An axis: its extent, or None and its tuned range (both ends included)."""

    name: str
    extent: int | None
    first: int = 1
    last: int = 1
    derived: bool = False  # its extent follows from the others'
    formula: str = ""  # how, where the pack says it (ops/arithmetic.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOperand:
    """A tensor that a call takes: the axes that are its dimensions, outermost first, as the caller stores it."""

    name: str
    role: str
    dims: tuple[str, ...]
    dtype: str
    optional: bool = False
    compact: bool = False
    in_place: bool = False  # ``out`` may be this tensor itself
    packed: Mapping[str, int] = field(default_factory=dict)  # how a bound weight is laid out: pw, panels


@dataclass(frozen=True, kw_only=True)  # without slots: `op` is stored beside the fields
class PackOp:
    """One op of a pack. Kernels and thread counts are in the order of the library's tables."""

    name: str
    kind: str
    axes: tuple[PackAxis, ...]
    operands: tuple[PackOperand, ...]  # inputs and constants in the order of a call, the output, then optional ones
    kernels: tuple[str, ...]
    tiles: tuple[Mapping[str, int], ...]  # of each kernel: what it computes at a time, by axis
    threads: tuple[int, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""  # the definition of a kind that a file brought (ops/groups.py)

    @cached_property
    def op(self) -> Op:
        """The operator that the name stands for. UsageError for a kind, or a group, that this process does not know."""
        return Op.parse(self.name)

    def axis(self, name: str) -> PackAxis:
        """One axis; KeyError if there is none of that name."""
        result = next((axis for axis in self.axes if axis.name == name), None)
        if result is None:
            raise KeyError(name)
        return result

    @property
    def dynamic(self) -> tuple[PackAxis, ...]:
        """The axes whose extent comes with each call."""
        return tuple(axis for axis in self.axes if axis.extent is None and not axis.derived)

    @property
    def output(self) -> PackOperand:
        """The operand that is written, of several the last."""
        return next(operand for operand in self.operands if operand.role == "output")

    @property
    def inputs(self) -> tuple[PackOperand, ...]:
        """The operands that are read at every call, in its order."""
        return tuple(operand for operand in self.operands if operand.role not in WRITTEN and not operand.optional)

    @property
    def written(self) -> tuple[PackOperand, ...]:
        """The operands that a call writes, in its order: the output, and others of a group before it."""
        return tuple(operand for operand in self.operands if operand.role in WRITTEN)

    @property
    def output_indices(self) -> tuple[int, ...]:
        """Of a group's op: which of the file's outputs each one is that a call writes; empty of one that was made alone."""
        result = tuple(json.loads(self.group).get("places", ())) if self.group else ()
        return (*result[1:], *result[:1])  # a definition begins with the output, a call ends with it

    @property
    def in_file_order(self) -> tuple[PackOperand, ...]:
        """``written`` as the group's file names them; of an op that was made alone there is one."""
        written, places = self.written, self.output_indices
        return tuple(written[at] for at in sorted(range(len(written)), key=lambda at: places[at])) if places else written

    @property
    def apart(self) -> str:
        """Reason that no other output of a group's file is written with this one; empty where none was asked."""
        return str(json.loads(self.group).get("apart", "")) if self.group else ""

    # What a dense op has beside: extents, layout of the packed weight, tuned range of m, rows of each kernel's tile.

    @property
    def n(self) -> int:
        """Columns of the output."""
        return self.axis("n").extent or 0

    @property
    def k(self) -> int:
        """Columns of the input."""
        return self.axis("k").extent or 0

    @property
    def weight(self) -> str:
        """Layout in which users store the weight: nk or kn."""
        return "".join(self.operands[1].dims)

    @property
    def unpacked_weight(self) -> bool:
        """True if a bound weight stays as its owner stores it, where it lies."""
        return not self.operands[1].packed

    @property
    def pw(self) -> int:
        """Columns of a panel of the packed weight."""
        return self.operands[1].packed["pw"]

    @property
    def panels(self) -> int:
        """Panels of the packed weight."""
        return self.operands[1].packed["panels"]

    @property
    def extra(self) -> tuple[PackOperand, ...]:
        """Operands of the epilogue of an op with a weight, in a call's order: values of a channel, then tensors like y."""
        behind = (
            3 if self.kind == "grouped" else 2 if self.kind == "dense" or is_convolution(self.kind) else len(self.inputs)
        )
        return self.inputs[behind:]

    @property
    def first_m(self) -> int:
        """Fewest rows that were tuned."""
        return self.axis("m").first

    @property
    def last_m(self) -> int:
        """Most rows that were tuned."""
        return self.axis("m").last

    @property
    def tile_rows(self) -> tuple[int, ...]:
        """Rows of each kernel's tile."""
        return tuple(tile["m"] for tile in self.tiles)


def read_op(entry: Any) -> PackOp:
    """An op of schema 2. ValueError, TypeError, KeyError or UsageError says what is wrong."""
    entry = _object(entry, "every op")
    name = text(entry["name"])
    kind = word(entry["kind"])
    axes = tuple(_axis(document) for document in listed(entry["axes"], MOST_AXES))
    names = [axis.name for axis in axes]
    operands = tuple(_operand(document, names) for document in listed(entry["operands"], MAX_OPERANDS))
    op = PackOp(name=name, kind=kind, axes=axes, operands=operands, group=_definition(entry, kind), **_plans(entry, name))
    if len(set(names)) != len(names) or len({o.name for o in operands}) != len(operands):
        raise ValueError(f"op {name!r}: axes and operands must be named once each")
    if not 1 <= len(op.dynamic) <= MAX_DYNAMIC:
        raise ValueError(f"op {name!r} has {len(op.dynamic)} dynamic axes; 1 to {MAX_DYNAMIC} are possible")
    required = [operand for operand in operands if not operand.optional]
    if not required or required[-1].role != "output" or [o.role for o in operands].count("output") != 1:
        raise ValueError(f"op {name!r}: exactly one operand is the output, the last one before those that are optional")
    if required[-len(op.written) :] != list(op.written):
        raise ValueError(f"op {name!r}: what is written comes last")
    if len(op.written) > 1 and len(set(op.output_indices)) != len(op.written):
        raise ValueError(f"op {name!r} writes {len(op.written)} tensors, its definition names {len(set(op.output_indices))}")
    if operands[: len(required)] != tuple(required) or {axis for o in operands for axis in o.dims} != set(names):
        raise ValueError(f"op {name!r}: optional operands come last, and every axis belongs to an operand")
    if not _WORD.fullmatch(name) or not (name == kind or name.startswith(f"{kind}_")):
        raise ValueError(f"op {name!r} is not named after its kind {kind!r}")
    if kind in LAYERS:
        _check_layer(op)
    return op


def read_op_1(entry: Any) -> PackOp:
    """An op of schema 1, which knew dense only: n, k, pw and panels stood beside the name."""
    entry = _object(entry, "every op")
    n, k, pw, panels, first_m, last_m = (whole(entry[key], key) for key in ("n", "k", "pw", "panels", "first_m", "last_m"))
    weight = text(entry["weight"])
    if weight not in ("nk", "kn"):
        raise ValueError(f"weight is {weight!r}, must be nk or kn")
    name = text(entry["name"])
    sizes = {"n": n, "k": k}
    op = PackOp(
        name=name,
        kind="dense",
        axes=(_range("m", first_m, last_m), PackAxis(name="n", extent=n), PackAxis(name="k", extent=k)),
        operands=(
            PackOperand(name="x", role="input", dims=("m", "k"), dtype="fp32"),
            PackOperand(
                name="weight", role="constant", dims=tuple(weight), dtype="fp32", packed={"pw": pw, "panels": panels}
            ),
            PackOperand(name="y", role="output", dims=("m", "n"), dtype="fp32"),
            PackOperand(name="bias", role="constant", dims=("n",), dtype="fp32", optional=True, compact=True),
        ),
        **_plans(entry, name),
    )
    _check_layer(op, sizes)
    return op


def _check_layer(op: PackOp, sizes: Mapping[str, int] | None = None) -> None:
    """The manifest agrees with the op's name: names are what users and C servers find ops by."""
    named = op.op
    if op.kind == "grouped":
        _check_grouped(op, named)
        return
    extents = sizes or {axis.name: axis.extent for axis in op.axes if axis.extent is not None}
    extra = named.epilogue_operands
    want = ["x", "weight", *extra, "y", *([] if named.epilogue or named.sums != "fp32" else ["bias"])]
    if [axis.name for axis in op.axes] != ["m", "n", "k"] or [o.name for o in op.operands] != want:
        raise ValueError(f"op {op.name!r}: it has the axes m, n, k and the operands {', '.join(want)}")
    if op.operands[1].packed and (set(op.operands[1].packed) - {"terms"} != {"pw", "panels"} or op.panels * op.pw < op.n):
        raise ValueError(f"op {op.name!r}: its panels hold fewer than n columns: not possible")
    layer = (named.name, named.kind, dict(named.static), tuple(named.option("weight")))
    if layer != (op.name, "dense", extents, op.operands[1].dims):
        raise ValueError(f"op {op.name!r} says other things than its entry: {extents}, weight={op.weight}")
    dims = {operand.name: operand.dims for operand in op.operands}
    expected = {"x": ("m", "k"), "weight": op.operands[1].dims, **extra, "y": ("m", "n")}
    if dims != expected | ({"bias": ("n",)} if "bias" in want and "bias" not in extra else {}) or not _typed_as(op, named):
        raise ValueError(f"op {op.name!r}: operands of other axes or types than its name says")
    if any("m" not in tile or tile["m"] < 1 for tile in op.tiles):
        raise ValueError(f"op {op.name!r}: a kernel computes no rows")


def _typed_as(op: PackOp, named: Op) -> bool:
    """True if operands have the types that the op's name gives them; values of a channel may be fp32 in any."""
    own = {operand.name: named.dtype_of(operand) for operand in named.meaning.operands}
    own |= {name: named.extra_dtype(name) for name in named.epilogue_operands}
    channel = {operand.name for operand in op.operands if operand.role == "constant"} - {"weight"}
    return all(o.dtype == own.get(o.name, named.dtype) or (o.name in channel and o.dtype == "fp32") for o in op.operands)


def _check_grouped(op: PackOp, named: Op) -> None:
    extents = {axis.name: axis.extent for axis in op.axes if axis.extent is not None}
    weight = ("g", *named.option("weight"))
    dims = {"x": ("m", "k"), "weight": weight, "offsets": ("g",), **named.epilogue_operands, "y": ("m", "n")}
    dims |= {} if named.epilogue else {"bias": ("g", "n")}
    dims_of = {operand.name: operand.dims for operand in op.operands}
    if [axis.name for axis in op.axes] != ["m", "n", "k", "g"] or list(dims_of.items()) != list(dims.items()):
        raise ValueError(f"op {op.name!r}: grouped has the axes m, n, k, g and the operands {', '.join(dims)}")
    if (named.name, named.kind, dict(named.static)) != (op.name, op.kind, extents) or not _typed_as(op, named):
        raise ValueError(f"op {op.name!r} says other things than its entry: {extents}")
    if op.operands[2].dtype != "int32" or not op.unpacked_weight or any(tile.get("m", 0) < 1 for tile in op.tiles):
        raise ValueError(f"op {op.name!r}: offsets are int32, weights are not packed, and kernels compute rows")


def _definition(entry: Mapping[str, Any], kind: str) -> str:
    """The definition of a group; ValueError where it is not the one that the kind's name was made from."""
    result = entry.get("group", "")
    if not isinstance(result, str) or len(result) > LONGEST:
        raise ValueError(f"a group's definition is a text of at most {LONGEST} characters")
    if result and not kind.endswith(f"_{digest_of(result)}"):
        raise ValueError(f"kind {kind!r} was made from another definition")
    return result


def _plans(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    threads = tuple(whole(t, "threads") for t in listed(entry["threads"], MAX_THREADS - 1))
    kernels_ = [_kernel(document) for document in listed(entry["kernels"], MOST_KERNELS)]
    kernels = tuple(kernel for kernel, _ in kernels_)
    if not threads or len(set(threads)) != len(threads) or max(threads) > MAX_THREADS:
        raise ValueError(f"op {name!r}: threads must name each count once, in 1..{MAX_THREADS}")
    if not kernels or len(set(kernels)) != len(kernels):
        raise ValueError(f"op {name!r}: kernels must be named, once each")
    facts = entry.get("facts", {})
    check_facts(facts, OP, f"op {name!r}: facts")
    return {"threads": threads, "kernels": kernels, "tiles": tuple(tile for _, tile in kernels_), "facts": facts}


def _kernel(entry: Any) -> tuple[str, Mapping[str, int]]:
    if isinstance(entry, str):  # schema 1: a dense kernel's name says its tile
        return text(entry), {"m": MicroKernel.parse(text(entry))["mr"]}
    entry = _object(entry, "every kernel")
    return text(entry["name"]), {word(axis): whole(size, axis) for axis, size in _object(entry["tile"], "tile").items()}


def _axis(entry: Any) -> PackAxis:
    entry = _object(entry, "every axis")
    name = word(entry["name"])
    if entry.get("derived") is True:
        return PackAxis(name=name, extent=None, derived=True, formula=_formula(entry.get("is", "")))
    if "extent" in entry:
        return PackAxis(name=name, extent=whole(entry["extent"], name))
    return _range(name, whole(entry["first"], "first"), whole(entry["last"], "last"))


def _formula(message: Any) -> str:
    if message:
        arithmetic_of(text(message))
    return str(message)


def _range(name: str, first: int, last: int) -> PackAxis:
    if first > last:
        raise ValueError(f"axis {name}: first_{name} = {first} is over last_{name} = {last}: not possible")
    return PackAxis(name=name, extent=None, first=first, last=last)


def _operand(entry: Any, axes: Sequence[str]) -> PackOperand:
    entry = _object(entry, "every operand")
    name, role, dtype = word(entry["name"]), text(entry["role"]), text(entry["dtype"])
    dims = tuple(text(axis) for axis in listed(entry["dims"], MAX_AXES))
    if role not in ROLES or dtype not in DTYPES:
        raise ValueError(f"operand {name}: role {role!r} and dtype {dtype!r} must be of {ROLES} and {tuple(DTYPES)}")
    if not dims or len(set(dims)) != len(dims) or not set(dims) <= set(axes):
        raise ValueError(f"operand {name}: its dims {dims} must be axes of the op, once each")
    flags = {key: entry.get(key, False) for key in ("optional", "compact", "in_place")}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise ValueError(f"operand {name}: optional, compact and in_place must be true or false")
    packed = {text(key): whole(size, key) for key, size in _object(entry.get("packed", {}), "packed").items()}
    return PackOperand(name=name, role=role, dims=dims, dtype=dtype, packed=packed, **flags)


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object")
    return value


def whole(value: Any, what: str) -> int:
    """A whole number from 1 up to 2^31-1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ValueError(f"{what} is {value!r}, must be a whole number in 1..2^31-1")
    return value


def text(value: Any) -> str:
    """A short ASCII text."""
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isascii():
        raise ValueError(f"{value!r} is not a short ASCII text")
    return value


def word(value: Any) -> str:
    """A short name of lower-case letters, digits and underscores."""
    if len(text(value)) > 40 or not _WORD.fullmatch(value):
        raise ValueError(f"{value!r} is not a plain name")
    return str(value)


def listed(value: Any, most: int) -> Sequence[Any]:
    """A list of at most ``most`` entries."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"expected a list of at most {most} entries")
    return value
