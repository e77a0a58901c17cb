"""batch_matmul in a race: contenders compute the same, wrong results show, what cannot be cold is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.bench import products
from haotuner.bench.compare import contest_of
from haotuner.bench.contender import Setting, load
from haotuner.bench.contest import Contest
from haotuner.bench.field import HOST
from haotuner.errors import UsageError
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.serving.packs import LANES, best_level
from tests.serving.product_packs import product_pack

NAME = "batch_matmul_k6_nt"
SHAPE = Shape.of(b=3, m=7, n=21)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    level = best_level()
    return product_pack(tmp_path_factory.mktemp("raced") / "pack", ("batch_matmul:k=6,layout=nt",), LANES[level], level)


@pytest.mark.parametrize("spec", [products.OURS, *products.PEERS.values()])
def test_contenders_compute_the_same(path: Path, spec: str) -> None:
    op = Op.parse(NAME)
    for library in ("torch", "onnxruntime"):
        if library in spec.lower():
            pytest.importorskip(library)
    contender: Any = load(spec, Setting(threads=1, pack=str(path)))
    contender.prepare(op, [])
    factors = products.draw(op, SHAPE, 0)
    calls = contender.aim(factors, 5)
    calls[1]()
    for index in range(5):
        assert products.error_share(op, products.copy(factors, index), contender.result(index)) <= 1
    factors, found = products.copy(factors, 1), contender.result(1)
    assert products.error_share(op, factors, found) <= 1
    found[2, 3, 4] += 1
    assert products.error_share(op, factors, found) > 1
    found[0, 0, 0] = np.nan
    assert products.error_share(op, factors, found) == float("inf")


def test_it_is_raced_hot_unless_asked(path: Path) -> None:
    assert HOST.raceable(Op.parse(NAME)) and not HOST.raceable(Op.parse("batch_matmul:b=1,m=1,n=1,k=1"))
    contest = contest_of(path, environment={}, ops=[Op.parse(NAME)], shapes=[SHAPE], against=None)
    assert (contest.ours, dict(contest.peers), contest.weights) == (products.OURS, products.PEERS, ("hot",))
    with pytest.raises(UsageError, match="softmax has no operand that could be cold; leave --cache-state out, or say hot"):
        Contest(pack=path, ops=(Op.parse("softmax:"),), shapes=(Shape.of(m=1, n=1),), peers={}, environment={})
