"""Model: a whole model of an open pack. One call runs all steps in memory that is planned for the request's sizes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import PackInvalid, UsageError
from haotuner.ops.dtypes import DTYPES
from haotuner.runtime.memory_plan import lives, placed, together
from haotuner.runtime.schedule import End, Schedule

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

PLANS = 16  # of different sizes that a context keeps
NUMPY = {**{name: one.numpy for name, one in DTYPES.items()}, "fp64": "float64", "bool": "bool"}

Ready = tuple[list[Callable[[], Any]], dict[str, Any]]  # calls in order; arrays by name


class Model:
    """``model.run({"x": array})`` gives outputs by name. Calls may run at the same time; each has memory of its own."""

    def __init__(self, pack: Pack, schedule: Schedule, weights: Any) -> None:
        self.pack, self.schedule = pack, schedule
        self._weights = {name: _weight(name, one, weights) for name, one in schedule.weights.items()}
        self._loops = pack.library().function("ht_loops") if any(s["do"] == "loops" for s in schedule.steps) else None
        self._bound = [self._bind(step) for step in schedule.steps]
        ends = ([one.tensor for one in schedule.inputs], [one.tensor for one in schedule.outputs])
        spans = lives(schedule.steps, *ends)
        self._beside = together({name: span for name, span in spans.items() if name in schedule.tensors})  # no weights
        self._free: list[Context] = []
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """What the pack calls it: the name of the file that it was made of."""
        return self.schedule.name

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions that a request decides."""
        return self.schedule.dims

    def memory_bytes(self, **dims: int) -> int:
        """Bytes of working memory of a call with these dimensions, known before it runs."""
        return self.layout(self.schedule.values(dims))[1]

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name; ``out``: arrays for them. UsageError names the input, what was expected and what was found."""
        self.pack.library()
        given = self._given(inputs)
        dims = self.schedule.dims_of({name: array.shape for name, array in given.items()})
        with self._lock:
            context = self._free.pop() if self._free else Context(self)
        try:
            return context.run(dims, given, out or {})
        finally:
            with self._lock:
                self._free.append(context)

    def _given(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        names = [one.name for one in self.schedule.inputs]
        lacking, unknown = [name for name in names if name not in inputs], [name for name in inputs if name not in names]
        if lacking or unknown:
            raise UsageError(
                f"{self.name} takes the inputs {', '.join(names)}; "
                + "; ".join([f"{one} is missing" for one in lacking] + [f"there is no {one}" for one in unknown])
            )
        found = {}
        for end in self.schedule.inputs:
            array = inputs[end.name]
            array = (
                array if isinstance(array, np.ndarray) else np.from_dlpack(array) if hasattr(array, "__dlpack__") else array
            )
            if getattr(array, "dtype", None) != np.dtype(NUMPY.get(end.dtype, end.dtype)):
                kind = getattr(array, "dtype", type(array).__name__)
                raise UsageError(
                    f"{self.name}: input {end.name} must be an array of {NUMPY.get(end.dtype, end.dtype)}, got {kind}"
                )
            found[end.name] = array
        return found

    def layout(self, sizes: list[int]) -> tuple[dict[str, int], int]:
        """Offsets of the tensors in a call's memory, and how much it is."""
        return placed({name: self._bytes(name, sizes) for name in self._beside}, self._beside)

    def _bytes(self, name: str, sizes: list[int]) -> int:
        dtype, shape = self.schedule.tensors[name]
        count = 1
        for place in shape:
            count *= sizes[place]
        return count * np.dtype(NUMPY.get(dtype, dtype)).itemsize

    def _bind(self, step: Mapping[str, Any]) -> Any:
        """What a step needs before any request: the op with its weight packed."""
        if step["do"] in ("alias", "loops"):
            return None
        op = self.pack.op(step["op"])
        if step["do"] in ("product", "online"):
            return op
        constants = {name: self._weights[one] for name, one in step["constants"].items()}
        return op.bind(self._weights[step["weight"]], **constants)

    def prepared(self, sizes: list[int], offsets: Mapping[str, int], memory: Any) -> Ready:
        """All calls of a request of these sizes, with arrays that lie in ``memory`` at these offsets."""
        arrays: dict[str, Any] = dict(self._weights)
        calls: list[Callable[[], Any]] = []
        table = np.array(sizes, np.int64)
        for name, at in offsets.items():
            dtype, shape = self.schedule.tensors[name]
            extents = [sizes[place] for place in shape]
            kind = np.dtype(NUMPY.get(dtype, dtype))
            count = int(np.prod(extents, dtype=np.int64)) * kind.itemsize
            arrays[name] = memory[at : at + count].view(kind).reshape(extents)
        for step, bound in zip(self.schedule.steps, self._bound, strict=True):
            if step["do"] == "alias":
                extents = [sizes[place] for place in self.schedule.tensors[step["out"]][1]]
                arrays[step["out"]] = arrays[step["of"]].reshape(extents)
            else:
                calls.append(_CALLS[step["do"]](self, step, bound, arrays, sizes, table))
        return calls, arrays

    def call_loops(self, step: Mapping[str, Any], arrays: Mapping[str, Any], table: Any) -> Callable[[], Any]:
        """The call of a group; what its addresses point to lives as long as the call."""
        held = [arrays[name] for name in step["tensors"]]
        # What .ctypes.data says, in a tenth of its time.
        addresses = np.array([one.__array_interface__["data"][0] for one in held], np.int64)
        function, group, threads = self._loops, step["group"], self.pack.threads
        assert function is not None
        sizes_at, tensors_at = table.ctypes.data, addresses.ctypes.data

        def call(keep: Any = (held, addresses, table)) -> None:
            function(group, sizes_at, tensors_at, threads)

        return call


