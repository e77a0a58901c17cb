from dataclasses import replace

import numpy as np
import pytest

from haotuner.cost.roofline import roofline_us
from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device as real_device
from haotuner.records.codec import trial_of
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Timed
from haotuner.spec.shape import Shape
from haotuner.transfer.fit import fit_model
from haotuner.transfer.reading import read_records
from tests.bench.transfer_study.permutation import retold
from tests.bench.transfer_study.splits import table_of
from tests.transfer.transfer_examples import COUSIN, KERNELS, OP, SHAPES, WIDE, find_device, read, record, records, tables

TRIAL = trial_of(op=OP, kernel=KERNELS[0].name, shape=SHAPES[0])
GOOD = records(WIDE, kernels=KERNELS[:4])


def test_rows_of_a_task_share_op_and_shape_and_labels_are_shares_of_the_roofline() -> None:
    (table,) = read(WIDE).tables
    assert len(table) == len(KERNELS) * len(SHAPES) and len(table.groups()) == len(SHAPES)
    assert all(len({table.trials[row].shape for row in rows.tolist()}) == 1 for rows in table.groups())
    assert table.labels.min() > -6 and table.labels.max() < 0.5
    assert np.isfinite(table.frame.to_numpy()).all()


def test_a_trial_measured_thrice_counts_once_with_its_median() -> None:
    trial = GOOD[0].trial
    again = [record(trial, Timed(samples_us=(us,)), "wide") for us in (100.0, 900.0, 110.0)]
    (table,) = read_records(again, find_device).tables
    single = read_records([record(trial, Timed(samples_us=(110.0,)), "wide")], find_device).tables[0]
    assert len(table) == 1 and table.labels == single.labels


def test_failures_compositions_unknown_families_and_devices_are_left_out_and_counted() -> None:
    odd = [
        record(TRIAL, Failed(stage="run", reason="crash"), "wide"),
        record(
            trial_of(op=OP, kernel=f"{KERNELS[0].name}*3+{KERNELS[1].name}*1", shape=SHAPES[0]),
            Timed(samples_us=(5.0,)),
            "wide",
        ),
        record(trial_of(op=OP, kernel="no_such__a1", shape=SHAPES[0]), Timed(samples_us=(5.0,)), "wide"),
        record(TRIAL, Timed(samples_us=(5e3,)), "absent"),
    ]
    device_tables = read_records([*GOOD, *odd], find_device)
    assert [len(table) for table in device_tables.tables] == [len(GOOD)]
    assert sum(device_tables.left_out.values()) == 4 and len(device_tables.left_out) == 4


def test_records_of_a_stand_in_are_never_learned_from() -> None:
    invented = [record(r.trial, r.outcome, "stand-in-sm-80") for r in GOOD]
    device_tables = read_records([*GOOD, *invented], lambda name: find_device("wide"))
    assert [table.device.id for table in device_tables.tables] == ["wide"] and len(device_tables.tables[0]) == len(GOOD)
    assert device_tables.left_out["device stand-in-sm-80: a stand-in for tests, whose times are invented"] == len(GOOD)
    with pytest.raises(UsageError, match="stand-in for tests, whose times are invented"):
        read_records(invented, lambda name: find_device("wide"))
    with pytest.raises(UsageError, match="no model is fitted for it"):
        fit_model(device_tables, replace(WIDE, id="stand-in-sm-80"))


@pytest.mark.parametrize("factor", [1e-3, 1e9])
def test_times_in_another_unit_are_refused(factor: float) -> None:
    wrong = [record(r.trial, Timed(samples_us=(r.outcome.median_us * factor,)), "wide") for r in GOOD]  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="microseconds"):
        read_records(wrong, find_device)


