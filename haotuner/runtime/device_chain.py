"""DeviceChain: a chain on a GPU, whose host reads counts and conditions of the device in the midst of a call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.runtime.chain_bound import ChainBound
from haotuner.runtime.device_call import called, check_inputs, empty_like, explicit_or_current_stream, still
from haotuner.runtime.model import Chain
from haotuner.runtime.model_bound import Ran
from haotuner.runtime.native_library import PLACE, shape_at

_Made = Callable[[int, tuple[int, ...]], Any]


class DeviceChainBound(ChainBound):
    """Chain on a device that a ``DeviceChain`` calls until its pack is handed over."""

    @cached_property
    def _queue(self) -> Callable[..., Any]:
        return self.pack.library().function("ht_model_queue_placed")

    @cached_property
    def _placement(self) -> Callable[..., Any]:
        return self.pack.library().function("ht_model_place")

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        seed: int | None = None,
        stream: int | None = None,
    ) -> dict[str, Any]:
        """Outputs by name; ``out``: tensors for them, of the shapes that the data make. ``seed``: as of ``Chain.run``.

        UsageError names the tensor, what was expected and what was found, or the size that the data make.
        """
        self._check_names(inputs)
        arguments, placed = [inputs[end.name] for end in self._inputs], out or {}
        unknown = [name for name in placed if name not in {end.name for end in self._outputs}]
        if unknown:
            raise UsageError(f"{self.name} has no output {unknown[0]!r}; it has {', '.join(e.name for e in self._outputs)}")

        def made(output: int, shape: tuple[int, ...]) -> Any:
            end = self._outputs[output]
            try:
                result = placed.get(end.name)
                return empty_like(self.name, arguments[0], shape, end.dtype.name) if result is None else result
            except ValueError as error:
                raise UsageError(f"{error}: {end.name}, {end.dtype} {shape}") from error

        return self.placed(arguments, seed, stream, made)

    def placed(self, inputs: list[Any], seed: int | None, stream: int | None, made: _Made) -> dict[str, Any]:
        """Outputs by name in tensors that ``made`` has for their places and shapes; inputs in order, else as ``run``."""
        check_inputs(self.name, {end.name: tensor for end, tensor in zip(self._inputs, inputs, strict=True)})
        stream = explicit_or_current_stream(self.name, inputs[0], stream)
        native, result, raised = self._linked, dict[int, Any](), list[BaseException]()

        def place(_: int | None, output: int, rank: int) -> int | None:
            try:
                tensor = result[output] = made(output, shape_at(rank, native.outputs[output].rank))
                return int(called(self.name, self._placement, native.address, output, rank, still(tensor, stream)))
            except BaseException as error:  # nothing may be raised through C
                raised.append(error)
                return None

        back, dims = PLACE(place), np.zeros(max(1, len(native.dims)), np.int64)
        number = None if seed is None else (seed + (1 << 63)) % (1 << 64) - (1 << 63)  # as 64 bits with a sign
        address = ctypes.cast(back, ctypes.c_void_p).value
        handed = [still(tensor, stream) for tensor in inputs]
        try:
            called(self.name, self._queue, native.address, stream, number, address, dims, *handed)
        except Exception:
            if raised:
                raise raised[0] from None
            raise
        self._count(dims.tolist()[: len(native.dims)])
        return {end.name: result[output] for output, end in enumerate(self._outputs)}

    def step_times(self, inputs: Mapping[str, Any], seed: int | None = None) -> list[Ran]:
        """UsageError: the steps of a call on a GPU are not timed one by one."""
        return next(iter(self.segments.values())).step_times(inputs, seed)


class DeviceChain(Chain):
    """Called as a ``DeviceModel``: tensors of the first input's framework, on its current or the given stream.

    A call waits for the stream wherever data tell a size, a branch or the turns of a loop, so that no graph can hold it;
    what follows the last of these is queued when it returns.
    """

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        seed: int | None = None,
        stream: int | None = None,
    ) -> dict[str, Any]:
        """Outputs by name; ``out``: tensors for them, of the shapes that the data make. ``seed``: as of ``Chain.run``.

        UsageError names the tensor, what was expected and what was found, or the size that the data make.
        """
        return self._placed().run(inputs, out, seed, stream)

    def placed(self, inputs: list[Any], seed: int | None, stream: int | None, made: _Made) -> dict[str, Any]:
        """Outputs by name in tensors that ``made`` has for their places and shapes; inputs in order, else as ``run``."""
        return self._placed().placed(inputs, seed, stream, made)

    def _placed(self) -> DeviceChainBound:
        bound = self.current()
        assert isinstance(bound, DeviceChainBound)  # a pack on a device opens no others
        return bound
