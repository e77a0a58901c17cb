"""DecoderState: the keys and values of a sequence in buffers that grow, so that a step copies its own rows alone."""

from __future__ import annotations

import operator
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from haotuner.errors import UsageError
from haotuner.runtime.native_library import NativeEnd

if TYPE_CHECKING:
    from haotuner.runtime.model import Model
    from haotuner.runtime.model_bound import ModelBound


@dataclass(frozen=True, slots=True)
class Cache:
    """Input ``past`` and output ``present`` of a model, by their numbers; ``axis``: the one that grows."""

    past: int
    present: int
    axis: int
    end: NativeEnd  # of the input

    def shape(self, dims: Mapping[str, int], rows: int) -> tuple[int, ...]:
        """Shape of so many rows. KeyError of a dimension that is not known."""
        extents = [dims[extent] if isinstance(extent, str) else extent or 0 for extent in self._outer]
        return (*extents[: self.axis], rows, *extents[self.axis + 1 :])

    def rows(self, buffer: Any, count: int) -> Any:
        """The first rows of a buffer."""
        return buffer[(slice(None),) * self.axis + (slice(0, count),)]

    @property
    def dims(self) -> list[str]:
        """Names of its dimensions, but of the one that grows."""
        return [extent for extent in self._outer if isinstance(extent, str)]

    @property
    def _outer(self) -> list[int | str | None]:
        return [0 if axis == self.axis else extent for axis, extent in enumerate(self.end.shape)]


def caches_of(bound: ModelBound) -> list[Cache]:
    """The caches of a model. UsageError where it has none."""
    table = bound.document.get("caches", {}).get("table", [])
    if not table:
        raise UsageError(
            f"{bound.name} has no state: none of its inputs is, with the rows of a call behind it, an output that kernels "
            "read at strides; call model.run with past keys and values"
        )
    return [Cache(past, present, axis, bound.inputs[past]) for past, present, axis in table]


