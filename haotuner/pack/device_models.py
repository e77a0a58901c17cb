"""What a whole model of a pack answers on a GPU, for arrays of the host: to check it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.runtime.device_memory import DeviceMemory
from haotuner.runtime.placed_model import PlacedModel


def answered(model: PlacedModel, given: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Outputs by name. The results' memory is filled with ones of all bits before, so that what is not written is seen."""
    assert model.pack.gpu is not None
    with DeviceMemory(model.pack.gpu.ordinal) as memory:
        inputs = {name: np.array(one, order="C") for name, one in given.items()}  # of no axes, too
        tensors = {name: memory.like(memory.put(one), one) for name, one in inputs.items()}
        shapes = model.shapes(tensors)
        found = {end.name: np.empty(shapes[end.name], end.dtype) for end in model.outputs}
        places: dict[str, int] = {}
        for name, one in found.items():
            if one.size and one.ndim:
                one.view(np.uint8).fill(0xFF)
            places[name] = memory.put(one)
        out = {name: memory.like(places[name], one) for name, one in found.items()}
        model.run(tensors, out=out, stream=memory.stream)
        for name, one in found.items():
            memory.get(places[name], one)
        model.trim()
        return found