@pytest.mark.parametrize(("ms", "refused"), [(20.0, False), (20_000.0, True)])
def test_a_long_problem_a_thousand_times_slower_than_the_roofline_is_in_another_unit(ms: float, refused: bool) -> None:
    """A product of 4,096 cubed takes 8.4 ms at the least on a TITAN RTX; microseconds read as milliseconds are 20 s."""
    params = "nwg64_kwg32_mdimc8_ndimc8_mdima8_ndimb8_kwi2_vwm2_vwn2_strm0_strn0_sa1_sb1"
    kernels = [f"clblast_xgemm__mwg{mwg}_{params}" for mwg in (16, 32, 64)]
    records = [
        record(trial_of("dense_n4096_k4096", kernel, Shape.of(m=4096)), Timed(samples_us=(1e3 * ms + at,)), "titan-rtx")
        for at, kernel in enumerate(kernels)
    ]
    if refused:
        with pytest.raises(UsageError, match="below anything possible"):
            read_records(records, real_device)
    else:
        assert len(read_records(records, real_device).tables[0]) == 3


def test_operands_in_caches_come_faster_than_memory_brings_them() -> None:
    """One row, weights hot: a core whose memory is slow reads its caches thirty times as fast. Cold that is another unit."""
    slow = replace(WIDE, memory_gbps=1.0)
    least_us = float(roofline_us(slow, Op.parse(OP), [Shape.of(m=1)])[0])
    for weights, right in (("hot", True), ("cold", False)):
        trial = replace(TRIAL, shape=Shape.of(m=1), weights=weights)
        fast = [record(trial, Timed(samples_us=(least_us / 30,)), "wide")]
        if right:
            (table,) = read_records(fast, lambda _: slow).tables
            assert table.labels == pytest.approx(np.log(30), rel=0.01)
            continue
        with pytest.raises(UsageError, match="microseconds"):
            read_records(fast, lambda _: slow)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_no_times_cannot_become_records(bad: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        Timed(samples_us=(bad,))


def test_nothing_to_learn_from_says_what_was_found() -> None:
    with pytest.raises(UsageError, match="the store is empty"):
        read_records([], find_device)
    with pytest.raises(UsageError, match="1 failed"):
        read_records([record(TRIAL, Failed(stage="run", reason="crash"), "wide")], find_device)


def test_records_of_another_schema_are_refused() -> None:
    renamed = record(trial_of(op=OP, kernel="cpu_dense_fp32__MR=3", shape=SHAPES[0]), Timed(samples_us=(5e3,)), "wide")
    with pytest.raises(UsageError, match="another schema"):
        read_records([renamed], find_device)
    strange = record(trial_of(op="no extents", kernel=KERNELS[0].name, shape=SHAPES[0]), Timed(samples_us=(5e3,)), "wide")
    with pytest.raises(UsageError, match="neither an op nor"):
        read_records([strange], find_device)
    lacking = record(trial_of(op=OP, kernel="cpu_dense_fp32__nr64", shape=SHAPES[0]), Timed(samples_us=(5e3,)), "wide")
    with pytest.raises(UsageError, match="another schema"):
        read_records([lacking], find_device)


def test_foreign_problems_are_read_from_their_names() -> None:
    tile = MicroKernel("kt_conv2d", tuple(dict(bx=32, by=4, tx=2, ty=2, fh=15, fw=15, ro=1, pad=0, sh=1, cm=1).items()))
    trial = trial_of(op="conv2d_w4096_h4096_fw15_fh15", kernel=tile.name, shape=Shape.of(), weights="hot")
    (table,) = read_records([record(trial, Timed(samples_us=(1e5,)), "wide")], find_device).tables
    assert table.family == "kt_conv2d" and len(table) == 1


def test_the_target_is_told_from_its_sources() -> None:
    device_tables = read(WIDE, COUSIN)
    target, sources = table_of(device_tables, "cpu_dense_fp32", "cousin")
    assert target.device.id == "cousin" and [table.device.id for table in sources] == ["wide"]


def test_another_profile_changes_features_but_neither_rows_nor_labels() -> None:
    (table,) = tables(WIDE)
    other = retold(table, COUSIN)
    assert other.trials == table.trials and (other.labels == table.labels).all()
    assert not other.frame.equals(table.frame) and retold(table, WIDE).frame.equals(table.frame)