class DecoderState:
    """Keys and values of the tokens so far, ``length`` of them. A call passes no past and gets no present.

    One state serves one sequence of calls: a call while another runs is a UsageError. Several states may run at once.
    """

    def __init__(self, model: Model, max_length: SupportsIndex | None, dims: Mapping[str, int]) -> None:
        """See ``Model.state``."""
        self._model, self._bound = model, model.current()
        self._caches = caches_of(self._bound)
        self._names = frozenset(cache.end.name for cache in self._caches)
        self._presents = frozenset(self._bound.outputs[cache.present].name for cache in self._caches)
        self._max_length = None if max_length is None else _checked_count("max_length", max_length)
        self._passed_dims = dict(dims)
        self._sizes: tuple[int, ...] | None = None  # of the caches' dimensions, which the buffers are for
        self._dims = tuple(dict.fromkeys(dim for cache in self._caches for dim in cache.dims))
        self._sources = {dim: _source(self._bound.inputs, self._names, dim) for dim in self._dims}
        self._buffers: list[Any] = []
        self._length = self._capacity = 0
        self._running = threading.Lock()
        self._tensors = self._bound.native.growing()
        unknown = [name for name in dims if name not in self._dims]
        if unknown:
            names = ", ".join(self._dims) or "no dimensions"
            raise UsageError(f"{model.name}: caches have {names}; there is no {unknown[0]}")

    def __repr__(self) -> str:
        return f"<state of {self._model.name}: {self._length} of {self._capacity} rows, {self.nbytes} bytes>"

    @property
    def length(self) -> int:
        """Tokens whose keys and values are in the buffers."""
        return self._length

    @property
    def capacity(self) -> int:
        """Tokens that the buffers have room for; 0 before the first call. They grow where no ``max_length`` was passed."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(int(buffer.nbytes) for buffer in self._buffers)

    def caches(self) -> dict[str, Any]:
        """Rows of the tokens so far by input: views, behind which the next call writes."""
        buffers = zip(self._caches, self._buffers, strict=False)
        return {cache.end.name: cache.rows(buffer, self._length) for cache, buffer in buffers}

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs of the next tokens by name, without the caches. UsageError names expected and actual inputs.

        After an error the state is as it was before the call.
        """
        self._begin()  # a context manager would cost a call 3 us
        try:
            bound = self._current()
            if not self._names.isdisjoint(inputs):
                name = next(name for name in inputs if name in self._names)
                raise UsageError(f"{bound.name}: {name} is in the state; pass the other inputs alone")
            arguments = bound.arguments(inputs, self._names)
            self._settle(bound, arguments)
            read = self._tensors[0].packed(arguments, self._length)
            shapes = bound.native.shapes_of(read)
            first = self._caches[0]
            rows = shapes[first.present][first.axis]
            if rows > self._capacity:
                self._grow(rows)
                read = self._tensors[0].packed(arguments, self._length)
            outputs = bound.answers(shapes, out, self._presents)
            bound.native.run_packed(read, self._tensors[1].packed(outputs, rows))
            self._length = rows
            return bound.delivered(outputs, out)
        finally:
            self._running.release()

    def truncate(self, length: SupportsIndex) -> None:
        """Forget all tokens but the first ``length``: a draft that was refused, say."""
        count = _checked_count("length", length)
        with self._locked():
            if count > self._length:
                raise UsageError(f"{self._model.name}: the state has {self._length} tokens, it cannot be cut to {count}")
            self._length = count

    def reset(self) -> None:
        """Forget all tokens. The buffers stay, for calls of the same batch."""
        self.truncate(0)

    def copy(self) -> DecoderState:
        """Another state with the same tokens, in buffers of its own."""
        return self._with(None)

    def select(self, rows: Sequence[int]) -> DecoderState:
        """Another state with these rows of the batch (axis 0 of every cache), in any order, also repeated: beams, say."""
        chosen = [operator.index(row) for row in rows]
        most = min((int(buffer.shape[0]) for buffer in self._buffers), default=0)
        batches = {cache.end.shape[0] for cache in self._caches}
        batch = next(iter(batches))
        valid = chosen and all(0 <= row < most for row in chosen)
        if not self._buffers:
            raise UsageError(f"{self._model.name}: the state has no rows before its first call; run it, then select")
        if not valid or len(batches) > 1 or not isinstance(batch, str) or any(cache.axis == 0 for cache in self._caches):
            raise UsageError(f"{self._model.name}: rows {chosen} of a batch of {most}; pass some of 0..{most - 1}")
        result = self._with(chosen)
        if batch in result._passed_dims:
            result._passed_dims[batch] = len(chosen)
        return result

    def _with(self, chosen: list[int] | None) -> DecoderState:
        result = DecoderState(self._model, self._max_length, self._passed_dims)
        with self._locked():
            result._length, result._capacity = self._length, self._capacity
            buffers = []
            for cache, buffer in zip(self._caches, self._buffers, strict=False):
                copied = np.empty((buffer.shape[0] if chosen is None else len(chosen), *buffer.shape[1:]), buffer.dtype)
                rows = cache.rows(buffer, self._length)
                cache.rows(copied, self._length)[...] = rows if chosen is None else rows[chosen]
                buffers.append(copied)
            batch = None if chosen is None else self._caches[0].end.shape[0]
            sizes = None if self._sizes is None else zip(self._dims, self._sizes, strict=True)
            result._sizes = (
                None if sizes is None else tuple(size if dim != batch else len(chosen or ()) for dim, size in sizes)
            )
            result._put(buffers)
        return result

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._begin()
        try:
            yield
        finally:
            self._running.release()

    def _begin(self) -> None:
        if not self._running.acquire(blocking=False):
            raise UsageError(f"{self._model.name}: a call of this state runs in another thread; use one state a sequence")

    def _current(self) -> ModelBound:
        """The model that serves a call now; UsageError where it was handed over to a pack with other caches."""
        bound = self._model.current()
        if bound is not self._bound:
            caches = [(cache.past, cache.present, cache.axis) for cache in caches_of(bound)]
            if caches != [(cache.past, cache.present, cache.axis) for cache in self._caches]:
                raise UsageError(f"{bound.name}: the pack that it was handed over to has other caches; begin a new state")
            self._bound, self._tensors = bound, bound.native.growing()
            self._put(self._buffers)
        return bound

    def _settle(self, bound: ModelBound, arguments: list[Any]) -> None:
        """Buffers for a call of these inputs."""
        try:
            sizes = tuple(
                [
                    self._passed_dims[dim] if source is None else arguments[source[0]].shape[source[1]]
                    for dim, source in self._sources.items()
                ]
            )
        except KeyError as error:
            raise UsageError(
                f"{bound.name}: no other input says what {error.args[0]} is; pass model.state({error.args[0]}=…)"
            ) from error
        except IndexError:
            sizes = self._sizes or (1,) * len(self._dims)  # the library says which input has other axes
        if sizes == self._sizes:
            return
        if self._length and self._sizes is not None:
            name, new, old = next(item for item in zip(self._dims, sizes, self._sizes, strict=True) if item[1] != item[2])
            raise UsageError(
                f"{bound.name}: {name} is {new}, but {old} in the {self._length} tokens of the state; reset it, or select "
                "rows of it"
            )
        for dim, size in zip(self._dims, sizes, strict=True):
            if self._passed_dims.get(dim, size) != size:
                passed = self._passed_dims[dim]
                raise UsageError(
                    f"{bound.name}: {dim} is {size} in the inputs, and the state was made with {dim}={passed}; "
                    f"make another state, or pass inputs of {passed}"
                )
        first = self._caches[0]
        capacity = self._max_length or bound.largest(str(first.end.shape[first.axis])) or 1
        self._put(self._new(sizes, capacity))
        self._sizes, self._capacity = sizes, capacity

    def _new(self, sizes: tuple[int, ...], capacity: int) -> list[Any]:
        dims = dict(zip(self._dims, sizes, strict=True))
        try:
            return [np.empty(cache.shape(dims, capacity), cache.end.dtype) for cache in self._caches]
        except (MemoryError, ValueError) as error:
            raise UsageError(f"{self._model.name}: buffers for {capacity} tokens cannot be had: {error}") from error

    def _put(self, buffers: list[Any]) -> None:
        """Buffers of the next calls."""
        for cache, buffer in zip(self._caches, buffers, strict=False):
            self._tensors[0].put(cache.past, buffer, cache.axis)
            self._tensors[1].put(cache.present, buffer, cache.axis)
        self._buffers = buffers

    def _grow(self, rows: int) -> None:
        """Room for so many rows, at least twice as many as before."""
        if self._max_length is not None:
            raise UsageError(
                f"{self._model.name}: {self._length} tokens and {rows - self._length} more are over max_length="
                f"{self._max_length}; truncate or reset the state, or begin one that is longer"
            )
        capacity = max(rows, 2 * self._capacity)
        larger = self._new(self._sizes or (), capacity)
        for cache, old, new in zip(self._caches, self._buffers, larger, strict=True):
            cache.rows(new, self._length)[...] = cache.rows(old, self._length)
        self._put(larger)
        self._capacity = capacity


def _source(ends: Sequence[NativeEnd], caches: Collection[str], dim: str) -> tuple[int, int] | None:
    """An input, by its number, and the axis of it that has a dimension's size."""
    axes = ((index, end.shape.index(dim)) for index, end in enumerate(ends) if end.name not in caches and dim in end.shape)
    return next(axes, None)


def _checked_count(name: str, value: SupportsIndex) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if count < 0 or isinstance(value, bool):
        raise UsageError(f"{name}={value!r} must be a whole number from 0 on")
    return count
