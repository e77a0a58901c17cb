"""Check of a batch-invariant pack for convolutions: an image's bits do not depend on the batch that it comes in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from haotuner.ops.convolution import windows
from haotuner.pack.op import PackOp
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.shape import Shape

IMAGES = 5  # of the large call
SIDE = 9  # elements more than the window needs: pixels end within tiles and beyond them


def check_image_bits(path: Path, op: PackOp, counts: list[int], rng: np.random.Generator) -> list[str]:
    """Problems in words: images from either end of a batch, alone and together, at every thread count."""
    from haotuner.runtime.pack import Pack

    meaning = op.op
    if "b" not in meaning.dynamic:
        return []  # every batch is the same
    sides = windows(meaning.kind, dict(meaning.static), meaning.all_options())
    reach = {axis: side.dilation * (side.taps - 1) for axis, side in sides.items()}
    extents: dict[str, int] = {axis: most + SIDE for axis, most in reach.items() if axis in meaning.dynamic}
    drawn = CallCase.drawn(meaning, Shape.of({**extents, "b": IMAGES}), rng).operands
    constants = {operand.name: drawn[operand.name] for operand in op.extra if operand.role == "constant"}
    passed = ["x", *(operand.name for operand in op.extra if operand.role == "input")]
    whole, problems = None, []
    for threads in counts:
        with Pack(path, threads) as pack:
            served = pack.op(op.name).bind(drawn["weight"], **constants)
            whole = served(**drawn_of(drawn, passed, slice(None))) if whole is None else whole
            for some in (slice(1), slice(3), slice(-1, None), slice(-2, None), slice(None)):
                if not np.array_equal(served(**drawn_of(drawn, passed, some)), whole[some]):
                    problems.append(
                        f"{op.name} images {some.start or 0}..{some.stop or ''} of {IMAGES}, threads={threads}: "
                        "not the bits of the whole batch, as promised"
                    )
    return problems


def drawn_of(drawn: Mapping[str, numerics.Array], names: list[str], some: slice) -> dict[str, numerics.Array]:
    """Some images of every tensor of a call."""
    return {name: drawn[name][some] for name in names}
