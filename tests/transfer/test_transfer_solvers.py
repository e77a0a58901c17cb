"""Choice of a solver on unseen silicon and for unseen shapes: what is learned, what may not be looked at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.records.miopen import ConvProblem
from tests.bench.transfer_study.solvers.evaluate import BLIND, LEARNED, PRIOR, evaluate_solvers
from tests.bench.transfer_study.solvers.features import gemm_of
from tests.bench.transfer_study.solvers.learned import LearnedChoice, Settings, kriged
from tests.bench.transfer_study.solvers.pool import SolverPool, chosen_shares
from tests.bench.transfer_study.solvers.shapes import TABLE, evaluate_shapes
from tests.transfer.solver_examples import SOLVERS, table

QUICK = Settings(problems=120, rounds=60, leaves=15)


@pytest.fixture(scope="module")
def pool() -> SolverPool:
    return SolverPool(
        [table("gfx803", 36), table("gfx906", 60, seed=1), table("gfx908", 120, seed=2), table("gfx90a", 110, seed=3)]
    )


def test_the_learned_choice_knows_what_hangs_on_shape_and_device(pool: SolverPool) -> None:
    document = evaluate_solvers(pool, settings=QUICK)
    assert set(document["targets"]) == {"gfx803-36", "gfx906-60", "gfx908-120", "gfx90a-110"}
    for target in document["targets"].values():
        scores = target["rankings"]
        assert scores[LEARNED]["mean"] > scores[PRIOR]["mean"] + 0.05
        assert scores[LEARNED]["least"] <= scores[LEARNED]["p10"] <= 1.0
        assert {name for name in scores if name.startswith("copy of ")} == set(target["known"])
        assert BLIND in scores
    assert document["bar"]["learned"] == pytest.approx(1.0, abs=0.02)  # as the copies of a device of the same generation


def test_siblings_of_one_silicon_are_never_on_both_sides() -> None:
    pool = SolverPool([table("gfx90a", 110), table("gfx90a", 104, seed=1), table("gfx908", 120, seed=2)])
    target = pool.device("gfx90a-110")
    assert [rows.device.id for rows in pool.sources(target)] == ["gfx908-120"]
    only = SolverPool([table("gfx90a", 110), table("gfx90a", 104, seed=1)])
    with pytest.raises(UsageError, match="two silicons are needed"):
        evaluate_solvers(only, settings=QUICK)
    with pytest.raises(UsageError, match="no times of solvers on x; found gfx90a-110, gfx90a-104"):
        only.device("x")


def test_scores_do_not_read_the_targets_times(pool: SolverPool) -> None:
    target = pool.device("gfx906-60")
    sources = pool.sources(target)
    model = LearnedChoice(pool, sources, QUICK)
    shuffled = replace(target, share=np.random.default_rng(0).permutation(target.share), best_ms=target.best_ms * 7)
    assert model.scores(target).tolist() == model.scores(shuffled).tolist()


def test_without_hardware_devices_are_alike(pool: SolverPool) -> None:
    table, other = pool.device("gfx803-36"), pool.device("gfx90a-110")
    model = LearnedChoice(pool, [pool.device("gfx906-60")], replace(QUICK, hardware=False, kriging=False))
    common = table.take(np.flatnonzero(~np.isnan(other.said_of(table.key))))
    assert model.scores(common).tolist() == model.scores(replace(common, device=other.device)).tolist()


def test_kriging_believes_as_much_as_errors_hang_together() -> None:
    errors = np.array([[1.0, np.nan], [1.0, 1.0], [np.nan, np.nan]])
    single, both, none = kriged(errors, np.eye(2), np.array([0.5, 0.5]))
    assert none == 0.0 and 0.45 < single < 0.5 and both == pytest.approx(2 * single)
    alike = kriged(errors, np.array([[1.0, 1.0], [1.0, 1.0]]), np.array([0.5, 0.5]))
    assert alike[1] < 0.55, "two sources that say the same say it once"


def test_the_choice_is_the_highest_score_of_each_problem(pool: SolverPool) -> None:
    rows = pool.device("gfx803-36")
    assert chosen_shares(rows, rows.share).tolist() == [1.0] * len(np.unique(rows.problem))
    assert (chosen_shares(rows, -rows.share) < 1.0).all()


def test_held_out_shapes_are_judged_against_the_nearest_shapes_table(pool: SolverPool) -> None:
    document = evaluate_shapes(pool, settings=QUICK)
    for device in document["devices"].values():
        assert set(device["rankings"]) == {TABLE, "learned", "prior of solvers"}
        assert device["problems"] == 120
        assert device["rankings"]["learned"]["mean"] > device["rankings"]["prior of solvers"]["mean"]


def test_a_backward_problem_counts_the_work_of_its_forward_one() -> None:
    forward = ConvProblem.parse("64-28-28-3x3-128-14-14-8-1x1-2x2-1x1-0-NCHW-FP32-F")
    backward = ConvProblem.parse("128-14-14-3x3-64-28-28-8-1x1-2x2-1x1-0-NCHW-FP32-B")
    assert forward.flops == backward.flops == 2.0 * 8 * 128 * 14 * 14 * 64 * 9
    assert forward.least_bytes == backward.least_bytes
    rows, cols, depth = gemm_of(forward)
    assert 2 * rows * cols * depth == forward.flops
    assert len(SOLVERS) == 4
