"""MIOpen's find databases: both line formats, every kind of bad input, what a file's name says."""

from __future__ import annotations

import bz2
from functools import partial
from pathlib import Path

import pytest

from haotuner.errors import UnknownDevice, UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.imported.solvers import IMPLICIT, MATRIX, NAIVE, WINOGRAD, algorithm_of
from haotuner.records.importing import Loaded
from haotuner.records.miopen import MOST_PROBLEMS, SolverTable, device_of, load_find_database, read_find_database
from haotuner.transfer.reading import read_records

FLAT = "64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP32-F"
DEEP = "1024-1-14-14-1x3x3-1024-1-14-14-1-0x1x1-1x1x1-1x1x1-0-NCDHW-FP16-B_g32"
NEWER = f"{FLAT}=ConvWino:0.5,0,miopenConvolutionFwdAlgoWinograd;GemmFwd:1.5,64,miopenConvolutionFwdAlgoGEMM"
OLDER = f"{DEEP}=miopenConvolutionBwdDataAlgoGEMM:GemmBwdRest,0.25,0,rocBlas,<unused>"


def read(tmp_path: Path, *lines: str, name: str = "gfx906_60.HIP.fdb.txt") -> SolverTable:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_find_database(path)


def rows(table: SolverTable) -> dict[tuple[str, str], float]:
    triples = zip(table.problem.tolist(), table.solver.tolist(), table.ms.tolist(), strict=True)
    return {(table.problems[problem], table.solvers[solver]): ms for problem, solver, ms in triples}


def test_both_formats_give_the_same_kind_of_row(tmp_path: Path) -> None:
    table = read(tmp_path, NEWER, OLDER)
    assert rows(table) == {(FLAT, "ConvWino"): 0.5, (FLAT, "GemmFwd"): 1.5, (DEEP, "GemmBwdRest"): 0.25}
    assert table.device.id == "gfx906-60" and not table.left_out
    assert any("two line formats in one file" in note for note in table.notes)
    assert not read(tmp_path, NEWER).notes


def test_times_that_cannot_be_are_dropped_and_counted(tmp_path: Path) -> None:
    table = read(tmp_path, f"{FLAT}=A:0,0,x;B:-1,0,x;C:nan,0,x;D:soon,0,x;E:0.5,0,x;F:0.000001,0,x")
    assert rows(table) == {(FLAT, "E"): 0.5}
    assert dict(table.left_out) == {
        "times of zero or less": 2,
        "times that are not finite": 1,
        "times that are no numbers": 1,
        "times faster than the device can be": 1,
    }


def test_a_problem_that_is_listed_twice_counts_where_it_agrees(tmp_path: Path) -> None:
    table = read(tmp_path, NEWER, f"{FLAT}=ConvWino:0.6,0,x;GemmFwd:9.0,0,x")
    assert rows(table) == {(FLAT, "ConvWino"): 0.55}
    assert table.left_out["times of one solver on one problem that are more than 2 times apart"] == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no sign of a database", "lines without '='"),
        ("64-56-56=A:1,0,x", "problems: not a convolution's text"),
        (f"{FLAT.replace('FP32', 'FP7')}=A:1,0,x", "problems: type FP7"),
        (f"{FLAT.replace('3x3', '3x3x3')}=A:1,0,x", "problems: image, filter and result differ"),
        (f"{FLAT.replace('64-56', '0-56', 1)}=A:1,0,x", "problems: an extent is 0"),
        (f"{FLAT}=A", "entries that are neither"),
    ],
)
def test_lines_that_mean_nothing_are_counted(tmp_path: Path, line: str, reason: str) -> None:
    table = read(tmp_path, NEWER, line)
    assert len(table) == 2 and [text for text in table.left_out if text.startswith(reason)]
    with pytest.raises(UsageError, match="not one usable time"):
        read(tmp_path, line)


