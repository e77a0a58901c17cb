"""What an epilogue costs: the fused op against the same product without one, both ours, inside one process."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.bench.operators_inside import paired, text, tuned_pack

TITLE = "Epilogues"
_ROWS, _IMAGES = "m=1..256", "b=1..2;h=14..28;w=h"
PAIRS = (
    ("dense:n=3072,k=768", "bias+relu", _ROWS),
    ("dense:n=3072,k=768", "bias+gelu", _ROWS),
    ("dense:n=3072,k=768,dtype=bf16", "bias+gelu", _ROWS),
    ("conv2d:c=64,f=64,r=3,s=3,pad=1", "bias+relu", _IMAGES),
    ("conv2d:c=64,f=64,r=3,s=3,pad=1,dtype=bf16,layout=nhwc", "bias+hardswish", _IMAGES),
)
SIZES = {_ROWS: ({"m": 16}, {"m": 128}), _IMAGES: ({"b": 1, "h": 14, "w": 14}, {"b": 2, "h": 28, "w": 28})}


def section(command: str, args: Any) -> str:
    """Tune, then a row a pair and size."""
    import haotuner

    rows, bare = [], {spec: shapes for spec, _, shapes in PAIRS}
    fused = [(f"{spec},epilogue={steps}", shapes) for spec, steps, shapes in PAIRS]
    every = [*bare.items(), *fused]
    with tempfile.TemporaryDirectory() as folder:
        paths, where = tuned_pack([op for op, _ in every], [shapes for _, shapes in every], args, folder)
        packs = [haotuner.load(path, threads=int(args.threads)) for path in paths]
        for spec, steps, shapes in PAIRS:
            for size in SIZES[shapes]:
                calls = [_call(packs, Op.parse(text), size) for text in (spec, f"{spec},epilogue={steps}")]
                us, ratio, low, high = paired(*calls)
                name = Op.parse(spec).name
                at = " ".join(f"{axis}={extent}" for axis, extent in size.items())
                rows.append(f"| {name} | {steps} | {at} | {us:.1f} | {ratio:.3f}x | {low:.3f}..{high:.3f} |")
    return text(TITLE, command, "op | epilogue | shape | bare us | fused over bare | quartiles", rows, where)


def _call(packs: Any, op: Op, size: dict[str, int]) -> Any:
    pack = next(pack_ for pack_ in packs if op.name in pack_.ops)
    inputs = numerics.draw(op, Shape.of(size), np.random.default_rng(0))
    constants = {name: inputs[name] for name in op.epilogue_operands}
    served = pack.op(op.name).bind(inputs["weight"], **constants)
    x, y = inputs["x"], served(inputs["x"])
    return lambda: served(x, out=y)