def _call_dense(m: Model, step: Mapping[str, Any], bound: Any, arrays: Mapping[str, Any], sizes: list[int], _: Any) -> Any:
    x = arrays[step["x"]].reshape([sizes[place] for place in step["x_shape"]])
    shape = [sizes[place] for place in step["out_shape"]]
    out = arrays[step["out"]].reshape(shape)
    passed = {name: arrays[one].reshape(shape) for name, one in step["passed"].items()}
    return _nothing if not out.size else lambda: bound(x, out=out, **passed)


def _call_conv(m: Model, step: Mapping[str, Any], bound: Any, arrays: Mapping[str, Any], sizes: list[int], _: Any) -> Any:
    x, out = arrays[step["x"]], arrays[step["out"]]
    passed = {name: arrays[one] for name, one in step["passed"].items()}
    return _nothing if not out.size else lambda: bound(x, out=out, **passed)


def _call_product(m: Model, step: Mapping[str, Any], bound: Any, arrays: Mapping[str, Any], sizes: list[int], _: Any) -> Any:
    x, w = (_seen(arrays[one["of"]], one, sizes) for one in (step["x"], step["w"]))
    order, out = step["order"], arrays[step["out"]]
    if order:  # the result is written where its reordering lies
        out = out.transpose([order.index(axis) for axis in range(len(order))])
    beside: dict[str, Any] = {"scale": np.full((), step["scale"], np.float32)} if step["scale"] is not None else {}
    beside |= {name: arrays[one] for name, one in step["passed"].items()}
    return _nothing if not out.size else lambda: bound.run(x, w, out=out, **beside)


def _call_online(m: Model, step: Mapping[str, Any], bound: Any, arrays: Mapping[str, Any], sizes: list[int], _: Any) -> Any:
    given = {name: _seen(arrays[one["of"]], one, sizes) for name, one in step["views"].items()}
    order, out = step["order"], arrays[step["out"]]
    if order:  # as of a product
        out = out.transpose([order.index(axis) for axis in range(len(order))])
    return _nothing if not out.size else lambda: bound.run(**given, out=out)


def _call_loops(
    m: Model, step: Mapping[str, Any], bound: Any, arrays: Mapping[str, Any], sizes: list[int], table: Any
) -> Any:
    return m.call_loops(step, arrays, table)


def _seen(array: Any, view: Mapping[str, Any], sizes: list[int]) -> Any:
    seen = array.reshape([sizes[place] for place in view["shape"]]) if view["shape"] else array
    return seen.transpose(view["order"]) if view["order"] else seen


