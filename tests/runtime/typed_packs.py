"""Small packs of typed dense ops, built without tuning."""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.backends.cpu.pack_dense import Blocking
from haotuner.backends.cpu.pack_source import PackedOp
from haotuner.microkernels.cpu.typed import WORDS, CpuTyped, begun
from haotuner.microkernels.index import families_for
from haotuner.spec.op import Op
from tests.runtime.packs import LIMIT, SPLITS, plan_for


def typed_op(name: str, lanes: int, counts: Sequence[int] = (1, 2)) -> PackedOp:
    """An op with one plan a thread count over tiles of 1, 2 and 4 rows, two of them of several panels."""
    op = Op.parse(name)
    (family,) = families_for(op, "cpu")
    assert isinstance(family, CpuTyped)
    pw = lanes
    kernels = [family.typed(op, (rows, wide * pw, pw, 2, lanes, 0)) for rows, wide in ((1, 2), (2, 1), (4, 3))]
    n, k, word = op["n"], op["k"], WORDS[op.dtype]
    panels = max(-(-n // kernel["nr"]) * (kernel["nr"] // pw) for kernel in kernels)
    setting = Blocking(n=n, k=k, pw=pw, panels=panels, col_block=2 * pw, row_block=8,
                      floats=panels * (word.depth(k) * word.floats(pw) + begun(kernels[0]) * pw))  # fmt: skip
    plans = [plan_for(kernels, count, SPLITS[i % 3], i) for i, count in enumerate(counts)]
    return PackedOp(op=op, setting=setting, first_m=2, last_m=LIMIT, kernels=kernels, plans=plans)
