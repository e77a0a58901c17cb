"""Results of a whole model of a pack on a GPU, for arrays of the host: to check it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.runtime.device_chain import DeviceChain
from haotuner.runtime.device_memory import DeviceMemory
from haotuner.runtime.device_model import DeviceModel, DeviceModelBound


def answered(model: DeviceModel | DeviceModelBound, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Outputs by name. The results' memory is filled with ones of all bits before, so that what is not written is seen."""
    assert model.pack.gpu is not None
    with DeviceMemory(model.pack.gpu.ordinal) as memory:
        room = _Room(memory)
        tensors = {name: room.tensor(array) for name, array in inputs.items()}
        shapes = model.shapes(tensors)
        out = {end.name: room.empty(end.name, shapes[end.name], end.dtype) for end in model.outputs}
        model.run(tensors, out=out, stream=memory.stream)
        result = room.found()
        model.trim()
        return result


def answered_chain(model: DeviceChain, inputs: Mapping[str, NDArray[Any]], seed: int) -> dict[str, NDArray[Any]]:
    """Results of a model whose sizes depend on data."""
    assert model.pack.gpu is not None
    with DeviceMemory(model.pack.gpu.ordinal) as memory:
        room, ends = _Room(memory), model.outputs
        tensors = [room.tensor(inputs[end.name]) for end in model.inputs]
        model.placed(
            tensors, seed, memory.stream, lambda index, shape: room.empty(ends[index].name, shape, ends[index].dtype)
        )
        result = room.found()
        model.trim()
        return {end.name: result[end.name] for end in ends}


class _Room:
    """Tensors of a device with arrays of the host beside them."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._found: dict[str, tuple[int, NDArray[Any]]] = {}

    def tensor(self, values: NDArray[Any]) -> Any:
        """A copy of an array there."""
        whole = np.array(values, order="C")  # of no axes, too
        return self._memory.like(self._memory.put(whole), whole)

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory for a result, ones of all bits."""
        filled = np.empty(shape, dtype)
        if filled.size and filled.ndim:
            filled.view(np.uint8).fill(0xFF)
        address = self._memory.put(filled)
        self._found[name] = address, filled
        return self._memory.like(address, filled)

    def found(self) -> dict[str, NDArray[Any]]:
        """The results, after the stream's work."""
        for address, item in self._found.values():
            self._memory.get(address, item)
        return {name: item for name, (_, item) in self._found.items()}
