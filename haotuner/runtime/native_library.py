"""A pack's library as ctypes maps it: whole models are called without tvm-ffi, which imports torch where there is one."""

from __future__ import annotations

import _ctypes
import ctypes
import importlib
import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import EnvironmentMissing, HaotunerError, PackInvalid, UsageError
from haotuner.runtime.arrays import (
    ARRAYS,
    NAMES,
    GrowingTensors,
    Handed,
    address,
    addressed_types,
)
from haotuner.runtime.compiled_schedules import VERSION as COMPILED_VERSION
from haotuner.runtime.compiled_schedules import CompiledSchedules
from haotuner.runtime.reprs import described_end
from haotuner.spec.bytecode import words_of

_VERSION = 2  # of runtime/native/model/model_api.h
_LARGEST_EXTENT = 1 << 40  # as runtime/native/model/model.h
_AXES = 16
_TEXT = 320
_ARRAYS_AT = 4  # words ahead of the arrays in an ht_model_arrays
_P, _I = ctypes.c_void_p, ctypes.c_int
_SAID = (_P, _P, ctypes.c_size_t)  # kind, text, room
PLACE = ctypes.CFUNCTYPE(_P, _P, _I, _P)  # of model/model_api.h: where an output is to lie
_MEMBERS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "compiled_words": (_P, (_I, _P)),
    "open": (_I, (_P, ctypes.c_int64, _I, _I, _I, _I, _P, *_SAID)),
    "close": (None, (_P,)),
    "name": (ctypes.c_char_p, (_P,)),
    "dim": (ctypes.c_char_p, (_P, _I)),
    "end": (None, (_P, _I, _I, _P)),
    "memory": (_I, (_P, _P, _P, *_SAID)),
    "shapes": (_I, (_P, _P, _P, *_SAID)),
    "run": (_I, (_P, _P, _P, *_SAID)),
    "held": (None, (_P, _P)),
    "trim": (None, (_P,)),
}


class _ModelApi(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_int32),
        ("compiled", ctypes.c_int32),
        *((name, ctypes.CFUNCTYPE(result, *item)) for name, (result, item) in _MEMBERS.items()),
    ]


