"""Rows in groups as a timing process launches them: ``python -m tests.backends.cuda_timing_groups CUBIN OP``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from haotuner.backends.cuda.timing_library import ArgsWords, CallWords, call_words
from haotuner.isolate.answers import Refusal
from haotuner.spec.op import Op
from tests.backends.cuda_timing_shared import LAUNCHES, loaded, opened
from tests.runtime.cuda_packs import GROUPED_PICKS

ROWS, WEIGHTS = 40, 2


def timing_groups(cubin: str, op: str, library: str = "") -> None:
    """Right with each weight, in one launch; a launch and a map that the driver refuses are said, and the next is right."""
    driver, timed = opened(library)
    pick = next(pick for pick in GROUPED_PICKS if pick.op == op)
    parsed, kernel = Op.parse(op), pick.kernels[0]
    g, n, k = (parsed[axis] for axis in ("g", "n", "k"))
    placed = loaded(timed, timed.load(Path(cubin)), kernel)
    draw = np.random.default_rng(2)
    x = draw.standard_normal((ROWS, k)).astype(pick.dtype)
    weights = [draw.standard_normal((g, n, k)).astype(pick.dtype) for _ in range(WEIGHTS)]
    ends = (np.arange(1, g + 1) * ROWS // g).astype(np.int32)

    def put(values: np.ndarray) -> int:
        address = timed.allocate(values.nbytes)
        timed.put(address, values)
        return address

    at_x, at_w, at_ends = put(x), np.array([put(weight) for weight in weights], np.uint64), put(ends)
    y = np.zeros((ROWS, n), pick.dtype)
    at_y = timed.allocate(y.nbytes)

    def call(first: int) -> CallWords:
        args = ArgsWords(x=at_x, y=at_y, m=ROWS, n=n, k=k, ldx=k, ldy=n, splits=1)
        return call_words([(placed, ROWS)], 0, args, at_w[first:], at_ends, g)

    def judge(weight: int) -> None:
        timed.get(at_y, y)
        timed.poison(at_y, y.nbytes)
        for group, (begin, end) in enumerate(pairwise((0, *ends))):
            exact = x[begin:end].astype(np.float64) @ weights[weight][group].astype(np.float64).T
            np.testing.assert_allclose(y[begin:end], exact, rtol=0, atol=2e-2 if pick.dtype == "float16" else 1e-4)

    before = driver.count("cuLaunchKernel")
    for weight in range(WEIGHTS):
        timed.run(call(weight))
        judge(weight)
    assert driver.count("cuLaunchKernel") == before + WEIGHTS
    assert timed.once_us(call(0)) > 0
    judge(WEIGHTS - 1)
    timed.prepare(call(0), LAUNCHES)
    assert timed.replay_us() > 0
    judge((LAUNCHES - 1) % WEIGHTS)
    both, maps = call(0), ["cuTensorMapEncodeTiled"] if placed.words.maps else []
    doing: tuple[Callable[[], object], ...] = (lambda: timed.run(both), lambda: timed.prepare(both, LAUNCHES))
    for name in ("cuLaunchKernel", *maps):
        for act in doing:
            driver.fail(name, "2", 1)
            with pytest.raises(Refusal, match=r"\(2\)"):
                act()
            driver.fail(name, "")
            timed.run(both)
            judge(0)


if __name__ == "__main__":
    timing_groups(*sys.argv[1:])
