"""Inference requests and answers, the same for HTTP and gRPC, and what a model asks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from haotuner.serve.datatypes import datatype_of
from haotuner.serve.refusals import InvalidRequest


@dataclass(slots=True)
class InferenceRequest:
    """One request. ``dims``: sizes of the model's dimensions; ``outputs``: names that are asked for, None for all."""

    model: str
    id: str
    inputs: Mapping[str, np.ndarray[Any, Any]]
    outputs: tuple[str, ...] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)


def sizes_of(model: Any, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Dimensions of a request. InvalidRequest names the input, what was expected and what was found."""
    ends = {end.name: end for end in model.inputs}
    unknown = [name for name in inputs if name not in ends]
    absent = [end.name for end in model.inputs if end.name not in inputs and end.default is None]
    if unknown or absent:
        words = [f"there is no input {name!r}" for name in unknown] + [f"input {name} is missing" for name in absent]
        raise InvalidRequest(f"{model.name} takes the inputs {', '.join(ends)}; {'; '.join(words)}")
    dims: dict[str, int] = {}
    for name, array in inputs.items():
        end = ends[name]
        if array.dtype != end.dtype:
            raise InvalidRequest(f"{model.name}: input {name} must be of {end.dtype}, got {array.dtype}")
        if array.ndim != len(end.shape):
            raise InvalidRequest(
                f"{model.name}: input {name} must have {len(end.shape)} axes {_shown(end.shape)}, got {list(array.shape)}"
            )
        for extent, size in zip(end.shape, array.shape, strict=True):
            if isinstance(extent, str):
                if dims.setdefault(extent, size) != size:
                    raise InvalidRequest(
                        f"{model.name}: input {name} has {extent}={size}, another input has {extent}={dims[extent]}"
                    )
            elif extent is not None and extent != size:
                raise InvalidRequest(
                    f"{model.name}: input {name} must have the shape {_shown(end.shape)}, got {list(array.shape)}"
                )
    return dims


def checked_outputs(model: Any, names: Sequence[str]) -> tuple[str, ...] | None:
    """Names of outputs that are asked for; None for all. InvalidRequest for one that the model does not have."""
    known = {end.name for end in model.outputs}
    for name in names:
        if name not in known:
            raise InvalidRequest(f"{model.name} has no output {name!r}; it has {', '.join(sorted(known))}")
    return tuple(dict.fromkeys(names)) or None


def _shown(shape: Sequence[Any]) -> str:
    return "[" + ", ".join("?" if extent is None else str(extent) for extent in shape) + "]"


def metadata(model: Any, version: str) -> dict[str, Any]:
    """Metadata of a model as the protocol has it; -1 for extents that a request decides."""

    def ends(items: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {
                "name": end.name,
                "datatype": datatype_of(end.dtype),
                "shape": [extent if isinstance(extent, int) else -1 for extent in end.shape],
            }
            for end in items
        ]

    return {
        "name": model.name,
        "versions": [version],
        "platform": "haotuner_pack",
        "inputs": ends([end for end in model.inputs if end.default is None]),
        "outputs": ends(model.outputs),
    }
