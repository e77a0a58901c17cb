"""DeviceModel: a whole model on a GPU. A call queues its steps on the caller's stream (native/cuda/model.c)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.runtime.device_call import called, check_inputs, empty_like, explicit_or_current_stream, still
from haotuner.runtime.model import Model
from haotuner.runtime.model_bound import ModelBound, OpenModel
from haotuner.runtime.native_library import NativeLibrary, NativeModel


class DeviceModelBound(ModelBound):
    """Model on a device that a ``DeviceModel`` calls until its pack is handed over."""

    def _opened(self, mapped: NativeLibrary, name: str, files: OpenModel) -> NativeModel:
        gpu = self.pack.gpu
        assert gpu is not None
        plans = 1 if gpu.is_planned_for(self.pack.manifest) else 2
        check = self.pack.check_weights
        return NativeModel(mapped, name, files.bytecode, files.weights, plans, device=gpu.ordinal, check=check)

    @cached_property
    def _queue(self) -> Callable[..., Any]:
        return self.pack.library().function("ht_model_queue")

    @cached_property
    def _shaping(self) -> Callable[..., Any]:
        return self.pack.library().function("ht_model_shapes")

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, stream: int | None = None
    ) -> dict[str, Any]:
        """Outputs by name; ``out``: tensors for them. UsageError names the tensor, what was expected and what was found."""
        arguments = self._tensors(inputs)
        stream = explicit_or_current_stream(self.name, arguments[0], stream)
        handed = [still(tensor, stream) for tensor in arguments]
        key = tuple([tuple(map(int, getattr(tensor, "shape", ()))) for tensor in arguments])
        shapes = self._known_of(key, handed).shapes
        result = self._results(shapes, out or {}, arguments[0])
        called(self.name, self._queue, self._native.address, stream, *handed, *(still(tensor, stream) for tensor in result))
        return {end.name: tensor for end, tensor in zip(self._outputs, result, strict=True)}

    def shapes(self, inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs that these tensors make. UsageError as of ``run``."""
        result = self._shapes_of(self._tensors(inputs))
        return {end.name: shape for end, shape in zip(self._outputs, result, strict=True)}

    def timed(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], list[float]]:
        """UsageError: the steps of a call on a GPU are not timed one by one."""
        raise UsageError(
            f"{self.name}: steps are timed on CPUs; use a profiler of the GPU, which shows each kernel by its name"
        )

    def _tensors(self, inputs: Mapping[str, Any]) -> list[Any]:
        if inputs.keys() != {end.name for end in self._inputs}:
            raise self._other_names(inputs)
        arguments = [inputs[end.name] for end in self._inputs]
        check_inputs(self.name, {end.name: item for end, item in zip(self._inputs, arguments, strict=True)})
        return arguments

    def _results(self, shapes: list[tuple[int, ...]], out: Mapping[str, Any], like: Any) -> list[Any]:
        self._check_names(out)
        result = []
        for end, shape in zip(self._outputs, shapes, strict=True):
            inputs = out.get(end.name)
            if inputs is None:
                try:
                    inputs = empty_like(self.name, like, shape, end.dtype.name)
                except ValueError as error:
                    raise UsageError(f"{error}: {end.name}") from error
            result.append(inputs)
        return result

    def _shapes_of(self, inputs: list[Any]) -> list[tuple[int, ...]]:
        result = np.zeros(max(1, sum(end.rank for end in self._outputs)), np.int64)
        called(self.name, self._shaping, self._native.address, result, *inputs)
        shapes, rest = [], result.tolist()
        for end in self._outputs:
            shapes.append(tuple(rest[: end.rank]))
            rest = rest[end.rank :]
        return shapes


class DeviceModel(Model):
    """``model.run({"x": tensor})`` gives tensors of the first input's framework, on its current or the given stream.

    A call allocates and waits for nothing once its stream has had one of such sizes; the first one of a stream, or of
    larger sizes, gets working memory. It may then be captured into a graph. Graphs captured on one stream share working
    memory: replay them one after the other. Memory goes by the stream's handle: destroy a stream, or end the thread whose
    default stream it is, once its calls are done. What graphs replay stays on the device as long as the
    process. ``trim`` waits for the device: not while a stream is captured.
    """

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, stream: int | None = None
    ) -> dict[str, Any]:
        """Outputs by name; ``out``: tensors for them. UsageError names the tensor, what was expected and what was found."""
        return self._on_device().run(inputs, out, stream)

    def shapes(self, inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs that these tensors make. UsageError as of ``run``."""
        return self._on_device().shapes(inputs)

    def _on_device(self) -> DeviceModelBound:
        bound = self.current()
        assert isinstance(bound, DeviceModelBound)  # a pack on a device opens no others
        return bound
