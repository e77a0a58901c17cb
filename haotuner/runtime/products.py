"""ProductOp: a batch_matmul of an open pack, called with both factors and what is to be added beside."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.ops.batch_matmul import BESIDE
from haotuner.ops.dtypes import DTYPES
from haotuner.runtime.call_errors import REFUSED, check_written, explain, read_only
from haotuner.runtime.operator import Operator
from haotuner.runtime.typed import as_bits, empty_like, taken

if TYPE_CHECKING:
    from haotuner.pack.op import PackOp
    from haotuner.runtime.pack import Pack


_ARRAY, _FP32 = np.ndarray, np.dtype(np.float32)


class ProductOp(Operator):
    """``y = op.run(x, w)``, of matrices in the last two axes; the axes before them count matrices and are broadcast.

    ``run(x, w, out=y, bias=…, scale=…, mask=…)`` computes ``(x · w) * scale + bias + mask``, then the op's epilogue: a bias
    of the columns, a scale that is a number or has the batch axes, a mask that is broadcast to the output. Every operand may
    have any strides, such as a head's slice of (b, t, h, d); ``out`` must be contiguous in its last axis. Concurrent calls
    are allowed.
    """

    def __init__(self, pack: Pack, op: PackOp, threads: int | None = None) -> None:
        super().__init__(pack, op, threads)
        x, w = (operand.dims for operand in op.inputs[:2])
        self._plain = op.output.dtype == "fp32"
        self._rows, self._columns = x.index("m") - 3, w.index("n") - 3  # counted from the last axis

    def run(self, *operands: Any, out: Any = None, **named: Any) -> Any:
        """The result, in ``out`` if that is given, else new and of x's kind.

        TypeError or ValueError name the operand, what was expected and what was found; PackClosed after the pack was closed.
        """
        if not self._pack.is_open:
            self._pack.library()
        if not named and len(operands) == 2:
            x, w = operands
            try:  # the usual call; what is wrong with another is looked for below
                # As _is_negated, written out: that was a fifth of a small call's time.
                if type(x) is _ARRAY is type(w):
                    result = self._for_arrays(x, w) if out is None else out
                    if self._addressed and type(result) is _ARRAY:
                        self._call(self._addressed, id(x), id(w), id(result))
                        return result
                elif not ((hasattr(x, "is_neg") and x.is_neg()) or (hasattr(w, "is_neg") and w.is_neg())):
                    if out is not None and not getattr(out, "requires_grad", False):
                        self._call(self._setting, x, w, out)
                        return out
                    if out is None and not getattr(x, "requires_grad", True) and not getattr(w, "requires_grad", True):
                        return self._call(self._setting, x, w, None)  # of torch: the library asks torch for the output
            except (IndexError, MemoryError, *REFUSED):
                pass
        return self._run_named(operands, out, named)

    def _run_named(self, operands: tuple[Any, ...], out: Any, named: Mapping[str, Any]) -> Any:
        """As ``run``, of any operands. Apart from the usual call: variables that comprehensions share cost it a tenth."""
        beside = {name: _number(named.get(name)) for name in BESIDE}
        inputs = self._given(operands, {name: value for name, value in named.items() if name not in beside})
        for name, value in (*inputs.items(), *beside.items()):
            if _is_negated(value):
                raise ValueError(f"{self.name}: {name} is a lazy negation; pass {name}.resolve_neg()")
        if out is None:
            out = self._fresh(inputs)
        else:
            check_written(self.name, out)
        more = tuple(beside.values()) if any(value is not None for value in beside.values()) else ()
        try:
            self._call(self._setting, *map(as_bits, inputs.values()), as_bits(out), *more)
        except REFUSED as error:
            every = inputs | {name: value for name, value in beside.items() if value is not None}
            types = {o.name: DTYPES[o.dtype].numpy for o in self.entry.operands}
            types["out"] = DTYPES[self.entry.output.dtype].numpy
            arguments = {name: (value, taken(value, types[name])) for name, value in (*every.items(), ("out", out))}
            frozen = {name: every[name].copy() for name in every if read_only(*arguments[name])}
            if not frozen:
                raise explain(self.name, arguments, error) from error
            self.run(out=out, **(every | frozen))
        return out

    def _for_arrays(self, x: Any, w: Any) -> Any:
        """An output for two arrays of as many matrices; for others None or one that the call refuses."""
        of_x, of_w = x.shape, w.shape
        before = of_x[:-2]
        if not self._plain or before != of_w[:-2]:
            return None
        return np.empty((*before, of_x[self._rows], of_w[self._columns]), _FP32)

    def _fresh(self, inputs: Mapping[str, Any]) -> Any:
        """An output for these factors; what else is wrong with them is said by the call itself."""
        shapes = []
        for operand in self.entry.inputs:
            shape = getattr(inputs[operand.name], "shape", None)
            if shape is None or len(shape) < len(operand.dims) - 1:
                raise TypeError(f"{self.name}: {self._wanted(operand)}, got {type(inputs[operand.name]).__name__}")
            shapes.append(tuple(int(extent) for extent in shape))
        try:
            batch = broadcast(shapes[0][:-2], shapes[1][:-2])
        except ValueError:
            raise ValueError(
                f"{self.name}: batches {shapes[0][:-2]} of x and {shapes[1][:-2]} of w do not go together"
            ) from None
        size = (*batch, shapes[0][self._rows], shapes[1][self._columns])
        first = next(iter(inputs.values()))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(first, torch.Tensor):
            if any(getattr(value, "requires_grad", False) for value in inputs.values()) and torch.is_grad_enabled():
                raise ValueError(f"{self.name}: an operand requires grad; a pack only infers: use torch.inference_mode()")
            return torch.empty(size, dtype=getattr(torch, DTYPES[self.entry.output.dtype].numpy))
        try:
            return empty_like(first, size, self.entry.output.dtype)
        except (ValueError, MemoryError) as error:
            raise UsageError(f"{self.name}: an output of {size} cannot be had: {error}") from error


def broadcast(x: Sequence[int], w: Sequence[int]) -> tuple[int, ...]:
    """Batch axes of the product, aligned from the last one; ValueError if they do not go together."""
    rank = max(len(x), len(w))
    pairs = zip((1,) * (rank - len(x)) + tuple(x), (1,) * (rank - len(w)) + tuple(w), strict=True)
    result = []
    for a, b in pairs:
        if a != b and 1 not in (a, b):
            raise ValueError
        result.append(b if a == 1 else a)
    return tuple(result)


def _is_negated(value: Any) -> bool:
    """Whether it is a lazy negation of torch: DLPack hands out its numbers without the sign."""
    negated = getattr(value, "is_neg", None)
    return negated is not None and bool(negated())


def _number(value: Any) -> Any:
    """A plain number as an array of no axes."""
    plain = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return np.full((), value, np.float32) if plain else value
