"""ConvOp: a convolution of an open pack, and Convolution: one with its weight packed once, what a server calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.ops.convolution import Window, windows
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.call_errors import REFUSED, check_written, explain, read_only, refuse_grad
from haotuner.runtime.linear import Closed, array_of, channel_row
from haotuner.runtime.reprs import described_op
from haotuner.runtime.typed import as_bits, channel_values, empty_like, numpy_type, taken, typed_array
from haotuner.spec.limits import MAX_AXES, threads_of
from haotuner.spec.op import Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from haotuner.runtime.pack import Pack

WARM_ELEMENTS = 16  # of an image's side, or the least that the window needs: enough for workers to start


class ConvOp:
    """One convolution of an open pack."""

    def __init__(self, pack: Pack, op: PackOp) -> None:
        self._pack, self.entry = pack, op

    def __repr__(self) -> str:
        return described_op(self)

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.entry.name

    def windows(self) -> dict[Any, Window]:
        """How the window moves along each axis of the image."""
        meaning = self.entry.op
        return dict(windows(meaning.kind, dict(meaning.static), meaning.all_options()))

    def bind(self, weight: Any, bias: Any = None, *, threads: int | None = None, **constants: Any) -> Convolution:
        """Pack a weight once, as torch stores it: (f, c/groups, r, s), transposed (c, f/groups, r, s); see ``Convolution``.

        Weight and bias (f,) are copied: later changes to them do not show. ``threads`` replaces the pack's count.
        ``constants``: further values of a feature that an epilogue reads, such as ``scale``: arrays (f,), or one number.
        """
        inputs = constants if bias is None else {"bias": bias, **constants}
        return Convolution.of(self._pack, ConvBound.of(self._pack, self.entry, weight, inputs, threads))

    def cell(self, extents: Mapping[str, int]) -> int:
        """The cell of the plan's table that serves a shape, from the library's own look-up."""
        values = np.zeros(MAX_AXES, np.int64)
        for index, axis in enumerate(("b", "h", "w")):  # as native/kinds/conv.h numbers them
            values[index] = extents.get(axis, 1)
        plan = self._pack.plan_index(self.entry)
        return int(self._pack.library().function("ht_cell")(self._pack.place(self.entry), plan, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvBound:
    """A weight packed for one convolution of one open pack, and the native call that takes it."""

    op: PackOp
    meaning: Op
    windows: Mapping[Any, Window]
    call: Callable[..., Any]
    setting: int
    packed: Any  # tvm_ffi tensor
    unpack: Callable[[], NDArray[Any]]
    constants: Mapping[str, Any] = field(default_factory=dict)  # a bias, or what the epilogue reads of a feature
    packed_bytes: int = 0

    @staticmethod
    def of(pack: Pack, op: PackOp, weight: Any, inputs: Mapping[str, Any], threads: int | None) -> ConvBound:
        """Pack a weight and copy values of a feature. TypeError for another dtype, ValueError for another shape."""
        import tvm_ffi

        call, setting = pack.entry(op, threads)
        meaning = op.op
        required = [operand.name for operand in op.extra if operand.role == "constant"]
        optional = {operand.name for operand in op.operands if operand.optional}
        if set(inputs) != set(required) and (required or not set(inputs) <= optional):
            names = ("weight", *required, *(f"perhaps a {name}" for name in sorted(optional)))
            raise TypeError(f"{op.name}: bind takes {', '.join(names)}; got {', '.join(('weight', *inputs))}")
        rows = {name: _row(op, name, inputs[name], meaning["f"]) for name in required or inputs}
        values, packed = _checked(op, weight), packed_of(pack, op, weight)
        return ConvBound(
            op=op,
            meaning=meaning,
            windows=windows(meaning.kind, dict(meaning.static), meaning.all_options()),
            call=call,
            setting=setting,
            packed=tvm_ffi.from_dlpack(packed),
            unpack=_unpacking(packed, values.shape, op.operands[1].packed, _packing(pack, op))
            if values.dtype == np.float32
            else _keeping(values, op),
            constants={name: tvm_ffi.from_dlpack(row) for name, row in rows.items()},
            packed_bytes=packed.nbytes,
        )

    def moved(self, pack: Pack, op: PackOp) -> ConvBound:
        """The same weight for the same op of another pack."""
        constants = {name: np.from_dlpack(row) for name, row in self.constants.items()}
        return ConvBound.of(pack, op, self.unpack(), constants, threads_of(self.setting))

    @property
    def bias(self) -> Any:
        """The bias of an op without an epilogue; None where there is none."""
        return None if self.op.extra else self.constants.get("bias")

    def weight(self) -> NDArray[Any]:
        """The weight as users store it, in a new array; PackClosed after the pack was closed."""
        if self.packed is None:
            self.call()
        return self.unpack()

    def closed(self) -> ConvBound:
        """Nothing left but the refusal."""
        gone = Closed(self.op.name)
        return replace(self, call=gone, packed=None, unpack=lambda: np.zeros(0, np.float32), setting=0, constants={})


class Convolution:
    """``y = convolution(x)`` or ``convolution(x, out=y)``; x is (b, c, h, w) of the op's type, or as its layout says.

    Takes numpy arrays, CPU torch tensors and other DLPack tensors; the result is of x's kind. The innermost axis must be
    contiguous, others may have any stride; an image without the axis b is one. Concurrent calls are allowed. With an
    epilogue that adds a residual: ``convolution(x, residual=r)``, of the shape of the result and apart from ``out``.
    """

    __slots__ = ("__weakref__", "_bound", "_sized", "_state", "_type", "owner")
    owner: Pack

    @staticmethod
    def of(pack: Pack, bound: ConvBound) -> Convolution:
        """One that a pack serves from now on."""
        result = Convolution(bound)
        pack.own(result)
        return result

    def __init__(self, bound: ConvBound) -> None:
        self.serve(bound)

    def __call__(self, x: Any, out: Any = None, **inputs: Any) -> Any:
        """The convolution; TypeError or ValueError name the argument, what was expected and what was found."""
        call, packed, setting, constants, passed, more = self._state
        if not inputs and not passed and out is not None and not getattr(out, "requires_grad", False):
            negated = getattr(x, "is_neg", None)
            if negated is None or not negated():
                try:  # the usual call; what is wrong with another is looked for below
                    call(setting, as_bits(x), packed, *constants, as_bits(out), *more)
                    return out
                except REFUSED:
                    pass
        if inputs.keys() != set(passed):
            names = ", ".join(f"{name}=" for name in passed) or "nothing but out="
            raise TypeError(f"{self.name}: a call takes x and {names}; got {', '.join(inputs) or 'none of it'}")
        for name, value in (("x", x), *inputs.items()):
            negated = getattr(value, "is_neg", None)
            if negated is not None and negated():  # a lazy negation of torch: DLPack hands out the numbers without the sign
                raise ValueError(f"{self.name}: {name} is a lazy negation; pass {name}.resolve_neg()")
        if out is None:
            out = self._empty(x)
        else:
            check_written(self.name, out)
        try:
            call(setting, as_bits(x), packed, *constants, *(as_bits(inputs[name]) for name in passed), as_bits(out), *more)
        except REFUSED as error:
            op = self._bound.op
            types = {o.name: DTYPES[o.dtype].numpy for o in op.operands} | {"out": DTYPES[op.output.dtype].numpy}
            arguments = {name: (value, taken(value, types[name])) for name, value in {"x": x, **inputs, "out": out}.items()}
            frozen = {name for name, (value, dtype) in arguments.items() if name != "out" and read_only(value, dtype)}
            if not frozen:
                raise explain(self.name, arguments, error) from error
            copies = {name: value.copy() if name in frozen else value for name, value in {"x": x, **inputs}.items()}
            self(copies.pop("x"), out, **copies)
        return out

    def __repr__(self) -> str:
        return described_op(self)

    @property
    def name(self) -> str:
        """Canonical name of the op."""
        return self._bound.op.name

    @property
    def packed_bytes(self) -> int:
        """Memory of the packed weight."""
        return self._bound.packed_bytes

    @property
    def bound(self) -> ConvBound:
        """What serves it now."""
        return self._bound

    def serve(self, bound: ConvBound) -> None:
        """Serve later calls from ``bound``; calls that run now finish as they began."""
        self._bound = bound
        self._sized: tuple[Any, tuple[int, ...]] = (None, ())  # the shape of the last image, and of its result
        self._type = bound.op.output.dtype
        constants = tuple(bound.constants.values()) if bound.op.extra else ()
        more = () if bound.bias is None else (bound.bias,)
        passed = tuple(operand.name for operand in bound.op.extra if operand.role == "input")
        # One tuple: a call sees all old or all new.
        self._state = bound.call, bound.packed, bound.setting, constants, passed, more

    def weight(self) -> NDArray[Any]:
        """The weight as it was bound, unpacked into a new array."""
        return self._bound.weight()

    def rebind(self, weight: Any, bias: Any = None, **constants: Any) -> None:
        """Serve another weight and other values from the next call on; not while the pack is handed over."""
        inputs = constants if bias is None else {"bias": bias, **constants}
        self.serve(ConvBound.of(self.owner, self._bound.op, weight, inputs, threads_of(self._bound.setting)))

    def twin(self) -> Convolution:
        """Another one with the same packed weight."""
        return Convolution.of(self.owner, self._bound)

    def warm(self) -> None:
        """One small image, so that no request is the first."""
        extents = dict(self._bound.meaning.static) | {axis.name: 1 for axis in self._bound.op.dynamic}
        for axis, side in self._bound.windows.items():
            reach = side.dilation * (side.taps - 1) + 1
            extents.setdefault(axis, 1)
            if axis in {item.name for item in self._bound.op.dynamic}:
                extents[axis] = max(WARM_ELEMENTS, reach)
        axes = self._bound.op.operands[0].dims
        x = np.zeros([extents[axis] for axis in axes], numpy_type(self._bound.op.operands[0].dtype))
        types = {operand.name: numpy_type(operand.dtype) for operand in self._bound.op.extra}
        self(x, **{name: np.zeros(self._empty(x).shape, types[name]) for name in self._state[4]})

    def close(self) -> None:
        """Drop the packed weight and the library; later calls raise PackClosed. Calls that run now finish."""
        self.serve(self._bound.closed())

    def _empty(self, x: Any) -> Any:
        """An output for x, of its kind."""
        shape, size = self._sized
        if shape is None or shape != getattr(x, "shape", None):
            size = self._size(x)
            self._sized = x.shape, size  # shapes come again: finding it took half of a small call
        if type(x) is np.ndarray and self._type == "fp32":
            return np.empty(size, np.float32)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            if x.requires_grad:
                refuse_grad(self.name, "x")
            return x.new_empty(size, dtype=getattr(torch, DTYPES[self._type].numpy))
        return empty_like(x, size, self._type)

    def _size(self, x: Any) -> tuple[int, ...]:
        op, meaning = self._bound.op, self._bound.meaning
        dims, shape = op.operands[0].dims, getattr(x, "shape", None)
        if shape is None or len(shape) < len(dims) - 1:
            kind = DTYPES[op.operands[0].dtype].numpy
            raise TypeError(f"{op.name}: x must be a {kind} array or tensor ({', '.join(dims)}), got {type(x).__name__}")
        split = len(shape) - len(dims) + 1
        extents = dict(zip(dims[1:], (int(n) for n in shape[split:]), strict=True))
        sides = {after: self._bound.windows[of].out(extents[of]) for of, after in AFTER if of in self._bound.windows}
        if min(*sides.values(), *(extents[axis] for axis in self._bound.windows)) < 1:
            result = " x ".join(str(extents[axis]) for axis in self._bound.windows)
            raise ValueError(f"{op.name}: x is an image of {result}, with its pads smaller than the window: nothing is left")
        known = {"f": meaning["f"], **sides}
        return (*shape[:split], *(known[axis] for axis in op.output.dims[1:]))


def _row(op: PackOp, name: str, value: Any, count: int) -> NDArray[np.float32]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return np.full(count, value, np.float32)
    plain = op.operands[1].dtype == "fp32"
    return channel_row(op, name, value, count) if plain else channel_values(op, name, value, count)


def packed_of(pack: Pack, op: PackOp, weight: Any) -> NDArray[np.float32]:
    """A weight as the loops read it, in the pack's arena; TypeError and ValueError as ``bind``."""
    values = _checked(op, weight)
    packed = pack.arena.take((int(op.operands[1].packed["floats"]),))
    _packing(pack, op)(values, packed)
    return packed


