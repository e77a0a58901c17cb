"""ONNX's node cases with other inputs, drawn: ``python -m tests.bench.onnx_drawn [--op NAME] [--seed N] [--count N]``.

A case keeps its node. What it is fed changes: special numbers (infinities, NaN, -0, subnormal and large ones), another
element type, fewer rows down to none, numbers of another size. ``onnx.reference`` and ONNX Runtime judge, as of attributes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import helper

from tests.bench.onnx_attributes import Variant, bases, supported, variant_of, verdict
from tests.bench.onnx_nodes import plain

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, 65504.0, 1e-7, 88.8, -104.0, 16777217.0)
REAL, WHOLE = ("float32", "float64", "float16"), ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def drawn(op: str, draw: random.Random, count: int) -> Iterator[Variant]:
    """``count`` variants of an operator's cases; fewer where it has none with numbers."""
    known = []
    for case in bases(op):
        arrays = [plain(value) for value in case.data_sets[0][0]]
        known.append(variant_of(case, case.model.graph.node[0], case.name, arrays))
    known = [base for base in known if base.inputs]
    for number in range(count if known else 0):
        base = draw.choice(known)
        change = draw.choice((_special, _typed, _fewer, _scaled))
        inputs = change(base.inputs, draw)
        if inputs is not None:
            yield _fed(base, inputs, f"{base.name} {change.__name__.strip('_')} {number}")


def _special(inputs: Sequence[Any], draw: random.Random) -> list[Any] | None:
    real = [index for index, value in enumerate(inputs) if value.dtype.kind == "f" and value.size]
    if not real:
        return None
    index, result = draw.choice(real), list(inputs)
    flat = result[index].copy().reshape(-1)
    for position in draw.sample(range(flat.size), min(flat.size, draw.randint(1, 6))):
        with np.errstate(all="ignore"):
            flat[position] = draw.choice(SPECIAL)
    result[index] = flat.reshape(inputs[index].shape)
    return result


def _typed(inputs: Sequence[Any], draw: random.Random) -> list[Any] | None:
    """All inputs of the first one's type in another."""
    own = inputs[0].dtype
    to = np.dtype(draw.choice(REAL if own.kind == "f" and draw.random() < 0.6 else WHOLE))
    if own.kind not in "fiu" or to == own:
        return None
    sound = [value for value in inputs if value.dtype == own]
    if to.kind in "iu" and any(not np.all(np.isfinite(v)) or np.any(np.abs(v) > 100) for v in sound):
        return None
    return [(np.abs(v) if to.kind == "u" else v).astype(to) if v.dtype == own else v for v in inputs]


def _fewer(inputs: Sequence[Any], draw: random.Random) -> list[Any] | None:
    """Fewer rows of every input that has as many as the first."""
    if not inputs[0].ndim or inputs[0].shape[0] < 1:
        return None
    rows, left = inputs[0].shape[0], draw.randrange(inputs[0].shape[0])
    return [value[:left] if value.ndim and value.shape[0] == rows else value for value in inputs]


def _scaled(inputs: Sequence[Any], draw: random.Random) -> list[Any] | None:
    if inputs[0].dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        return [(inputs[0] * draw.choice((-1, 1e-3, 1e3, 1e30, -1e-30))).astype(inputs[0].dtype), *inputs[1:]]


def _fed(base: Variant, inputs: Sequence[Any], name: str) -> Variant:
    """A variant with other inputs, whose types and extents its model says."""
    model = type(base.model)()
    model.CopyFrom(base.model)
    for end, value in zip(model.graph.input, inputs, strict=True):
        end.CopyFrom(helper.make_tensor_value_info(end.name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
    return replace(base, name=name, model=model, inputs=list(inputs))


def main() -> int:
    """Print every variant that a judge answers in another way, and how many there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=12, help="of each operator")
    options = parser.parse_args()
    counts = Counter[str]()
    for op in options.op or supported():
        for variant in drawn(op, random.Random(f"{options.seed} {op}"), options.count):
            word, why = verdict(variant)
            counts[word] += 1
            if word in ("wrong", "refused"):
                print(f"{word:9} {op:20} {variant.name}: {why[:200]}", flush=True)
    print(dict(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
