"""Policies search one space by one protocol: no point twice, all of it in the end; those that learn get there first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from haotuner.codegen.memory_traffic import Level, MemoryTraffic
from haotuner.codegen.op_counter import count_ops
from haotuner.codegen.schedule import planned
from haotuner.codegen.space import Point, Space
from haotuner.codegen.template import Template
from haotuner.errors import UsageError
from haotuner.microkernels.index import families_for
from haotuner.search.explore import check_template
from haotuner.search.policies.evolution import Evolution
from haotuner.search.policies.index import POLICIES
from haotuner.search.policies.template import ONE_ROW
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Trial
from haotuner.spec.shape import ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.schedule_search import read_template
from haotuner.tuning.strategies import Task, tune
from tests.bench.policies import HOME, load, replayed
from tests.codegen.test_generate import GROUPS
from tests.search.fake_lab import CORE, TASK, FakeLab

SPACE = Space(GROUPS["layer_norm"], 16)
SOFTMAX = Op.parse("softmax")


def truth(point: Point) -> float:
    """A time by decisions that add up, and a little that hangs on two of them together."""
    costs = np.array([0.3, 0.5, 0.11, 0.07, 0.13, 0.1, 0.2])
    optimum = np.array([1, 0, 3, 1, 2, 1, 0])
    apart = np.abs(np.array(point) - optimum)
    return float(costs[: len(apart)] @ apart[: len(costs)] + 0.05 * (apart[2] * apart[4]))


def ignorant(points: Sequence[Point]) -> np.ndarray:
    return np.zeros((len(points), 2))


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_asks_for_every_point_of_its_space_once(name: str) -> None:
    small = Space(GROUPS["sum_last"], 16)
    policy, seen = POLICIES[name](small, ignorant, 0), list[Point]()
    while batch := policy.ask(8):
        policy.tell([(point, float(sum(point))) for point in batch])
        seen += batch
    every = set(small.points)
    if name == "template":
        every = set(replace(small, template=ONE_ROW).points)
    assert len(seen) == len(set(seen)) and set(seen) == every


def found_after(name: str, seed: int, count: int) -> float:
    policy, best = POLICIES[name](SPACE, ignorant, seed), np.inf
    for _ in range(count // 8):
        scored = [(point, truth(point)) for point in policy.ask(8)]
        best = min([best, *(score for _, score in scored)])
        policy.tell(scored)
    return float(best)


def test_evolution_learns() -> None:
    seeds = range(2)
    evolved, drawn = (np.mean([found_after(name, seed, 48) for seed in seeds]) for name in ("evolution", "random"))
    assert evolved < 0.7 * drawn, (evolved, drawn)
    assert found_after("evolution", 1, 32) == found_after("evolution", 1, 32), "equal seeds, equal searches"


def test_children_of_two_parents_are_points_of_the_space() -> None:
    policy, rng = Evolution(SPACE, ignorant, 0), np.random.default_rng(1)
    policy.tell([(point, truth(point)) for point in policy.ask(16)])
    every, alike = set(SPACE.points), 0
    groups = [tuple(at for at, hole in enumerate(SPACE.holes) if hole.node == node) for node in SPACE.nodes()]
    for _ in range(1000):
        first, other = SPACE.drawn(rng), SPACE.drawn(rng)
        child = policy._crossed(first, other, truth(first), truth(other))
        assert child in every
        if first[:2] == other[:2]:  # in one structure every node is a parent's
            alike += 1
            assert all(tuple(child[at] for at in group) in {tuple(p[at] for at in group) for p in (first, other)}
                       for group in groups)  # fmt: skip
    assert alike > 50


BYTES = {  # groups with shared operands, with a tensor that may be kept, with a fold that workers may share
    "matmul": (Space(GROUPS["matmul"], 4), {"m": 40, "n": 48, "k": 160}, Level(8192, 4)),
    "layer_norm": (Space(GROUPS["layer_norm"], 4), {"m": 6, "n": 200}, Level(1024, 4)),
    "sum_last": (Space(GROUPS["sum_last"], 4, workers=2), {"m": 3, "n": 900}, Level(1024, 4)),
}


@pytest.mark.parametrize("name", [pytest.param(group, marks=[pytest.mark.slow] * (group != "sum_last")) for group in BYTES])
def test_what_is_found_moves_hardly_more_bytes_than_the_best_of_all(name: str) -> None:
    space, sizes, level = BYTES[name]

    @cache
    def moved(point: Point) -> float:
        return MemoryTraffic(count_ops(planned(space.graph, space.schedule(point)), sizes), every=1).bytes(level)

    least = min(map(moved, space.points))
    search = Evolution(space, lambda points: np.log([[moved(point)] for point in points]), 0)
    scores: dict[Point, float] = {}
    while len(scores) < 48 and (batch := search.ask(8)):
        scores |= {point: float(np.log(moved(point))) for point in batch}
        search.tell([(point, scores[point]) for point in batch])
    assert np.exp(min(scores.values())) <= 1.05 * least, len(space.points)


class RowsLab(FakeLab):
    """Kernels of rows: more vectors an iteration are the slower the shorter the row is."""

    def true_us(self, trial: Trial) -> float:
        kernel = MicroKernel.parse(trial.composition.parts[0].kernel)
        m, n = (trial.shape[axis] for axis in "mn")
        return m * (n / (kernel["vl"] * kernel["u"]) + 0.5 * kernel["u"] + 4.0 * (kernel["ax"] != 2)) / 100


def test_tuning_explores_by_a_policy() -> None:
    lab, family = RowsLab(CORE), families_for(SOFTMAX, "cpu")[0]
    traffic = Traffic.of_range(ShapeRange.parse("m=1..64;n=8..256"), samples=12)
    task = Task(op=SOFTMAX, traffic=traffic, budget_s=3600.0, search="random", cache="hot")
    tuned = tune(task, lab.as_lab(), family)
    assert tuned.kernels and tuned.tables and any("_fu" in name or "_rw" in name for name in lab.prepared)
    with pytest.raises(UsageError, match="no space of schedules"):
        tune(replace(TASK, search="beam"), lab.as_lab(), families_for(TASK.op, "cpu")[0])


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_times_shared_folds(name: str) -> None:
    op = Op.parse("reduce_sum")
    traffic = Traffic.of_range(ShapeRange.parse("m=1..4;n=4096..65536"), samples=6)
    lab = RowsLab(CORE)
    task = Task(op=op, traffic=traffic, budget_s=3600.0, search=name, cache="hot", threads=(1, 2))
    tuned = tune(task, lab.as_lab(), families_for(op, "cpu")[0])
    assert tuned.tables and {"m", "n"} <= {trial.split for trial in lab.measured if trial.threads == 2}


@pytest.mark.long
def test_evolution_finds_what_is_near_the_best_of_a_recorded_table() -> None:
    table = load(HOME / "rms_norm-cpu-amd-epyc-f26m2-avx512.json")
    curve = replayed(table, Evolution, 0, most=24)
    assert curve[23] - min(table.scores().values()) < np.log(1.05), "after 24 of 152 programs"


def restricted(**knobs: object) -> Space:
    return replace(SPACE, template=Template.of(knobs))


def test_a_template_leaves_the_points_that_have_its_values() -> None:
    space = restricted(rows=[2, 4], unroll={"min": 4}, masked=False)
    output = [hole.name for hole in SPACE.holes if hole.node == SPACE.graph.outputs[0]]
    every = {point: SPACE.schedule(point) for point in SPACE.points}
    chosen = {point for point, schedule in every.items() if not schedule.masked and schedule.unroll >= 4}
    assert {"rows", "unroll", "masked"} <= set(output) and 0 < len(space.points) < len(SPACE.points)
    assert set(space.points) <= chosen
    left_out = {every[point].rows for point in chosen - set(space.points)}
    assert left_out <= {1}, "one row is not allowed; where lanes run along no axis the knob means nothing"
    assert all(every[point].rows in (2, 4) or every[point].lane_axis < 0 for point in space.points)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_explores_a_users_template_and_nothing_else(name: str) -> None:
    space = replace(Space(GROUPS["sum_last"], 16), template=Template.of({"unroll": [2, 8], "rows": {"max": 2}}))
    policy, seen = POLICIES[name](space, ignorant, 0), list[Point]()
    while points := policy.ask(8):
        policy.tell([(point, float(sum(point))) for point in points])
        seen += points
    assert len(seen) == len(set(seen)) > 1 and set(seen) == set(space.points)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"colour": 3}, "has no knob 'colour'; it has sketch: 0"),
        ({"rows": [1, 3]}, "knob rows of softmax cannot be 3; it can be 1, 2, 4"),
        ({"unroll": {"min": 9}}, "cannot be no value in this range; it can be 1, 2, 4, 8"),
        ({"rows": "many"}, "write a whole number, a list of them such as"),
        ({"rows": {"from": 1}}, "write a whole number"),
        ({"rows": []}, "write a whole number"),
        ({"rows": 1.5}, "write a whole number"),
    ],
)
def test_a_template_with_an_illegal_knob_is_refused_in_words(knobs: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        check_template(Template.of(knobs), Space(GROUPS["softmax"], 16), SOFTMAX)


def test_a_template_that_leaves_nothing_is_refused() -> None:
    space = Space(GROUPS["matmul"], 64)  # the sums of such a tile have no room
    tile = {"row_blocks": 16, "vector_blocks": 4, "rows": 4, "unroll": 8, "terms": 256}
    tiled = [index for index, sketch in enumerate(space.sketches) if sketch.tiled]
    with pytest.raises(UsageError, match="no schedule of softmax has all of these values"):
        check_template(Template.of(tile | {"sketch": tiled, "axis": 0}), space, SOFTMAX)


def test_a_template_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "knobs.toml"
    path.write_text("rows = [1, 4]  # heights\nunroll = { min = 2, max = 8 }\nmasked = true\n")
    template = read_template(path)
    values = (0, 1, 2, 4, 8, 16)
    allowed = {knob: [v for v in values if template.allows(knob, v)] for knob in ("rows", "unroll", "masked", "axis")}
    assert allowed == {"rows": [1, 4], "unroll": [2, 4, 8], "masked": [1], "axis": [0, 1, 2, 4, 8, 16]}
    for text, words in (("", "it names no knob"), ("rows =", "give a TOML file"), ("rows = 'x'", "knob rows is 'x'")):
        path.write_text(text)
        with pytest.raises(UsageError, match=words):
            read_template(path)
    for hostile in (tmp_path, tmp_path / "missing.toml", Path("/dev/zero")):
        with pytest.raises(UsageError, match="give a TOML file"):
            read_template(hostile)