def test_half_a_download_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = [f"{FLAT.replace('-32-1x1', f'-{batch}-1x1')}=A:{batch / 40:.3f},0,x" for batch in range(20, 9000)]
    whole = bz2.compress("\n".join(lines).encode(), 1)
    path = tmp_path / "gfx906_60.HIP.fdb.txt.bz2"
    path.write_bytes(whole)
    assert len(read_find_database(path).problems) == len(lines)
    path.write_bytes(whole[: len(whole) * 2 // 3])
    table = read_find_database(path)
    assert 0 < len(table.problems) < len(lines)
    assert any("cut short: the bzip2 data ends early" in note for note in table.notes)
    path.write_bytes(whole[: len(whole) // 3] + b"damaged" + whole[len(whole) // 3 :])
    with pytest.raises(UsageError, match="bzip2 data is damaged"):
        read_find_database(path)


@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e4])
def test_times_of_another_unit_are_refused(tmp_path: Path, factor: float) -> None:
    lines = [f"{FLAT.replace('-32-1x1', f'-{batch}-1x1')}=A:{batch / 40 * factor},0,x" for batch in range(20, 60)]
    with pytest.raises(UsageError, match="not milliseconds, or another device|not one usable time"):
        read(tmp_path, *lines)


@pytest.mark.parametrize(
    ("name", "expected", "units"),
    [
        ("gfx906_60", "gfx906-60", 60),
        ("gfx90878", "mi100", 120),
        ("gfx90a6e", "mi250x", 110),
        ("gfx90a6c", "gfx90a-108", 108),
        ("gfx1030_36", "gfx1030-72", 72),
    ],
)
def test_a_file_name_says_architecture_and_units(name: str, expected: str, units: int) -> None:
    known = device_of(name, Path(name))
    assert (known.id, known.facts["compute_units"]) == (expected, units)


@pytest.mark.parametrize("name", ["gfx7777_10", "sm_90", "gfx906", "gfx906_", "gfx90a-6e", ""])
def test_a_file_name_that_says_less_is_refused(name: str) -> None:
    with pytest.raises(UnknownDevice, match="name the device with --device"):
        device_of(name, Path(name))


THREE = "ConvBinWinogradRxSf2x3:0.5,0,x;GemmFwdRest:1.5,6422528,x;ConvDirectNaiveConvFwd:9.5,0,x"


def load(tmp_path: Path, *lines: str, name: str = "gfx906_60.HIP.fdb.txt") -> Loaded:
    read(tmp_path, *lines, name=name)
    return load_find_database(tmp_path / name)


def test_forward_convolutions_become_records_that_a_model_can_learn_from(tmp_path: Path) -> None:
    loaded = load(tmp_path, f"{FLAT}={THREE}", f"{FLAT[:-1]}B={THREE}", OLDER)
    assert {record.trial.op.name for record in loaded.records} == {"conv2d_c64_f64_r3_s3_pad1"}
    assert [record.outcome.median_us for record in loaded.records] == [500.0, 1500.0, 9500.0]  # type: ignore[union-attr]
    assert [record.facts["solver"] for record in loaded.records][0] == "ConvBinWinogradRxSf2x3"
    assert "_ws6272_" in loaded.records[1].trial.kernel
    assert sum(loaded.refused.values()) == 4, "three backward, and a problem of one solver"
    (table,) = read_records(loaded.records, partial(find_device, measure=False)).tables
    assert table.device.id == "gfx906-60" and table.family == "miopen_conv" and len(table.groups()) == 1
    expected = table.frame["expected_log"].to_numpy()[[t.trials.index(r.trial) for t in [table] for r in loaded.records]]
    assert expected[0] == expected.max() and expected[2] == expected.min(), "the analysis knows algorithms and workspace"


def test_of_a_large_file_a_part_is_drawn_always_the_same(tmp_path: Path) -> None:
    lines = [f"{FLAT.replace('-32-1x1', f'-{batch}-1x1')}={THREE}" for batch in range(8, MOST_PROBLEMS + 40)]
    loaded = load(tmp_path, *lines)
    assert len(loaded.records) == 3 * MOST_PROBLEMS and loaded.records == load(tmp_path, *lines).records
    assert [count for reason, count in loaded.refused.items() if "which were drawn" in reason] == [3 * 32]


def test_a_solver_a_hundred_times_slower_than_the_best_ranks_nothing_and_is_no_other_unit(tmp_path: Path) -> None:
    loaded = load(tmp_path, f"{FLAT}={THREE};ConvSlow:400,0,x")
    assert len(loaded.records) == 3 and loaded.refused == {"times more than a hundred times the best of their problem": 1}


def test_a_file_without_a_forward_convolution_stores_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not one time of a solver.*nothing was stored"):
        load(tmp_path, OLDER)


def test_solvers_have_the_algorithm_that_their_names_say() -> None:
    names = ("ConvDirectNaiveConvFwd", "ConvBinWinograd3x3U", "ConvHipImplicitGemmV4R4Fwd", "ConvMlirIgemmFwdXdlops")
    assert [algorithm_of(name) for name in names] == [NAIVE, WINOGRAD, IMPLICIT, MATRIX]
