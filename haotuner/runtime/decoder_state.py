"""DecoderState: the keys and values of a sequence in buffers that grow, so that a step copies its own rows alone."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Keys and values of the tokens so far. A call passes no past and gets no present; ``length`` says how many there are.

    One state serves one sequence of calls: a call while another runs is a UsageError. Several states may run at once.
    """

    def __init__(self, model: Model, max_length: SupportsIndex | None, dims: Mapping[str, int]) -> None:
        """See ``Model.state``."""
        self._model, self._bound = model, model.current()
        self._caches = caches_of(self._bound)
        self._max_length = None if max_length is None else _whole("max_length", max_length)
        self._told, self._dims = dict(dims), dict[str, int]()
        self._buffers: list[Any] = []
        self._length = self._capacity = 0
        self._running = threading.Lock()
        unknown = [name for name in dims if name not in {dim for cache in self._caches for dim in cache.dims}]
        if unknown:
            names = ", ".join(dict.fromkeys(dim for cache in self._caches for dim in cache.dims)) or "no dimensions"
            raise UsageError(f"{model.name}: caches have {names}; there is no {unknown[0]}")

    def __repr__(self) -> str:
        return f"<state of {self._model.name}: {self._length} of {self._capacity} rows, {self.nbytes} bytes>"

    @property
    def length(self) -> int:
        """Tokens whose keys and values are there."""
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
        """By input the rows that are there: views, which the next call writes behind."""
        return {
            cache.end.name: self._rows(buffer, cache, self._length)
            for cache, buffer in zip(self._caches, self._buffers, strict=False)
        }

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs of the next tokens by name, without the caches. UsageError names what was expected and what was found.

        After an error the state is as it was before the call.
        """
        with self._alone():
            bound = self._current()
            self._settle(bound, inputs)
            pasts = {c.past: self._rows(b, c, self._length) for c, b in zip(self._caches, self._buffers, strict=True)}
            arguments = bound.arguments(inputs, pasts)
            shapes = bound.answer_shapes(arguments)
            rows = max(shapes[cache.present][cache.axis] for cache in self._caches)
            if rows > self._capacity:
                self._grow(rows)
                for cache, buffer in zip(self._caches, self._buffers, strict=True):
                    arguments[cache.past] = self._rows(buffer, cache, self._length)
            made = {c.present: self._rows(b, c, rows) for c, b in zip(self._caches, self._buffers, strict=True)}
            result = bound.run_in_buffers(arguments, shapes, [cache.past for cache in self._caches], made, out)
            self._length = rows
            return result

    def truncate(self, length: SupportsIndex) -> None:
        """Forget all tokens but the first ``length``: a draft that was refused, say."""
        count = _whole("length", length)
        with self._alone():
            if count > self._length:
                raise UsageError(f"{self._model.name}: the state has {self._length} tokens, it cannot be cut to {count}")
            self._length = count

    def reset(self) -> None:
        """Forget all tokens. The buffers stay, for calls of the same batch."""
        self.truncate(0)

    def copy(self) -> DecoderState:
        """Another state with the same tokens, in buffers of its own."""
        return self._with(lambda rows: rows)

    def select(self, rows: Sequence[int]) -> DecoderState:
        """Another state with these rows of the batch (axis 0 of every cache), in any order, also repeated: beams, say."""
        chosen = [operator.index(row) for row in rows]
        most = min((int(buffer.shape[0]) for buffer in self._buffers), default=0)
        if not chosen or any(not 0 <= row < most for row in chosen) or any(cache.axis == 0 for cache in self._caches):
            raise UsageError(f"{self._model.name}: rows {chosen} of a batch of {most}; pass some of 0..{most - 1}")
        result = self._with(lambda own: own[chosen])
        for cache in self._caches:
            first = cache.end.shape[0]
            if isinstance(first, str):
                result._dims[first] = len(chosen)
                result._told.pop(first, None)
        return result

    def _with(self, rows_of: Any) -> DecoderState:
        result = DecoderState(self._model, self._max_length, self._told)
        with self._alone():
            result._dims, result._length, result._capacity = dict(self._dims), self._length, self._capacity
            for cache, buffer in zip(self._caches, self._buffers, strict=False):
                own = rows_of(self._rows(buffer, cache, self._length))
                made = np.empty((*own.shape[: cache.axis], self._capacity, *own.shape[cache.axis + 1 :]), buffer.dtype)
                self._rows(made, cache, self._length)[...] = own
                result._buffers.append(made)
        return result

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._running.acquire(blocking=False):
            raise UsageError(f"{self._model.name}: a call of this state runs in another thread; use one state a sequence")
        try:
            yield
        finally:
            self._running.release()

    def _current(self) -> ModelBound:
        """The model that serves a call now; UsageError where it was handed over to a pack with other caches."""
        bound = self._model.current()
        if bound is not self._bound:
            own = [(cache.past, cache.present, cache.axis) for cache in caches_of(bound)]
            if own != [(cache.past, cache.present, cache.axis) for cache in self._caches]:
                raise UsageError(f"{bound.name}: the pack that it was handed over to has other caches; begin a new state")
            self._bound = bound
        return bound

    def _settle(self, bound: ModelBound, inputs: Mapping[str, Any]) -> None:
        """Buffers for a call of these inputs."""
        names = [cache.end.name for cache in self._caches if cache.end.name in inputs]
        if names:
            raise UsageError(f"{bound.name}: {names[0]} is in the state; pass the other inputs alone")
        dims = self._told | _dims(bound.inputs, inputs)
        lacking = [dim for cache in self._caches for dim in cache.dims if dim not in dims]
        if lacking:
            raise UsageError(f"{bound.name}: no other input says what {lacking[0]} is; pass model.state({lacking[0]}=…)")
        own = {dim: dims[dim] for cache in self._caches for dim in cache.dims}
        if self._buffers and own == self._dims:
            return
        if self._length:
            name = next(dim for dim in own if own[dim] != self._dims[dim])
            raise UsageError(
                f"{bound.name}: {name} is {own[name]}, but {self._dims[name]} in the {self._length} tokens of the state; "
                "reset it, or select rows of it"
            )
        self._dims = own
        self._capacity = self._max_length or bound.largest(self._dim_that_grows()) or 1
        self._buffers = [np.empty(cache.shape(own, self._capacity), cache.end.dtype) for cache in self._caches]

    def _dim_that_grows(self) -> str:
        cache = self._caches[0]
        return str(cache.end.shape[cache.axis])

    def _grow(self, rows: int) -> None:
        """Room for so many rows, twice what there was at least."""
        if self._max_length is not None:
            raise UsageError(
                f"{self._model.name}: {self._length} tokens and {rows - self._length} more are over max_length="
                f"{self._max_length}; truncate or reset the state, or begin one that is longer"
            )
        capacity = max(rows, 2 * self._capacity)
        try:
            larger = [np.empty(cache.shape(self._dims, capacity), cache.end.dtype) for cache in self._caches]
        except (MemoryError, ValueError) as error:
            raise UsageError(f"{self._model.name}: buffers for {capacity} tokens cannot be had: {error}") from error
        for cache, old, new in zip(self._caches, self._buffers, larger, strict=True):
            self._rows(new, cache, self._length)[...] = self._rows(old, cache, self._length)
        self._buffers, self._capacity = larger, capacity

    @staticmethod
    def _rows(buffer: Any, cache: Cache, count: int) -> Any:
        return buffer[(slice(None),) * cache.axis + (slice(0, count),)]


def _dims(ends: Iterable[NativeEnd], inputs: Mapping[str, Any]) -> dict[str, int]:
    """Dimensions that inputs say by their shapes; one that is not right is refused when it is read."""
    result = dict[str, int]()
    for end in ends:
        shape = getattr(inputs.get(end.name), "shape", ())
        if len(shape) == len(end.shape):
            result |= {name: int(size) for name, size in zip(end.shape, shape, strict=True) if isinstance(name, str)}
    return result


def _whole(name: str, value: SupportsIndex) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if count < 0 or isinstance(value, bool):
        raise UsageError(f"{name}={value!r} must be a whole number from 0 on")
    return count
