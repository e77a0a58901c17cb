"""Held-out shapes: which kernels compete at a shape, what a label is, and that the page judges by rounds not seen."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from haotuner.cost.forest import Settings
from haotuner.records.codec import trial_of
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import Shape
from tests.bench.held_out import ROWS, asked, covering, half, halves, page, table_of_held
from tests.bench.own_records import OwnRecords, all_records
from tests.cost.cost_examples import BIG_CORE

KERNELS = [
    f"cpu_dense_fp32__mr{mr}_nr{nr}_pw{nr}_ku{ku}_vl16_pf0"
    for mr in (1, 2, 4)
    for nr in (16, 32, 48, 64)
    for ku in (1, 2, 4)
]


def record(trial: Trial, us: float) -> Record:
    return Record(trial=trial, outcome=Timed(samples_us=(us,)), device_id="d", fingerprint="f", session="s", when=1.0)


def measured(rounds: int) -> OwnRecords:
    """Twelve kernels of each height at all shapes they can run, slower by a tenth in every later round."""
    trials = [
        trial_of(op=op, kernel=name, shape=Shape.of(m=rows))
        for op in ("dense_n320_k480", "dense_n640_k2048")
        for name in KERNELS
        for m in ROWS
        if (rows := covering(MicroKernel.parse(name)["mr"], m))
    ]
    spread = {trial: 1000.0 * trial.shape["m"] * (1.0 + KERNELS.index(trial.kernel) * 7 % 36 / 20.0) for trial in trials}
    return halves(BIG_CORE, [record(t, us * 1.1**at) for at in range(rounds) for t, us in spread.items()])


@given(mr=st.integers(1, 16), m=st.sampled_from(ROWS))
def test_a_kernel_competes_at_a_shape_that_it_covers_to_an_eighth(mr: int, m: int) -> None:
    rows = covering(mr, m)
    if rows is None:
        assert all(8 * abs(tiles * mr - m) > m for tiles in range(1, m + 2))
    else:
        assert rows % mr == 0 and rows > 0 and 8 * abs(rows - m) <= m
        assert asked(rows) == m


def test_halves_are_medians_over_every_other_round() -> None:
    trial = trial_of(op="dense_n320_k480", kernel=KERNELS[0], shape=Shape.of(m=2))
    times = [1.0, 10.0, 3.0, 30.0, 2.0]
    half_medians = halves(BIG_CORE, [record(trial, us) for us in times])
    assert half_medians.rounds == {trial: (2.0, 20.0)}
    assert halves(BIG_CORE, [record(trial, 5.0)]).rounds == {trial: (5.0,)}


def test_a_task_holds_kernels_of_every_height_and_its_labels_lie_between_the_halves() -> None:
    own = measured(2)
    table = table_of_held(own)
    heights = {task: {MicroKernel.parse(table.trials[i].kernel)["mr"] for i in np.flatnonzero(table.tasks == at)}
               for at, task in enumerate(table.task_names)}  # fmt: skip
    assert heights["dense_n320_k480 m=256"] == {1, 2, 4} and heights["dense_n320_k480 m=1"] == {1}
    first, second = half(own, table, 0), half(own, table, -1)
    assert np.allclose(first - second, math.log(1.1))  # the second was slower
    assert np.allclose((first + second) / 2, table.labels)


def test_the_page_has_a_row_a_ranking_and_equal_halves_agree_fully() -> None:
    lines = list(page([measured(1)], Settings(trees=5)))
    rows = [line.split(" | ") for line in lines if line.startswith("| big-core")]
    assert [row[1].split(",")[0] for row in rows[:5]] == [row[1].split(",")[0] for row in rows[5:]]
    again = next(row for row in rows if row[1].startswith("half of the rounds"))
    assert again[2] == "1.000"
    assert all(0.0 <= float(row[2]) <= 1.0 for row in rows[:5])


def test_instruction_sets_of_a_host_have_its_memory_and_other_hosts_their_own(tmp_path: Path) -> None:
    rates = {"host-avx512": 30.0, "host-sse": 34.0, "other-sse": 40.0}
    for name, rate in rates.items():
        device = replace(BIG_CORE, id=name, memory_gbps=2 * rate, memory_gbps_unit=rate)
        replace(measured(1), device=device).write(tmp_path)
    bandwidths = {own.device.id: (own.device.memory_gbps_unit, own.device.memory_gbps) for own in all_records(tmp_path)}
    assert bandwidths == {"host-avx512": (34, 68), "host-sse": (34, 68), "other-sse": (40, 80)}