class _Facts(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("code", ctypes.c_int32), ("bits", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("extents", ctypes.c_int64 * _AXES), ("dims", ctypes.c_char_p * _AXES),
    ]  # fmt: skip


class NativeLibrary:
    """A library, mapped as long as this lives or one of its models is open."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise PackInvalid(f"{path} cannot be loaded: {error}; tune again or restore the pack") from error
        weakref.finalize(self, _ctypes.dlclose, library._handle).atexit = False
        try:
            enter = library.ht_pack_models
        except AttributeError as error:
            raise PackInvalid(f"{path} serves no whole models, as its manifest says; tune again") from error
        enter.restype = ctypes.POINTER(_ModelApi)
        self.door: Any = enter().contents
        self.times: Any = getattr(library, "ht_pack_model_times", None)  # packs made before it have none
        if self.times is not None:
            self.times.argtypes, self.times.restype = (_P, _P, _P, _P, *_SAID), _I
        self.placed: Any = getattr(
            library, "ht_pack_model_run_placed", None
        )  # packs made before it serve no chains by one call
        if self.placed is not None:
            self.segment: Any = library.ht_pack_model_segment
            self.placed.argtypes, self.placed.restype = (_P, _P, _P, PLACE, _P, _P, *_SAID), _I
            self.segment.argtypes, self.segment.restype = (_P, _I, _P), ctypes.c_char_p
        self.default: Any = getattr(library, "ht_pack_model_default", None)  # packs made before it have none
        if self.default is not None:
            self.default.argtypes, self.default.restype = (_P, _I, _P), _P
        self.limit: Any = getattr(library, "ht_pack_model_limit", None)  # packs made before it bound no request
        if self.limit is not None:
            self.limit.argtypes, self.limit.restype = (_P, ctypes.c_int64), None
        self.expected: Any = getattr(library, "ht_pack_model_expected", None)  # packs made before it say no times
        if self.expected is not None:
            self.expected.argtypes, self.expected.restype = (_P, _P, _P, *_SAID), _I
        self.addressed = frozenset[str]()  # types of arrays that it takes by address
        self.run_arrays: Any = getattr(library, "ht_pack_model_run_arrays", None)  # packs made before it take tensors alone
        if self.run_arrays is not None:
            self.run_arrays.argtypes, self.run_arrays.restype = (_P,), _I
            self.addressed = _addressed_types(library.ht_pack_model_arrays_agree)
        if self.door.version not in (COMPILED_VERSION, _VERSION):
            raise PackInvalid(
                f"{path} speaks version {self.door.version} of models, this haotuner {_VERSION}; tune again with it"
            )
        self.compiled = CompiledSchedules(library, self.door)

    def open_model(
        self, name: str, words: array[int] | None, weights: int, check: bool, device: int | None, threads: int, *out: Any
    ) -> int:
        """Open a model: 0, or another number where it is refused. ``out``: addresses of the handle, kind and text; room.

        ``words``: those of its bytecode, which outlive the model; None where the library holds its schedule.
        """
        if words is None:
            return self.compiled.open_model(name, weights, check, device, threads, *out)
        if self.door.version != _VERSION:
            raise PackInvalid(f"the pack's library runs no bytecode, as its manifest says of {name}; tune again")
        door = self.door
        return int(door.open(words.buffer_info()[0], len(words), weights, check, device or 0, threads, *out))


def _addressed_types(agree: Any) -> frozenset[str]:
    """Types of whose arrays a library finds in this process, by ``id``, what their tensors say."""
    agree.argtypes, agree.restype = (ctypes.c_int64, ctypes.c_char_p), _I

    def tensor_of(array_: Any) -> GrowingTensors:
        tensor = Handed([array_.dtype]).growing([array_.ndim])
        tensor.put(0, array_, 0)
        return tensor

    return addressed_types(lambda at, tensor: agree(at, tensor.packed([None], 3)), tensor_of)


class NativeEnd:
    """An input or output: ``shape`` has a number, the name of a dimension, or None for what follows from others.

    ``default``: what a call without this input computes with; None where it must be there.
    """

    default: Any = None

    def __init__(self, facts: _Facts) -> None:
        self.name = facts.name.decode()
        self.dtype = _numpy(NAMES[facts.code, facts.bits], self.name)
        self.rank: int = facts.rank
        self.shape: tuple[int | str | None, ...] = tuple(
            facts.extents[a] if facts.extents[a] >= 0 else facts.dims[a].decode() if facts.dims[a] else None
            for a in range(facts.rank)
        )

    def __repr__(self) -> str:
        return f"<{described_end(self)}>"


class _ErrorText:
    """Buffers of the library's message on what was wrong with a call."""

    def __init__(self) -> None:
        self.kind, self.text = ctypes.c_char_p(), ctypes.create_string_buffer(_TEXT)
        self.at = ctypes.addressof(self.kind), ctypes.addressof(self.text)

    def error(self) -> HaotunerError:
        """The message as an error of its kind."""
        words = self.text.value.decode(errors="replace")
        return HaotunerError(words) if self.kind.value == b"RuntimeError" else UsageError(words)


class _ArraysCall:
    """A call of a model's arrays by ``id``; one at a time."""

    def __init__(self, function: Callable[[int], int], model: int, count: int) -> None:
        self.error_text, self._function = _ErrorText(), function
        self._words = array("q", (model, *self.error_text.at, _TEXT, *(0 for _ in range(count))))
        self._at, _ = self._words.buffer_info()

    def answer(self, arrays: Sequence[Any]) -> int:
        """The library's answer: 0, 1 where it must be handed tensors, or another number where it refuses."""
        words, position = self._words, _ARRAYS_AT
        for array_ in arrays:
            words[position] = id(array_)
            position += 1
        return self._function(self._at)


class NativeModel:
    """An open model. Calls may come from any thread; each has memory of its own."""

    def __init__(
        self,
        mapped: NativeLibrary,
        name: str,
        bytecode: bytes | None,
        weights: int,
        threads: int,
        device: int | None = None,
        *,
        check: bool = True,
    ) -> None:
        """``weights``: an open file, which may be closed afterwards. PackInvalid where the schedule or it is not sound.

        ``bytecode``: None where the library holds the schedule of this name.
        ``device``: the number of the GPU that it runs on, ``threads`` then 1, or 2 by plans for another kind of GPU.
        ``check``: whether the weights are compared with their checksums.
        """
        self._mapped, door, error_text = mapped, mapped.door, _ErrorText()
        handle = _P()
        arguments = ctypes.addressof(handle), *error_text.at, _TEXT
        try:
            bytecode_words = None if bytecode is None else words_of(bytecode)
        except ValueError as error:
            raise PackInvalid(f"the bytecode of {name} is cut ({error}); restore the pack or tune again") from error
        failed = mapped.open_model(name, bytecode_words, weights, check, device, threads, *arguments)
        if failed:
            words = error_text.text.value.decode(errors="replace")
            known = error_text.kind.value == b"RuntimeError"
            raise HaotunerError(words) if device is not None and not known else PackInvalid(words)
        self._handle, self._error_text = handle, [error_text]
        self._run, self._shapes = door.run, door.shapes  # which ctypes makes anew each time
        weakref.finalize(self, _close, mapped, handle, bytecode_words).atexit = False
        self.name: str = door.name(handle).decode()
        self.dims = tuple(item.decode() for item in _until_none(lambda i: door.dim(handle, i)))
        self.inputs, self.outputs = ([NativeEnd(item) for item in _until_none(self._facts(kind))] for kind in (0, 1))
        for position, end in enumerate(self.inputs):
            end.default = self._default(position, end)
        self._input_cache, self._output_cache = (Handed([end.dtype for end in ends]) for ends in (self.inputs, self.outputs))
        self._array_calls: list[_ArraysCall] = []
        types = {end.dtype.name for end in (*self.inputs, *self.outputs)}
        self._by_address = types <= mapped.addressed and device is None

    @property
    def address(self) -> int:
        """By which the library knows it."""
        return int(self._handle.value or 0)

    def _facts(self, output: int) -> Callable[[int], _Facts | None]:
        def facts(index: int) -> _Facts | None:
            result = _Facts()
            self._mapped.door.end(self._handle, output, index, ctypes.addressof(result))
            return result if result.name is not None else None

        return facts

    def _default(self, index: int, end: NativeEnd) -> Any:
        """A copy of the input's default; None where it has none."""
        shape = ctypes.POINTER(ctypes.c_int64)()
        default = self._mapped.default
        at = None if default is None else default(self._handle, index, ctypes.addressof(shape))
        if at is None:
            return None
        extents = tuple(shape[: end.rank])
        raw = ctypes.string_at(at, int(np.prod(extents, dtype=np.int64)) * end.dtype.itemsize)
        return np.frombuffer(raw, end.dtype).reshape(extents).copy()

    def _call(self, function: Callable[..., int], first: int | bytes, second: int | bytes) -> None:
        try:
            error_text = self._error_text.pop()
        except IndexError:  # as many as there were calls at once
            error_text = _ErrorText()
        try:
            if function(self._handle, first, second, *error_text.at, _TEXT):
                raise error_text.error()
        finally:
            self._error_text.append(error_text)

    def memory(self, dims: list[int]) -> int:
        """Bytes of working memory of a call with these dimensions. UsageError where one is no size of a tensor."""
        for name, size in zip(self.dims, dims, strict=True):
            if not 0 <= size <= _LARGEST_EXTENT:
                raise UsageError(f"{self.name}: {name}={size} is no size of a tensor; 0 to {_LARGEST_EXTENT} are")
        dims_array, result = np.array(dims, np.int64), np.zeros(1, np.int64)
        self._call(self._mapped.door.memory, address(dims_array), address(result))
        return int(result[0])

    def expected_us(self, dims: Sequence[int]) -> tuple[float, float, float]:
        """Microseconds of a call with these dimensions: lower end of a band, expected, upper end. UsageError if unknown."""
        if self._mapped.expected is None:
            raise UsageError(f"the pack of {self.name} was made before it could tell times; tune again with this haotuner")
        sizes, result = array("q", dims), array("d", (0.0, 0.0, 0.0))
        self._call(self._mapped.expected, sizes.buffer_info()[0], result.buffer_info()[0])
        low, expected, high = result
        return low, expected, high

    def shapes(self, inputs: list[Any]) -> list[tuple[int, ...]]:
        """Shapes of the outputs that these inputs make."""
        addresses = self._input_cache.of(inputs)
        return self.shapes_of(addresses.packed(inputs))

    def shapes_of(self, inputs: bytes) -> list[tuple[int, ...]]:
        """Shapes of the outputs that packed inputs make."""
        result = array("q", bytes(8 * max(1, sum([end.rank for end in self.outputs]))))
        self._call(self._shapes, inputs, result.buffer_info()[0])
        shapes, rest = [], result.tolist()
        for end in self.outputs:
            shapes.append(tuple(rest[: end.rank]))
            rest = rest[end.rank :]
        return shapes

    def run(self, inputs: list[Any], outputs: list[Any]) -> None:
        """All steps; the arrays are contiguous, in the model's order. UsageError in the library's words."""
        arrays = [*inputs, *outputs]
        if not ARRAYS.issuperset(map(type, arrays)) or not self.run_arrays(arrays):  # numpy's scalars are no arrays
            self.run_packed(self._input_cache.of(inputs).packed(inputs), self._output_cache.of(outputs).packed(outputs))

    def run_arrays(self, arrays: Sequence[Any]) -> bool:
        """As ``run``, of numpy's own arrays, inputs first; False where they must be handed over as tensors.

        The library looks at types of elements, order and shapes itself, and takes it that each is an array: the caller
        has looked whether ``ARRAYS`` has the types of all. UsageError in its words.
        """
        if not self._by_address:
            return False
        try:
            call = self._array_calls.pop()
        except IndexError:  # as many as there were calls at once
            call = _ArraysCall(self._mapped.run_arrays, self.address, len(arrays))
        try:
            answer = call.answer(arrays)
            if answer < 0:
                raise call.error_text.error()
            return answer == 0
        finally:
            self._array_calls.append(call)

    def growing(self) -> tuple[GrowingTensors, GrowingTensors]:
        """Inputs and outputs of calls of which some are rows of buffers."""
        ends = ((self._input_cache, self.inputs), (self._output_cache, self.outputs))
        first, second = (cache.growing([end.rank for end in side_ends]) for cache, side_ends in ends)
        return first, second

    def run_packed(self, inputs: bytes, outputs: bytes) -> None:
        """As ``run``, of packed tensors."""
        self._call(self._run, inputs, outputs)

    def times_us(self, inputs: list[Any], outputs: list[Any], steps: int) -> list[float]:
        """As ``run``: the microseconds of every step of the schedule."""
        if self._mapped.times is None:
            raise UsageError(f"the pack of {self.name} was made before steps were timed; tune again with this haotuner")
        arguments, made, taken = (
            self._input_cache.of(inputs),
            self._output_cache.of(outputs),
            np.zeros(max(1, steps), np.int64),
        )

        def timed(*call: Any) -> int:
            handle, first, second, *rest = call
            return int(self._mapped.times(handle, first, second, address(taken), *rest))

        self._call(timed, arguments.packed(inputs), made.packed(outputs))
        return [float(time_us) / 1e3 for time_us in taken.tolist()[:steps]]

    def segments(self) -> list[str]:
        """Names of a chain's segments, in the order they run; of other models none."""
        return [item.decode() for item in _until_none(lambda i: self._mapped.segment(self._handle, i, None))]

    def link(self, index: int, segment: NativeModel) -> None:
        """Have a chain call this open model, which must outlive it."""
        self._mapped.segment(self._handle, index, segment.address)

    def run_placed(self, inputs: list[Any], seed: int | None, made: Callable[[int, tuple[int, ...]], Any]) -> list[int]:
        """All of a chain in one call; ``made``: an array for an output of this place and shape. Returns all dimensions.

        UsageError in the library's words, or what ``made`` raised.
        """
        arguments, dims = self._input_cache.of(inputs), np.zeros(max(1, len(self.dims)), np.int64)
        seeds = None if seed is None else np.array([seed % (1 << 64)], np.uint64)
        raised: list[BaseException] = []

        def place(_: int | None, output: int, rank: int) -> int | None:
            try:
                return address(made(output, shape_at(rank, self.outputs[output].rank)))
            except BaseException as error:  # nothing may be raised through C
                raised.append(error)
                return None

        def placed(*call: Any) -> int:
            handle, first, _, *rest = call
            at = None if seeds is None else address(seeds)
            return int(self._mapped.placed(handle, first, at, PLACE(place), None, address(dims), *rest))

        try:
            self._call(placed, arguments.packed(inputs), 0)
        except HaotunerError:
            if raised:
                raise raised[0] from None
            raise
        return [int(dim) for dim in dims[: len(self.dims)]]

    def counters(self) -> dict[str, int]:
        """Counts of calls, and what is held, by name."""
        counts = np.zeros(5, np.int64)
        self._mapped.door.held(self._handle, address(counts))
        return dict(zip(("calls", "plans", "contexts", "arena_bytes", "packed_bytes"), counts.tolist(), strict=True))

    def limit(self, most_bytes: int) -> None:
        """Refuse later requests whose working memory and outputs take more bytes. UsageError of packs made before."""
        if self._mapped.limit is None:
            raise UsageError(
                f"the pack of {self.name} was made before requests could be bounded; tune again with this haotuner, or load "
                "it without max_request_bytes"
            )
        self._mapped.limit(self._handle, most_bytes)

    def trim(self) -> None:
        """Give back the working memory that no call uses."""
        self._mapped.door.trim(self._handle)


_SHAPE_AT = 24  # bytes into a DLTensor


def shape_at(tensor: int, rank: int) -> tuple[int, ...]:
    """The shape of the DLTensor at an address."""
    return tuple(ctypes.cast(tensor + _SHAPE_AT, ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))).contents[:rank])


def _numpy(name: str, tensor: str) -> np.dtype[Any]:
    if not hasattr(np, name):
        with suppress(ImportError):
            importlib.import_module("ml_dtypes")  # tells numpy of bf16
    try:
        return np.dtype(name)
    except TypeError as error:
        raise EnvironmentMissing(f"{tensor} is {name}, which numpy alone has not; pip install ml_dtypes") from error


def _until_none(function: Callable[[int], Any]) -> list[Any]:
    every: list[Any] = []
    while (value := function(len(every))) is not None:
        every.append(value)
    return every


def _close(mapped: NativeLibrary, handle: Any, _words: array[int] | None) -> None:
    """Close a model, whose words live until then."""
    mapped.door.close(handle)