def _checked(op: PackOp, weight: Any) -> NDArray[Any]:
    element_type = DTYPES[op.operands[1].dtype].numpy
    values = (
        array_of(op, "weight", weight) if element_type == "float32" else typed_array(op, "weight", weight, {element_type})
    )
    shape = weight_shape(op.op)
    if values.shape != shape:
        raise ValueError(f"{op.name}: weight has shape {tuple(values.shape)}; expected {shape}")
    return values


def _packing(pack: Pack, op: PackOp) -> Callable[[NDArray[Any], NDArray[np.float32]], None]:
    position, function = pack.place(op), pack.library().function("ht_pack")

    def into(values: NDArray[Any], out: NDArray[np.float32]) -> None:
        whole = np.ascontiguousarray(values)
        function(position, whole if whole.flags.writeable else whole.copy(), out)

    return into


def _unpacking(
    packed: Any, shape: tuple[int, ...], facts: Mapping[str, Any], packed_of: Callable[[Any, Any], None]
) -> Callable[[], NDArray[Any]]:
    plain = int(facts.get("plain", packed.size))  # transformed copies follow
    return lambda: unpacked(packed, shape, plain, packed_of)


def _keeping(values: NDArray[Any], op: PackOp) -> Callable[[], NDArray[Any]]:
    """A copy as it was bound: words of several terms do not tell where each element lies."""
    selected = values.copy().view(numpy_type(op.operands[1].dtype))
    return selected.copy


AFTER = (("h", "p"), ("w", "q"))  # axes of the image, and what a convolution makes of them


def weight_shape(op: Op) -> tuple[int, ...]:
    """Dimensions of a convolution's weight as users store it."""
    extents = {**dict(op.static), **{axis: 1 for axis in op.dynamic}}
    options = op.all_options()
    return op.meaning.operands[1].shape(op.meaning.complete(extents, options), options)


def unpacked(
    packed: NDArray[np.float32], shape: tuple[int, ...], plain: int, packed_of: Callable[[Any, Any], None]
) -> NDArray[np.float32]:
    """The weight out of the first ``plain`` floats of its packed form: numbers packed alike tell where each lies."""
    count = int(np.prod(shape))
    places = np.zeros(packed.size, np.float32)
    packed_of(np.arange(1, count + 1, dtype=np.int32).view(np.float32).reshape(shape), places)
    places = places[:plain].view(np.int32)
    result, selected = np.zeros(count, np.float32), places > 0
    result[places[selected] - 1] = packed[:plain][selected]
    return result.reshape(shape)
