"""``ops_of``: which ops a model needs, and the shapes that its layers see, as a trace that ``haotuner tune`` takes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from haotuner.errors import UsageError
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import FORMATS
from haotuner.torch.attention import unserved
from haotuner.torch.chains import Chain, chains
from haotuner.torch.convolution import KINDS, any_last
from haotuner.torch.folding import unfoldable, with_step
from haotuner.torch.layers import first_spec, is_lazy, layers_of, projection_of, why_left

Call = tuple[str, str, Shape]  # name of a layer, op spec, shape


class Needed(dict[str, int]):
    """``{--op spec: times}``, the most frequent first, and the calls that were counted.

    The sum of two has the calls of both: of small and large images, say. A pack that is tuned for their trace serves each op
    over the whole range between its least and its largest sizes.
    """

    def __init__(self, counts: Mapping[str, int], calls: Mapping[Call, int] | None = None) -> None:
        super().__init__(Counter(counts).most_common())
        self.calls: Mapping[Call, int] = dict(calls or {})  # how often; none where the model did not run

    @property
    def layers(self) -> Mapping[str, tuple[str, ...]]:
        """Name of a layer -> the shapes that it saw, as ``--shapes`` writes them: ``b=1;h=16;w=16``."""
        shapes: dict[str, list[str]] = {}
        for layer, _, shape in self.calls:
            shapes.setdefault(layer, []).append(str(shape))
        return {layer: tuple(dict.fromkeys(each)) for layer, each in shapes.items()}

    def __add__(self, other: object) -> Needed:
        if not isinstance(other, Needed):
            return NotImplemented
        return Needed(Counter(self) + Counter(other), Counter(self.calls) + Counter(other.calls))

    def write_trace(self, path: str | Path) -> Path:
        """Write ``path``, a ``.jsonl`` file of (op, shape, how often), for ``haotuner tune --shapes``.

        UsageError: no example was run, or another suffix.
        """
        file = Path(path)
        if file.suffix.lower() != FORMATS[1]:
            raise UsageError(f"write_trace({str(path)!r}): a trace of several ops ends in {FORMATS[1]}; name it so")
        if not self.calls:
            raise UsageError("write_trace: no layer was called; give ops_of the arguments of a run: ops_of(model, x)")
        rows: Counter[tuple[str, Shape]] = Counter()
        for (_, spec, shape), times in self.calls.items():
            rows[spec, shape] += times
        lines = [json.dumps({"op": spec, **shape.as_dict(), "weight": times}) for (spec, shape), times in rows.items()]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file


def row_shape(x: Any) -> Shape | None:
    """Shape that a linear sees of ``x`` (..., k): its rows; None without rows."""
    return _shape(m=math.prod(x.shape[:-1]))


def image_shape(x: Any, sides: int) -> Shape | None:
    """Shape that a convolution of so many sides sees of ``x`` ([b,] c, [h,] w); None without elements."""
    spatial = dict(zip(("h", "w")[-sides:], x.shape[-sides:], strict=True))
    return _shape(b=math.prod(x.shape[: -sides - 1]), **spatial)


def _shape(**extents: int) -> Shape | None:
    return Shape.of(extents) if all(extents.values()) else None


def ops_of(model: torch.nn.Module, *example: Any, fuse: bool = False) -> Needed:
    """``{--op spec: times}`` of the linears and convolutions that ``swap`` could serve, the most frequent first.

    ``fuse``: a layer with an activation behind it is one op, a batch norm in between included. ``times`` counts layers; with
    ``example``, the arguments of one run of the model (under ``torch.inference_mode``), it counts their calls in that run.
    The answer then also has the shapes that each layer saw, which ``write_trace`` writes for ``haotuner tune --shapes``.
    """
    model = getattr(model, "_orig_mod", model)  # compiled: what it compiles, for its code calls no hooks
    if example and any(map(is_lazy, model.modules())):
        with torch.inference_mode(False), torch.no_grad():
            model(*example)  # lazy layers become plain ones
    layers = {name: child for name, parent, _, child in layers_of(model) if not why_left(parent, child, None)}
    attention = {
        name: child
        for name, child in model.named_modules()
        if isinstance(child, torch.nn.MultiheadAttention) and not unserved(child)
    }
    layers |= {f"attention {name}": child for name, child in attention.items()}
    after = chains(model).by_layer if fuse else {}
    layer_ids, others = {id(child) for child in layers.values()}, any_last(model)
    steps = {position: chain for position, chain in after.items() if chain.step and position in layer_ids}
    if not example:
        return Needed(Counter(spec for child in layers.values() for spec in _ops_of_layer(child, steps, others)))
    counts: Counter[str] = Counter()
    seen: Counter[Call] = Counter()

    def note(name: str, layer: Any, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        specs = _ops_of_layer(layer, steps, others)
        counts.update(specs)
        tensors = [operand for operand in (*inputs, *named.values()) if isinstance(operand, torch.Tensor)]
        seen.update((name, spec, shape) for spec, shape in _shapes(layer, specs, tensors) if shape is not None)

    names = {id(child): name.removeprefix("attention ") for name, child in reversed(layers.items())}
    hooks = [
        child.register_forward_pre_hook(
            lambda layer, inputs, named: note(names[id(layer)], layer, inputs, named), with_kwargs=True
        )
        for child in {id(child): child for child in layers.values()}.values()
    ]
    try:
        with torch.inference_mode():
            model(*example)
    finally:
        for hook in hooks:
            hook.remove()
    return Needed(counts, seen)


def _shapes(layer: Any, specs: list[str], tensors: list[torch.Tensor]) -> Iterator[tuple[str, Shape | None]]:
    """(op, shape) of one call of a layer with these tensors."""
    if isinstance(layer, torch.nn.MultiheadAttention):
        projection, output = specs
        query, key, value = tensors[:3]
        joined = query is key and key is value  # which is one product
        for x in (query,) if joined else (query, key, value):
            yield projection, row_shape(x)
        yield output, row_shape(query)
    elif tensors:
        x = tensors[0]
        yield specs[0], image_shape(x, len(layer.kernel_size)) if type(layer) in KINDS else row_shape(x)


def _ops_of_layer(layer: Any, steps: Mapping[int, Chain], others: bool) -> list[str]:
    """The ops that a run of a layer needs. ``steps``: what follows layers, by ids; ``others``: see ``prefers_last``."""
    chain = steps.get(id(layer))
    channels = layer.out_channels if type(layer) in KINDS else None
    if chain is not None and (chain.norm is None or not unfoldable(chain.norm, channels)):
        return [with_step(first_spec(layer, others), chain.step, bias=layer.bias is not None or chain.norm is not None)]
    if isinstance(layer, torch.nn.MultiheadAttention):
        return [first_spec(projection_of(layer)), first_spec(layer.out_proj)]
    return [first_spec(layer, others)]
