"""Op: what is computed, never how."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from haotuner.errors import UsageError
from haotuner.words.shape import AXIS_LIMIT, Shape

Role = Literal["spatial", "reduction"]
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
WEIGHT_LAYOUTS = ("nk", "kn")
EPILOGUES = ("bias", "relu", "gelu")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpKind:
    """One kind of operator: its axes in order, and its cost as functions of the full extents."""

    name: str
    axes: Mapping[str, Role]
    flops: Callable[[Mapping[str, int]], int]
    elements: Callable[[Mapping[str, int]], int]  # read once + written once, the least any implementation moves
    meaning: str


KINDS: dict[str, OpKind] = {
    kind.name: kind
    for kind in (
        OpKind(
            name="dense",
            axes={"m": "spatial", "n": "spatial", "k": "reduction"},
            flops=lambda e: 2 * e["m"] * e["n"] * e["k"],
            elements=lambda e: e["m"] * e["k"] + e["n"] * e["k"] + e["m"] * e["n"],
            meaning="Y[m,n] = X[m,k] · W[n,k]^T",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator: a kind, the extents known when tuning (``static``), and how data is stored.

    Axes that are not static are dynamic: known only when a request arrives.
    """

    kind: str
    static: tuple[tuple[str, int], ...]
    dtype: str = "fp32"
    weight: str = "nk"
    epilogue: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kind = KINDS.get(self.kind)
        if kind is None:
            raise UsageError(f"unknown op kind {self.kind!r}; known kinds: {', '.join(sorted(KINDS))}")
        given = [axis for axis, _ in self.static]
        if len(set(given)) != len(given):
            raise UsageError(f"op {self.kind}: an axis is given twice: {', '.join(given)}")
        for axis, extent in self.static:
            if axis not in kind.axes:
                raise UsageError(f"op {self.kind} has no axis {axis!r}; its axes are {', '.join(kind.axes)}")
            if not 1 <= extent <= AXIS_LIMIT:
                raise UsageError(f"op {self.kind}: {axis}={extent} must be in 1..2^31-1")
        if self.dtype not in DTYPE_BYTES:
            raise UsageError(f"op {self.kind}: unknown dtype {self.dtype!r}; known: {', '.join(DTYPE_BYTES)}")
        if self.weight not in WEIGHT_LAYOUTS:
            raise UsageError(f"op {self.kind}: weight={self.weight!r}; known layouts: {', '.join(WEIGHT_LAYOUTS)}")
        for step in self.epilogue:
            if step not in EPILOGUES:
                raise UsageError(f"op {self.kind}: unknown epilogue {step!r}; known: {', '.join(EPILOGUES)}")
        if len(set(self.epilogue)) != len(self.epilogue):
            raise UsageError(f"op {self.kind}: an epilogue step is given twice: {'+'.join(self.epilogue)}")
        ordered = tuple((axis, extent) for axis in kind.axes for a, extent in self.static if a == axis)
        object.__setattr__(self, "static", ordered)

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes, in the order of the kind."""
        return tuple(KINDS[self.kind].axes)

    @property
    def dynamic(self) -> tuple[str, ...]:
        """The axes whose extent is known only at run time."""
        known = {axis for axis, _ in self.static}
        return tuple(axis for axis in self.axes if axis not in known)

    @property
    def name(self) -> str:
        """Canonical name; appends only what differs from the defaults, and parses back."""
        words = [self.kind, *(f"{axis}{extent}" for axis, extent in self.static)]
        if self.dtype != "fp32":
            words.append(self.dtype)
        if self.weight != "nk":
            words.append(self.weight)
        return "_".join([*words, *self.epilogue])

    def __getitem__(self, axis: str) -> int:
        """Extent of a static axis."""
        return dict(self.static)[axis]

    def extents(self, shape: Shape) -> dict[str, int]:
        """Every axis with its extent for one run-time shape."""
        found = dict(self.static)
        for axis in self.dynamic:
            found[axis] = shape[axis]
        return found

    def flops(self, shape: Shape) -> int:
        """Floating-point operations of one call."""
        return KINDS[self.kind].flops(self.extents(shape))

    def least_bytes(self, shape: Shape) -> int:
        """Bytes moved when every operand is read once and the result written once."""
        return KINDS[self.kind].elements(self.extents(shape)) * DTYPE_BYTES[self.dtype]

    @staticmethod
    def parse(text: str) -> Op:
        """Op from a spec (``dense:n=2304,k=768,dtype=fp16``) or from a name (``dense_n2304_k768_fp16``)."""
        return _from_spec(text) if ":" in text else _from_name(text)


def _from_spec(text: str) -> Op:
    kind, _, rest = text.partition(":")
    static: list[tuple[str, int]] = []
    fields: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise UsageError(f"op {text!r}: {part!r} is not KEY=VALUE; write for example dense:n=2304,k=768")
        if key in ("dtype", "weight", "epilogue"):
            if key in fields:
                raise UsageError(f"op {text!r}: {key} is given twice")
            fields[key] = value
        elif re.fullmatch(r"[0-9]{1,10}", value):
            static.append((key, int(value)))
        else:
            raise UsageError(f"op {text!r}: {key}={value!r} is not a whole number")
    return Op(
        kind=kind.strip(),
        static=tuple(static),
        dtype=fields.get("dtype", "fp32"),
        weight=fields.get("weight", "nk"),
        epilogue=tuple(filter(None, fields.get("epilogue", "").split("+"))),
    )


def _from_name(text: str) -> Op:
    kind, *words = text.strip().split("_")
    static: list[tuple[str, int]] = []
    dtypes, weights, epilogue = [], [], []
    for word in words:
        axis = re.fullmatch(r"([a-z]+)([0-9]{1,10})", word)
        if word in DTYPE_BYTES:
            dtypes.append(word)
        elif word in WEIGHT_LAYOUTS:
            weights.append(word)
        elif word in EPILOGUES:
            epilogue.append(word)
        elif axis:
            static.append((axis[1], int(axis[2])))
        else:
            raise UsageError(f"op {text!r}: cannot read {word!r}; write for example dense:n=2304,k=768 or dense_n2304_k768")
    if len(dtypes) > 1 or len(weights) > 1:
        raise UsageError(f"op {text!r}: names {' and '.join(dtypes if len(dtypes) > 1 else weights)}, only one can hold")
    dtype, weight = (*dtypes, "fp32")[0], (*weights, "nk")[0]
    return Op(kind=kind, static=tuple(static), dtype=dtype, weight=weight, epilogue=tuple(epilogue))