def _nothing() -> None:
    """The call of a step whose result has no elements."""


_CALLS: Mapping[str, Callable[..., Callable[[], Any]]] = {
    "dense": _call_dense,
    "conv": _call_conv,
    "product": _call_product,
    "online": _call_online,
    "loops": _call_loops,
}


class Context:
    """Memory and plans of one caller at a time."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.memory: Any = np.empty(0, np.uint8)
        self.plans: OrderedDict[tuple[int, ...], Ready] = OrderedDict()

    def run(self, dims: Mapping[str, int], given: Mapping[str, Any], out: Mapping[str, Any]) -> dict[str, Any]:
        """Copy the inputs in, run the steps, copy the outputs out."""
        calls, arrays = self._ready(dims)
        schedule = self.model.schedule
        for end in schedule.inputs:
            np.copyto(arrays[end.tensor], given[end.name])
        for call in calls:
            call()
        return {end.name: _delivered(self.model, end, arrays[end.tensor], out.get(end.name)) for end in schedule.outputs}

    def _ready(self, dims: Mapping[str, int]) -> Ready:
        key = tuple(dims.values())
        if key in self.plans:
            self.plans.move_to_end(key)
            return self.plans[key]
        sizes = self.model.schedule.values(dims)
        offsets, need = self.model.layout(sizes)
        if need > self.memory.size:
            self.plans.clear()  # their arrays lie in the old memory
            self.memory = _block(need)
        self.plans[key] = self.model.prepared(sizes, offsets, self.memory)
        if len(self.plans) > PLANS:
            self.plans.popitem(last=False)
        return self.plans[key]


def _block(count: int) -> Any:
    """Memory that begins at a cache line."""
    try:
        block = np.empty(count + 64, np.uint8)
    except (MemoryError, ValueError) as error:
        raise UsageError(f"a call of these sizes needs {count:,} bytes of working memory, which cannot be had") from error
    first = -block.ctypes.data % 64
    return block[first : first + count]


def _delivered(model: Model, end: End, array: Any, out: Any) -> Any:
    if out is None:
        return array.copy()
    if getattr(out, "shape", None) != array.shape or out.dtype != array.dtype:
        raise UsageError(
            f"{model.name}: out[{end.name!r}] must be {array.dtype} {array.shape}, got {getattr(out, 'shape', out)!r}"
        )
    np.copyto(out, array)
    return out


def _weight(name: str, one: Mapping[str, Any], blob: Any) -> Any:
    kind, shape = np.dtype(NUMPY.get(one["dtype"], one["dtype"])), tuple(one["shape"])
    start, count = one["offset"], int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if start < 0 or start + count > blob.size:
        raise PackInvalid(f"weight {name} lies outside the file of weights; restore the pack or tune again")
    return blob[start : start + count].view(kind).reshape(shape)


class Session:
    """A model under the names that ONNX Runtime uses."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def run(self, names: list[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Outputs in the order of ``names``; None: all."""
        found = self._model.run(feeds)
        unknown = [name for name in names or () if name not in found]
        if unknown:
            raise UsageError(f"{self._model.name} has no output {unknown[0]!r}; it has {', '.join(found)}")
        return [found[name] for name in names or found]

    def get_inputs(self) -> list[Argument]:
        """Inputs with names, shapes and types."""
        return [Argument(self._model, one) for one in self._model.schedule.inputs]

    def get_outputs(self) -> list[Argument]:
        """Outputs with names, shapes and types."""
        return [Argument(self._model, one) for one in self._model.schedule.outputs]


class Argument:
    """``name``, ``shape`` (names of dimensions where the request decides) and ``type`` of an input or output."""

    def __init__(self, model: Model, end: End) -> None:
        sizes = [model.schedule.sizes[place] for place in end.shape]
        self.name, self.type = (
            end.name,
            f"tensor({ {'float32': 'float', 'float64': 'double'}.get(NUMPY.get(end.dtype, end.dtype), end.dtype) })",
        )
        self.shape = [line[1] if line[0] in ("dim", "number") else None for line in sizes]
