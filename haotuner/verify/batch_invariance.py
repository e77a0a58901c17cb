"""Check of a batch-invariant pack: bits of a row or an image do not depend on what comes with it."""

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


LARGE = {"b": 9, "m": 67, "n": 83, "k": 150}  # several tiles and blocks of every kernel, some of them narrow
SOME = ((1, 1), (1, 67), (2, 5), (5, 33), (9, 64))  # matrices and rows of it


def check_product_bits(path: Path, op: PackOp, counts: list[int], rng: np.random.Generator) -> list[str]:
    """Problems in words: parts of one large call, from either end, against the whole of it, at every thread count."""
    from haotuner.runtime.pack import Pack

    meaning = op.op
    inputs = CallCase.drawn(meaning, Shape.of({axis: LARGE[axis] for axis in meaning.dynamic}), rng).operands
    x, w, across = inputs["x"], inputs["w"], op.inputs[0].dims.index("m") == 2
    whole, problems = None, []
    for threads in counts:
        with Pack(path, threads) as pack:
            run = pack.op(op.name).run
            whole = run(x, w) if whole is None else whole
            for b, m in SOME:
                b = b if "b" in meaning.dynamic else x.shape[0]
                m = m if "m" in meaning.dynamic else x.shape[2 if across else 1]
                for of, rows in ((slice(b), slice(m)), (slice(-b, None), slice(-m, None))):
                    part = run(x[of, :, rows] if across else x[of, rows], w[of])
                    if not np.array_equal(part, whole[of, rows]):
                        problems.append(
                            f"{op.name} b={b} m={m} threads={threads}: not the bits of a larger call, as promised"
                        )
    return problems
