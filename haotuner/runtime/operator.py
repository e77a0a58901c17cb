"""Operator: an op of an open pack that takes all of its operands at every call, batch_matmul among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.ops.arithmetic import arithmetic_of
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp, PackOperand
from haotuner.runtime.arrays import ADDRESSED_TYPES, ARRAYS, empty_like
from haotuner.runtime.call import REFUSED, NativeCall, Signature, check_lazy, check_written
from haotuner.runtime.reprs import described_op
from haotuner.spec.limits import CELL_AXES

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

_ARRAY = np.ndarray


class Operator:
    """An operator that binds nothing: ``y = op.run(a, b)`` or ``op.run(a, b, out=y)``.

    Operands are numpy arrays, CPU torch tensors or other DLPack tensors.

    An operand may have more axes than the op says: the leading ones are folded into its first axis, if evenly spaced.
    Concurrent calls are allowed. An op of several outputs gives a tuple of them, in the file's order, and takes one as
    ``out``. No output of these may share memory with an operand or with another output.
    """

    gives = False  # whether the library asks torch for an output that a call does not bring

    def __init__(self, pack: Pack, op: PackOp, threads: int | None = None) -> None:
        self._pack, self.entry = pack, op
        self.outputs = op.in_file_order  # what a call writes, in the file's order
        self._call, self._setting = pack.entry(op, threads)
        self._addressed = pack.addressed(self._setting)
        self._native, self._signature = NativeCall.of(op, self._call, self._setting), Signature(op)
        self._derived = derived_of(op)
        self._names = tuple(operand.name for operand in op.inputs)
        self._optional = tuple(operand.name for operand in op.operands if operand.optional)
        self._optional_set = frozenset(self._optional)
        several = len(op.written) > 1
        self._writes = {operand.name if several else "out": operand for operand in op.written}  # of the library's call
        self._order = {name: self.outputs.index(operand) for name, operand in self._writes.items()}
        self._count = len(self._names) if len(self.outputs) == 1 else -1  # operands of a call that is passed on as it comes
        self._sized: tuple[Any, tuple[int, ...]] = (None, ())  # shapes of the last operands, and of their result
        element_type = DTYPES[op.output.dtype].numpy
        self._folds = len(op.output.dims) == 1  # an output that may have the leading axes of its operands
        self._result_dtype = np.dtype(element_type) if element_type in ADDRESSED_TYPES and not self._folds else None
        self._keeps_type = all(operand.dtype == op.output.dtype for operand in op.inputs[:1]) and not self._folds
        self._in_order: Callable[[Mapping[str, Any]], Any] = itemgetter(*self._names) if self._names else tuple

    def __repr__(self) -> str:
        return described_op(self)

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.entry.name

    def with_threads(self, threads: int) -> Operator:
        """Operator of the same op with another thread count than the pack's."""
        return type(self)(self._pack, self.entry, threads)

    def run(self, *operands: Any, out: Any = None, **named: Any) -> Any:
        """The result, in ``out`` if that is given, else new and of the first operand's kind.

        Operands come in the op's order or by name. TypeError or ValueError name the operand, what was expected and what was
        found, UsageError ``out`` of another number of tensors; PackClosed after the pack was closed.
        """
        if not self._pack.is_open:
            self._pack.library()
        try:  # What nearly every call of a server is, by the number of operands: each name and loop is a twentieth of it.
            passed = operands
            if named:
                if operands or len(named) != self._count:
                    passed = ()
                else:  # an itemgetter of one name gives no tuple
                    passed = (named[self._names[0]],) if self._count == 1 else self._in_order(named)
            if self._derived and out is not None and not self._fits(passed, out):
                pass  # said below
            elif self._count == 1:
                (first,) = passed
                if type(first) is _ARRAY:
                    y = self._for_arrays(passed) if out is None else out
                    if type(y) is _ARRAY and self._addressed:
                        self._call(self._addressed, id(first), id(y))
                        return y
                elif not first.is_neg():
                    y = self._for_tensors(passed) if out is None else out
                    if not (first.requires_grad or y.requires_grad):
                        self._call(self._setting, first, y)
                        return y
            elif self._count == 2:
                first, second = passed
                if type(first) is _ARRAY is type(second):
                    y = self._for_arrays(passed) if out is None else out
                    if type(y) is _ARRAY and self._addressed:
                        self._call(self._addressed, id(first), id(second), id(y))
                        return y
                elif not (first.is_neg() or second.is_neg() or first.requires_grad or second.requires_grad):
                    if out is None and self.gives:
                        return self._call(self._setting, first, second, None)
                    y = self._for_tensors(passed) if out is None else out
                    if not y.requires_grad:
                        self._call(self._setting, first, second, y)
                        return y
            elif len(passed) == self._count and (y := self._run_many(passed, out)) is not None:
                return y
        except (AttributeError, IndexError, KeyError, MemoryError, *REFUSED):  # said below
            pass
        return self._run_named(operands, out, named)

    def _run_many(self, passed: tuple[Any, ...], out: Any) -> Any:
        """The result of a call of three operands or more that may go to the library as they come; None of any other."""
        if ARRAYS.issuperset(map(type, passed)):
            y = self._for_arrays(passed) if out is None else out
            if type(y) is not _ARRAY or not self._addressed:
                return None
            self._call(self._addressed, *map(id, passed), id(y))
            return y
        if any(value.requires_grad or value.is_neg() for value in passed):
            return None
        if out is None and self.gives:
            return self._call(self._setting, *passed, None)
        y = self._for_tensors(passed) if out is None else out
        if y.requires_grad:
            return None
        self._call(self._setting, *passed, y)
        return y

    def _fits(self, passed: tuple[Any, ...], out: Any) -> bool:
        """True if an output has the extents that follow from the operands."""
        return self._size_of(passed) == tuple(getattr(out, "shape", ()))

    def _for_arrays(self, passed: tuple[Any, ...]) -> Any:
        """An output for arrays; None where its type or its one axis is found out by looking at names."""
        return None if self._result_dtype is None else np.empty(self._size_of(passed), self._result_dtype)

    def _for_tensors(self, passed: tuple[Any, ...]) -> Any:
        """An output for torch's tensors, of the first one's type; None where names or types must be looked at."""
        # Whole numbers instead of a tuple save half of new_empty's time.
        return passed[0].new_empty(*self._size_of(passed)) if self._keeps_type else None

    def _size_of(self, passed: tuple[Any, ...]) -> tuple[int, ...]:
        shapes = [value.shape for value in passed]
        known, size = self._sized
        if known != shapes:
            size = self.output_shape(dict(zip(self._names, passed, strict=True)))
            self._sized = shapes, size  # shapes come again: finding it took most of a small call
        return size

    def _run_named(self, operands: tuple[Any, ...], out: Any, named: Mapping[str, Any]) -> Any:
        """As ``run``, of any operands. Apart from the usual call: variables that comprehensions share cost it a tenth."""
        inputs = self._operands(operands, named)
        for name, value in inputs.items():
            if type(value) is not _ARRAY:
                check_lazy(self.name, name, value)
        outs = self._written(inputs, out)
        self._signature.run(self._native, inputs, self._folded(inputs, outs))
        return self._result(outs)

    def cell(self, extents: Mapping[str, int]) -> int:
        """The cell of the plan's table that serves a shape, from the library's own look-up."""
        derived = {axis.name: 0 for axis in self.entry.axes if axis.derived}  # no plan is looked up by them
        sizes = {axis.name: axis.extent for axis in self.entry.axes if axis.extent is not None} | derived | dict(extents)
        known = {axis.name: sizes[axis.name] for axis in self.entry.axes}
        values = np.zeros(max(CELL_AXES, len(known)), np.int64)
        values[: len(known)] = list(known.values())
        plan = self._pack.plan_index(self.entry)
        return int(self._pack.library().function("ht_cell")(self._pack.table_index(self.entry), plan, values))

    def _operands(self, operands: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """A call's operands by name, in their order; optional ones behind, None where left out, if there is any."""
        names = self._names
        if len(operands) == len(names) and self._optional_set.issuperset(named):
            inputs = dict(zip(names, operands, strict=True))
            if any(value is not None for value in named.values()):
                for name in self._optional:
                    inputs[name] = _number(named.get(name))
            return inputs
        beside = {name: named[name] for name in self._optional if named.get(name) is not None}
        required = {name: value for name, value in named.items() if name not in self._optional}
        inputs = dict(zip(names, operands, strict=False)) | required
        if len(operands) > len(names) or set(inputs) != set(names) or len(operands) + len(required) != len(names):
            raise TypeError(
                f"{self.name} takes {', '.join(names)}, once each; got {len(operands)} in order and {list(required)}"
            )
        result = {name: inputs[name] for name in names}
        return result | {name: _number(beside.get(name)) for name in self._optional} if beside else result

    def _written(self, inputs: Mapping[str, Any], out: Any) -> dict[str, Any]:
        """Outputs by name, in the order of the library's call: those that are given, else new ones."""
        if out is None:
            return {name: self._new(inputs, output) for name, output in self._writes.items()}
        outs = self._called(out)
        for name, output in self._writes.items():
            check_written(self.name, outs[name])
            if not self._derived:
                continue
            expected, shape = self.output_shape(inputs, output), tuple(getattr(outs[name], "shape", ()))
            if shape != expected:
                raise ValueError(f"{self.name}: {name} must be of the shape {expected}, got {shape}")
        return outs

    def _called(self, out: Any) -> dict[str, Any]:
        """Given outputs by name, in the order of the library's call."""
        if len(self._order) == 1:
            return {"out": out}
        count = len(out) if isinstance(out, (tuple, list)) else type(out).__name__
        if count != len(self._order):
            names = ", ".join(output.name for output in self.outputs)
            raise UsageError(f"{self.name}: out= takes {len(self._order)} tensors, for {names}; got {count}")
        return {name: out[position] for name, position in self._order.items()}

    def _result(self, outs: Mapping[str, Any]) -> Any:
        """A call's answer: the output, of several a tuple in the file's order."""
        return outs["out"] if len(self.outputs) == 1 else tuple(outs[output.name] for output in self.outputs)

    def _folded(self, inputs: Mapping[str, Any], outs: dict[str, Any]) -> dict[str, Any]:
        """A contiguous output of one axis, with the leading axes of its operands, as that axis; others as they are."""
        out = outs.get("out")
        if out is None or not self._folds:
            return outs
        contiguous = getattr(out, "is_contiguous", None)
        plain = out.flags.c_contiguous if isinstance(out, np.ndarray) else contiguous is not None and contiguous()
        shape = tuple(getattr(out, "shape", ()))
        return {"out": out.reshape(-1)} if len(shape) > 1 and plain and shape == self.output_shape(inputs) else outs

    def _new(self, inputs: Mapping[str, Any], output: PackOperand) -> Any:
        """Memory of an output; what is wrong with the operands is said by the call itself."""
        size = self.output_shape(inputs, output)
        try:
            return self._empty(inputs, size, output.dtype)
        except (ValueError, MemoryError) as error:
            raise UsageError(f"{self.name}: an output of {size} cannot be had: {error}") from error

    def _empty(self, inputs: Mapping[str, Any], size: tuple[int, ...], dtype: str) -> Any:
        return empty_like(next(iter(inputs.values())), size, dtype)

    def output_shape(self, inputs: Mapping[str, Any], written: PackOperand | None = None) -> tuple[int, ...]:
        """Dimensions of the output for these operands, or of what is ``written`` beside it."""
        extents: dict[str, int] = {axis.name: axis.extent for axis in self.entry.axes if axis.extent is not None}
        leading: dict[str, tuple[int, ...]] = {}
        for operand in self.entry.inputs:
            shape, rank = self._shape_of(inputs, operand), len(operand.dims)
            split = len(shape) - rank + 1
            leading.setdefault(operand.dims[0], shape[:split])
            extents |= dict(zip(operand.dims[1:], shape[split:], strict=True))
        out = written or self.entry.output
        for axis, before in leading.items():
            extents.setdefault(axis, prod(before))
        if self._derived:
            extents |= {axis: int(of(extents)) for axis, of in self._derived.items()}
        before = leading.get(out.dims[0], (extents.get(out.dims[0], -1),))
        size = (*before, *(extents.get(axis, -1) for axis in out.dims[1:]))
        if min(size, default=0) < 0:
            raise UsageError(f"{self.name}: no operand says how large the result is; pass out=")
        return size

    def _shape_of(self, inputs: Mapping[str, Any], operand: PackOperand) -> tuple[int, ...]:
        """An operand's extents, in whole numbers; TypeError where it has too few axes."""
        shape = getattr(inputs[operand.name], "shape", None)
        if shape is None or len(shape) < max(1, len(operand.dims) - 1):
            expected = self._expected(operand)
            raise TypeError(f"{self.name}: {expected}, got {type(inputs[operand.name]).__name__}")
        return tuple(int(extent) for extent in shape)

    def _expected(self, operand: PackOperand) -> str:
        return self._signature.expected(operand)


def _number(value: Any) -> Any:
    """A plain number as an array of no axes."""
    if value is None or type(value) is _ARRAY:
        return value
    plain = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return np.array(value, np.float32) if plain else value


def derived_of(op: PackOp) -> dict[str, Callable[[Mapping[str, int]], int]]:
    """Axes whose extent follows from the others', with what computes it: read once, for a call takes microseconds."""
    names = [axis.name for axis in op.axes if axis.derived]
    formulas = {axis.name: arithmetic_of(axis.formula) for axis in op.axes if axis.formula}
    if set(formulas) == set(names):
        return formulas
    kind, options = op.op.meaning, op.op.all_options()

    def of(axis: str) -> Callable[[Mapping[str, int]], int]:
        return lambda extents: int(kind.derived[axis](extents, options))

    return {axis: of(axis) for axis in names}


class ProductOp(Operator):
    """``y = op.run(x, w)``, of matrices in the last two axes; the axes before them count matrices and are broadcast.

    ``run(x, w, out=y, bias=…, scale=…, mask=…)`` computes ``(x · w) * scale + bias + mask``, then the op's epilogue: a bias
    of the columns, a scale that is a number or has the batch axes, a mask that is broadcast to the output. Every operand may
    have any strides, such as a head's slice of (b, t, h, d); ``out`` must be contiguous in its last axis. Concurrent calls
    are allowed.
    """

    gives = True

    def __init__(self, pack: Pack, op: PackOp, threads: int | None = None) -> None:
        super().__init__(pack, op, threads)
        x, w = (operand.dims for operand in op.inputs[:2])
        self._rows, self._columns = x.index("m") - 3, w.index("n") - 3  # counted from the last axis

    def _for_arrays(self, passed: tuple[Any, ...]) -> Any:
        """An output for two arrays of as many matrices; for others None or one that the call refuses."""
        of_x, of_w = passed[0].shape, passed[1].shape
        before = of_x[:-2]
        if self._result_dtype is None or before != of_w[:-2]:
            return None
        return np.empty((*before, of_x[self._rows], of_w[self._columns]), self._result_dtype)

    def output_shape(self, inputs: Mapping[str, Any], written: PackOperand | None = None) -> tuple[int, ...]:
        """Dimensions of the products of these factors; ValueError where their batches do not go together."""
        x, w = (self._shape_of(inputs, operand) for operand in self.entry.inputs)
        return product_size(self.entry, x, w)


def product_size(op: PackOp, x: Sequence[int], w: Sequence[int]) -> tuple[int, ...]:
    """Dimensions of the products of factors of these; ValueError where their batches do not go together."""
    try:
        batch = broadcast(x[:-2], w[:-2])
    except ValueError:
        raise ValueError(f"{op.name}: batches {tuple(x[:-2])} of x and {tuple(w[:-2])} of w do not go together") from None
    m_at, n_at = (operand.dims.index(axis) - 3 for operand, axis in zip(op.inputs, "mn", strict=True))
    return (*batch, x[m_at], w[n_at])


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
