"""ModelBound: a whole model of one open pack, with its files checked and its weights packed there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from math import prod
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from haotuner.errors import PackInvalid, UsageError
from haotuner.host.files import open_regular
from haotuner.pack.folder import MODELS, SIZE_LIMIT_BYTES, Folder, steadily
from haotuner.pack.manifest import Manifest, ModelFiles
from haotuner.runtime.arrays import ARRAYS
from haotuner.runtime.expected_us import ExpectedTimes, ExpectedUs
from haotuner.runtime.host_memory import MANY, OutputPool
from haotuner.runtime.native_library import NativeEnd, NativeLibrary, NativeModel
from haotuner.runtime.reprs import described_model
from haotuner.runtime.schedule import ExecutionPlan

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


@dataclass(frozen=True, slots=True)
class OpenModel:
    """``schedule``: the document's bytes, from the file ``where``; ``weights``: an open file.

    ``bytecode``: the same schedule as a library runs it; None where the manifest names none.
    """

    schedule: bytes
    bytecode: bytes | None
    where: str
    weights: int


@contextmanager
def opened_model(pack: Path, manifest: Manifest, name: str, *, hashed: bool = False) -> Iterator[OpenModel]:
    """A model's files; the weights stay open inside. PackInvalid where one is missing or not what the manifest says.

    ``hashed``: whether to compare the weights' sha256, as nobody else does for libraries that hold no checksums of them.
    """
    files, pack = manifest.models[name], (pack / manifest.library).parent.parent  # of one level of a merged pack: its folder
    schedule, bytecode = steadily(pack, lambda folder: _schedule(folder, files))
    where = pack / MODELS / files.weights
    with opened_weights(where, files) as weights:
        if hashed and hashlib.file_digest(weights, "sha256").hexdigest() != files.weights_sha256:
            raise PackInvalid(f"{where}: its sha256 is not the one in the manifest; restore the pack or tune again")
        yield OpenModel(schedule, bytecode, str(pack / MODELS / files.schedule), weights.fileno())


def opened_weights(where: Path, files: ModelFiles) -> BufferedReader:
    """The file of weights, of the right size, open. PackInvalid where it is missing or another one."""
    try:
        weights = open_regular(where, files.weights_bytes, follow=False)
    except OSError as error:
        raise PackInvalid(f"{where} cannot be read ({error.strerror}); restore the pack or tune again") from error
    if os.fstat(weights.fileno()).st_size != files.weights_bytes:
        weights.close()
        raise PackInvalid(f"{where} is not the file that the manifest names; restore the pack or tune again")
    return weights


def _schedule(folder: Folder, files: ModelFiles) -> tuple[bytes, bytes | None]:
    schedule = _checked(folder, files.schedule, files.schedule_sha256)
    return schedule, _checked(folder, files.bytecode, files.bytecode_sha256) if files.bytecode else None


def _checked(folder: Folder, name: str, sha256: str) -> bytes:
    path = folder.path / MODELS / name
    try:
        with folder.inner(MODELS) as inner:
            raw = inner.read(name, SIZE_LIMIT_BYTES)
    except (OSError, ValueError) as error:
        raise PackInvalid(f"{path} cannot be read ({error}); restore the pack or tune again") from error
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise PackInvalid(f"{path}: its sha256 is not the one in the manifest; restore the pack or tune again")
    return raw


SHAPES = 256  # of requests whose outputs' shapes are kept


_SHAPE = attrgetter("shape")


class _Known:
    """Facts of requests of certain shapes. ``outside``: 1 out of the tuned ranges; ``large``: whether answers are pooled."""

    __slots__ = ("_types", "large", "outside", "shapes")

    def __init__(self, shapes: list[tuple[int, ...]], types: Sequence[np.dtype[Any]], outside: bool) -> None:
        self.shapes, self._types, self.outside = shapes, types, int(outside)
        sizes = (prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, types, strict=True))
        self.large = max(sizes, default=0) >= MANY

    def new(self) -> list[Any]:
        """Arrays of their outputs; MemoryError or ValueError where they cannot be had."""
        return list(map(np.empty, self.shapes, self._types))


def _in_order_of(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """The values of these names; an itemgetter of a single name gives no tuple."""
    if len(names) == 1:
        (name,) = names
        return lambda inputs: (inputs[name],)
    return itemgetter(*names) if names else lambda _: ()


class ModelBound:
    """Model of a pack that a ``Model`` calls until its pack is handed over. A call that began here ends here."""

    def __init__(self, pack: Pack, mapped: NativeLibrary, name: str, files: OpenModel) -> None:
        self.pack, self._files = pack, files
        self._native = self._opened(mapped, name, files)
        self._inputs, self._outputs = self._native.inputs, self._native.outputs
        self._output_types = [end.dtype for end in self._outputs]
        self._names, self._output_names = ([end.name for end in ends] for ends in (self._inputs, self._outputs))
        self._in_order = _in_order_of(self._names)
        self._known: dict[tuple[tuple[int, ...], ...], _Known] = {}
        self._ranges: Mapping[str, Any] = pack.manifest.tuning.get("model_ranges", {}).get(self.name, {})
        self._out_of_range = 0
        self._expected = ExpectedTimes(self._native)
        self._answers = OutputPool(len(self._outputs))

    def _opened(self, mapped: NativeLibrary, name: str, files: OpenModel) -> NativeModel:
        check = self.pack.check_weights
        return NativeModel(mapped, name, files.bytecode, files.weights, self.pack.threads, check=check)

    def __repr__(self) -> str:
        return described_model(self)

    @property
    def name(self) -> str:
        """Name in the pack: that of the file that it was made of."""
        return self._native.name

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions that a request decides."""
        return self._native.dims

    @property
    def inputs(self) -> list[NativeEnd]:
        """Inputs in order: ``name``, ``dtype`` and ``shape`` of each."""
        return list(self._inputs)

    @property
    def outputs(self) -> list[NativeEnd]:
        """Outputs, as ``inputs``."""
        return list(self._outputs)

    @cached_property
    def schedule(self) -> ExecutionPlan:
        """Schedule that runs, as the pack's document says it; calls need it not."""
        return ExecutionPlan.of(self._files.schedule, self._files.where)

    @property
    def document(self) -> dict[str, Any]:
        """The document itself."""
        result: dict[str, Any] = json.loads(self._files.schedule)
        return result

    def memory_bytes(self, **dims: int) -> int:
        """Bytes of working memory of a call with these dimensions, known before it runs; its arrays are the caller's."""
        if dims.keys() != set(self.dims):
            raise UsageError(f"{self.name} has the dimensions {', '.join(self.dims)}; got {', '.join(dims) or 'none'}")
        return self._native.memory([dims[name] for name in self.dims])

    def expected_us(self, dims: Mapping[str, int]) -> ExpectedUs:
        """Microseconds that a request of these dimensions is expected to take; see ``Model.expected_us``."""
        return self._expected.of(dims)

    def stats(self) -> dict[str, int]:
        """``calls``, ``plans`` made for new sizes, and what is held: ``contexts``, ``arena_bytes``, ``packed_bytes``.

        ``out_of_range``: calls from here of sizes that the model was not tuned for; they are answered all the same.
        """
        return {**self._native.counters(), "out_of_range": self._out_of_range}

    def trim(self) -> None:
        """Give back the working memory that no call uses now."""
        self._native.trim()
        self._answers.clear()

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name; ``out``: arrays for them. UsageError names the input, what was expected and what was found."""
        if not out and (answer := self._run_arrays(inputs)) is not None:
            return answer
        arguments = self._inputs_in_order(inputs)
        shapes = self._known_of(tuple(map(_SHAPE, arguments)), arguments).shapes
        outputs = self._new_outputs(shapes) if not out else self._output_arrays(shapes, out)
        self._native.run(arguments, outputs)
        if out:
            return self._delivered(outputs, out)
        return {end.name: array for end, array in zip(self._outputs, outputs, strict=True)}

    def _run_arrays(self, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """A call of numpy's own arrays, of shapes seen before; None where more must be looked at, and of any odd call.

        A call of a few elements is mostly this, so it has no comprehension.
        """
        try:
            arrays = self._in_order(inputs)
            known = self._known[tuple(map(_SHAPE, arrays))]
        except (KeyError, AttributeError, TypeError):
            return None
        if len(inputs) != len(arrays) or not ARRAYS.issuperset(map(type, arrays)):
            return None
        try:
            pooled = known.large or self._answers.holds
            outputs = self._answers.answer(known.shapes, self._output_types) if pooled else known.new()
        except (MemoryError, ValueError):
            return None  # said there
        if not self._native.run_arrays((*arrays, *outputs)):
            return None
        self._out_of_range += known.outside
        names = self._output_names
        return {names[0]: outputs[0]} if len(names) == 1 else dict(zip(names, outputs, strict=True))

    def _known_of(self, key: tuple[tuple[int, ...], ...], arrays: list[Any]) -> _Known:
        """Facts of requests whose inputs have these shapes; counts those out of the tuned ranges."""
        known = self._known.get(key)
        if known is None:
            shapes = self._shapes_of(arrays)
            if len(self._known) >= SHAPES:
                self._known.clear()
            outside = bool(self._ranges) and self._out(key)
            known = self._known[key] = _Known(shapes, self._output_types, outside)
        self._out_of_range += known.outside
        return known

    def _shapes_of(self, arrays: list[Any]) -> list[tuple[int, ...]]:
        return self._native.shapes(arrays)

    def arguments(self, inputs: Mapping[str, Any], buffered: Collection[str]) -> list[Any]:
        """The inputs in order; None of those that lie in buffers, which ``inputs`` leave out."""
        return self._inputs_in_order(inputs, buffered)

    def answers(self, shapes: list[tuple[int, ...]], out: Mapping[str, Any] | None, buffered: Collection[str]) -> list[Any]:
        """Arrays for the outputs, in order; None of those that lie in buffers."""
        if not out:
            take, ends = self._answers.take, zip(self._outputs, shapes, strict=True)
            return [None if end.name in buffered else take(shape, end.dtype) for end, shape in ends]
        buffered_outputs = [name for name in buffered if name in out]
        if buffered_outputs:
            raise UsageError(f"{self.name}: out[{buffered_outputs[0]!r}] lies in the state; leave it out")
        return self._output_arrays(shapes, out, buffered)

    def delivered(self, outputs: list[Any], out: Mapping[str, Any] | None) -> dict[str, Any]:
        """The outputs by name, but of those in buffers; the caller's arrays where it passed some."""
        if not out:
            return {end.name: array for end, array in zip(self._outputs, outputs, strict=True) if array is not None}
        return {name: array for name, array in self._delivered(outputs, out).items() if array is not None}

    def largest(self, dim: str) -> int:
        """The largest size of a dimension that the model was tuned for; 0 where none is known."""
        return int(self._ranges[dim][1]) if dim in self._ranges else 0

    def timed(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], list[float]]:
        """One call: its outputs, and the microseconds of each step of the schedule; 0 of steps that have nothing to do.

        UsageError as of ``run``, and for a pack that was made before steps were timed.
        """
        arguments = self._inputs_in_order(inputs)
        outputs = self._new_outputs(self._native.shapes(arguments))
        us = self._native.times_us(arguments, outputs, len(self.schedule.steps))
        return {end.name: array for end, array in zip(self._outputs, outputs, strict=True)}, us

    @property
    def native(self) -> NativeModel:
        """The model as the library knows it."""
        return self._native

    def count(self, dims: Mapping[str, int]) -> None:
        """Count a call that came through a chain, if a dimension is out of its range; of nothing no kernel runs."""
        own = ((dims[name], *self._ranges[name]) for name in self.dims if name in self._ranges)
        self._out_of_range += any(size and not first <= size <= last for size, first, last in own)

    def ran(self, inputs: Mapping[str, Any], us: list[float]) -> Ran:
        """Steps that a request of such inputs runs, with their times out of those of all."""
        dims = {
            str(name): size
            for end in self._inputs
            for name, size in zip(end.shape, np.shape(inputs[end.name]), strict=True)
            if isinstance(name, str)
        }
        way = self.schedule.way_of(dims)
        return Ran(self, self.schedule.steps[way.first : way.end], us[way.first : way.end], way.where)

    def step_times(self, inputs: Mapping[str, Any], seed: int | None = None) -> list[Ran]:
        """The model's steps with their microseconds in one call; of one in segments see ``ChainBound``."""
        return [self.ran(inputs, self.timed(inputs)[1])]

    def _out(self, key: tuple[tuple[int, ...], ...]) -> bool:
        """True if inputs of these shapes have a dimension out of its range."""
        for end, shape in zip(self._inputs, key, strict=True):
            for name, size in zip(end.shape, shape, strict=True):
                first, last = self._ranges.get(str(name), (size, size))
                if size and not first <= size <= last:  # of nothing no kernel runs
                    return True
        return False

    def _new_outputs(self, shapes: list[tuple[int, ...]]) -> list[Any]:
        try:
            return [self._answers.take(shape, end.dtype) for end, shape in zip(self._outputs, shapes, strict=True)]
        except (MemoryError, ValueError) as error:
            raise UsageError(f"{self.name}: outputs of {shapes} cannot be had: {error}") from error

    def _check_names(self, out: Mapping[str, Any]) -> None:
        unknown = [name for name in out if name not in {end.name for end in self._outputs}]
        if unknown:
            raise UsageError(f"{self.name} has no output {unknown[0]!r}; it has {', '.join(e.name for e in self._outputs)}")

    def _output_arrays(
        self, shapes: list[tuple[int, ...]], out: Mapping[str, Any], buffered: Collection[str] = ()
    ) -> list[Any]:
        """Arrays that the library can write: the caller's where contiguous; None of ``buffered``."""
        self._check_names(out)
        outputs = list[Any]()
        for end, shape in zip(self._outputs, shapes, strict=True):
            if end.name in buffered:
                outputs.append(None)
                continue
            array = out.get(end.name)
            if array is not None and not (
                isinstance(array, np.ndarray) and array.shape == shape and array.dtype == end.dtype and array.flags.writeable
            ):
                text = f"{getattr(array, 'dtype', type(array).__name__)} {getattr(array, 'shape', '')}"
                raise UsageError(
                    f"{self.name}: out[{end.name!r}] must be a writeable array, {end.dtype} {shape}, got {text}"
                )
            whole = array is not None and array.flags.c_contiguous and array.flags.aligned
            outputs.append(array if whole else self._answers.take(shape, end.dtype))
        return outputs

    def _delivered(self, outputs: list[Any], out: Mapping[str, Any]) -> dict[str, Any]:
        by_name = {}
        for end, array in zip(self._outputs, outputs, strict=True):
            target = out.get(end.name)
            if target is not None and target is not array:
                np.copyto(target, array)
            by_name[end.name] = array if target is None else target
        return by_name

    def _inputs_in_order(self, inputs: Mapping[str, Any], buffered: Collection[str] = ()) -> list[Any]:
        """Contiguous arrays of the right types; None of ``buffered``, which the caller does not pass."""
        arrays, left_out = list[Any](), 0
        for end in self._inputs:
            if end.name in buffered:
                arrays.append(None)
                left_out += 1
                continue
            array: Any = inputs.get(end.name)
            if not isinstance(array, np.ndarray):
                if end.name not in inputs:
                    if end.default is None:
                        raise self._other_names(inputs, buffered)
                    array, left_out = end.default, left_out + 1
                array = np.from_dlpack(array) if hasattr(array, "__dlpack__") else array
            if getattr(array, "dtype", None) != end.dtype:
                kind = getattr(array, "dtype", type(array).__name__)
                raise UsageError(f"{self.name}: input {end.name} must be an array of {end.dtype}, got {kind}")
            flags = array.flags
            arrays.append(array if flags.c_contiguous and flags.aligned else np.array(array, end.dtype, order="C"))
        if len(inputs) != len(arrays) - left_out:
            raise self._other_names(inputs, buffered)
        return arrays

    def _other_names(self, inputs: Mapping[str, Any], buffered: Collection[str] = ()) -> UsageError:
        passed_inputs = [operand for operand in self._inputs if operand.name not in buffered]
        names = [operand.name for operand in passed_inputs]
        must = [operand.name for operand in passed_inputs if operand.default is None]
        lacking, unknown = [name for name in must if name not in inputs], [name for name in inputs if name not in names]
        return UsageError(
            f"{self.name} takes the inputs {', '.join(names)}; "
            + "; ".join([f"{name} is missing" for name in lacking] + [f"there is no {name}" for name in unknown])
        )


class Ran(NamedTuple):
    """Steps of a model that ran in a call, what each took, and for which sizes they are."""

    model: ModelBound
    steps: tuple[Mapping[str, Any], ...]
    us: list[float]
    where: str
