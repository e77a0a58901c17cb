"""Check of a batch-invariant pack for batch_matmul: a row's bits do not depend on what comes with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from haotuner.pack.op import PackOp
from haotuner.spec.call_case import CallCase
from haotuner.spec.shape import Shape

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
