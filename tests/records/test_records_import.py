"""Kernel Tuner caches into a store: whole, cut at any byte, with bad rows, of unknown devices."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import EnvironmentMissing, UnknownDevice, UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.records import MemoryStore, text
from haotuner.records.importing import Imported, load_jsonl, load_kernel_tuner
from haotuner.records.kernel_tuner import CONV, XGEMM, choose, read_cache
from haotuner.records.store import RecordStore
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Timed
from haotuner.spec.shape import Shape

GEMM = (
    "MWG",
    "NWG",
    "KWG",
    "MDIMC",
    "NDIMC",
    "MDIMA",
    "NDIMB",
    "KWI",
    "VWM",
    "VWN",
    "STRM",
    "STRN",
    "SA",
    "SB",
    "PRECISION",
)
CONV_1 = (
    *("block_size_x", "block_size_y", "filter_height", "filter_width", "read_only", "tile_size_x", "tile_size_y"),
    "use_padding",
)


def imported(path: Path, store: RecordStore, **more: Any) -> Imported:
    """What became of a file that was stored."""
    return load_kernel_tuner(path, **more).into(store)


def find(name: str) -> Device:
    known = {"NVIDIA TITAN RTX": "titan-rtx", "titan-rtx": "titan-rtx", "a4000": "a4000"}
    if name not in known:
        raise UnknownDevice(f"unknown device {name!r}; nearest: titan-rtx")
    return Device(
        id=known[name], kind="cuda", name=name, arch="sm_75", compute_units=72, wave_width=32, registers_per_thread=255,
        peak_gflops=16312.0,
    )  # fmt: skip


def gemm_row(time: object = 12.5, **changes: object) -> dict[str, object]:
    values = (64, 64, 32, 16, 16, 16, 16, 2, 4, 4, 0, 0, 1, 1, 32)
    row: dict[str, object] = dict(zip(GEMM, values, strict=True))
    samples = [time, time] if isinstance(time, float) else None
    row |= {"time": time, "compile_time": 80.5, "strategy_time": 0, "framework_time": 1.0}
    row |= {"times": samples} if samples else {}
    return {**row, "timestamp": "2023-02-13 19:25:58.916914+00:00", **changes}


def cache(rows: list[dict[str, object]], keys: tuple[str, ...] = GEMM, **changes: object) -> dict[str, object]:
    head: dict[str, object] = {"device_name": "NVIDIA TITAN RTX", "kernel_name": "Xgemm", "problem_size": [4096, 4096]}
    named = {",".join(str(row.get(key)) for key in keys) + f"#{i}": row for i, row in enumerate(rows)}
    return {**head, "tune_params_keys": list(keys), "tune_params": {}, "cache": named, **changes}


@pytest.fixture
def file(tmp_path: Path):
    def write(content: object) -> Path:
        path = tmp_path / "cache.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def test_a_row_becomes_a_record_in_microseconds(file):
    store = MemoryStore()
    path = file(cache([gemm_row(12.5, times=[12.0, 13.0], **{"GFLOP/s": 10995.1})]))
    done = imported(path, store, find_device=find)
    (record,) = store.records()
    assert record.outcome == Timed(samples_us=(12000.0, 13000.0))
    assert record.device_id == "titan-rtx"
    assert record.trial.known_op == Op(kind="dense", static=(("n", 4096), ("k", 4096)))
    assert record.trial.shape == Shape.of(m=4096)
    kernel = MicroKernel.parse(record.trial.kernel)
    assert kernel.family == "clblast_xgemm"
    assert [kernel[key] for key in ("mwg", "nwg", "kwg", "mdimc", "vwn", "sb")] == [64, 64, 32, 16, 4, 1]
    assert record.when == pytest.approx(1676316358.9, abs=1)
    assert record.facts["compile_time"] == 80.5
    assert record.facts["source"] == "cache.json"
    assert (done.rows, done.timed, done.failed, done.new, dict(done.refused), done.torn) == (1, 1, 0, 1, {}, "")


def test_both_convolutions_are_one_family_and_the_older_one_says_what_it_always_did():
    first = dict(zip(CONV_1, (32, 4, 15, 15, 1, 2, 3, 1), strict=True))
    later = {**first, "use_shmem": 0, "use_cmem": 1}
    assert CONV.kernel(first).name == "kt_conv2d__bx32_by4_tx2_ty3_fh15_fw15_ro1_pad1_sh1_cm1"
    assert CONV.kernel(later).name == "kt_conv2d__bx32_by4_tx2_ty3_fh15_fw15_ro1_pad1_sh0_cm1"
    problem = CONV.problem((4096, 2048), first)
    assert problem.op == "conv2d_w4096_h2048_fw15_fh15"
    assert problem.flops == 2.0 * 4096 * 2048 * 15 * 15


def test_failed_rows_are_records_too(file):
    words = ["CompilationFailedConfig", "RuntimeFailedConfig", "InvalidConfig", "SomethingNew"]
    store = MemoryStore()
    done = imported(file(cache([*map(gemm_row, words), gemm_row(1e20)])), store, find_device=find)
    failures = [record.outcome for record in store.records()]
    assert all(isinstance(failure, Failed) for failure in failures)
    stages = [(f.stage, f.reason) for f in failures if isinstance(f, Failed)]
    assert stages == [("build", "compile_error"), ("run", "error"), ("build", "error"), ("run", "error"), ("run", "error")]
    assert (done.failed, done.timed) == (5, 0)


@pytest.mark.parametrize(
    "row, reason",
    [
        (gemm_row(0.0), "zero or negative"),
        (gemm_row(-3.0), "zero or negative"),
        (gemm_row(12.5, times=[12.5, 0.0]), "zero or negative"),
        (gemm_row(float("nan")), "not a finite number"),
        (gemm_row(float("inf")), "not a finite number"),
        (gemm_row(None), "missing"),
        (gemm_row(True), "not a finite number"),
        (gemm_row(12.5, times="fast"), "not all finite"),
        (gemm_row(12.5, times=[12500.0, 12500.0]), "mixed units"),
        (gemm_row(12.5, **{"GFLOP/s": 10.9}), "GFLOP/s does not fit"),
        (gemm_row(0.0125), "faster than titan-rtx can be"),
        (gemm_row(12.5, MWG="64"), "parameter MWG"),
        (gemm_row(12.5, MWG=-64), "parameter MWG"),
        (gemm_row(12.5, MWG=0.5), "parameter MWG"),
        (gemm_row(12.5, MWG=None), "parameter MWG is missing"),
        (gemm_row(12.5, MDIMC=0), "parameter MDIMC is 0, expected a whole number from 1 up"),
        (gemm_row(12.5, VWM=0.0), "parameter VWM is 0.0, expected a whole number from 1 up"),
        (gemm_row(12.5, MWG=10**400), "parameter MWG is 1000"),
        (gemm_row(12.5, PRECISION=64), "PRECISION 64: known are 32, 16"),
        (gemm_row(10**400), "not a finite number"),
        (gemm_row(12.5, times=[10**400]), "not all finite"),
        (gemm_row("5.9"), "a number in quotes"),
        (gemm_row(" 12,5"), "a number in quotes"),
        (gemm_row("NaN"), "a number in quotes"),
        (gemm_row(""), "an empty text"),
    ],
)
def test_a_row_that_cannot_be_true_is_counted_under_its_reason(file, row, reason):
    store = MemoryStore()
    done = imported(file(cache([row, gemm_row()])), store, find_device=find)
    assert len(list(store.records())) == 1
    assert [reason in text for text in done.refused] == [True]
    with pytest.raises(UsageError, match="not one usable row.*nothing was stored"):
        imported(file(cache([row])), store, find_device=find)


@pytest.mark.parametrize("row", [[1, 2], None, "text", 7, True])
def test_what_stands_where_a_row_belongs_is_counted_and_reading_goes_on(file, row):
    content = cache([gemm_row()])
    content["cache"] = {"a": row, "b": gemm_row(), "c": row}
    done = imported(file(content), MemoryStore(), find_device=find)
    assert (done.rows, done.timed, done.torn) == (3, 1, "")
    assert list(done.refused.values()) == [2]
    assert next(iter(done.refused)).startswith("a row is ")


def test_a_number_beyond_all_floats_in_another_column_is_dropped_and_counted(file):
    store = MemoryStore()
    text = json.dumps(cache([gemm_row(12.5, power=10**400, clock=1500), gemm_row(13.5, power=float("nan"))]))
    done = imported(file(text.replace("1500", "1" * 5000)), store, find_device=find)
    assert (done.timed, done.dropped, done.torn) == (2, {"power": 2, "clock": 1}, "")
    assert all("power" not in record.facts for record in store.records())
    assert all(record.facts["compile_time"] == 80.5 for record in store.records())


def test_switches_may_be_off_and_sizes_may_not(file):
    values = {key: 1 for key in CONV_1} | {"use_shmem": 1, "use_cmem": 1}
    keys = tuple(values)
    for key in keys:
        row: dict[str, object] = {**values, key: 0, "time": 12.5}
        good: dict[str, object] = {**values, "time": 13.5}
        done = imported(file(cache([row, good], keys)), MemoryStore(), find_device=find)
        assert done.timed == (2 if key in ("read_only", "use_padding", "use_shmem", "use_cmem") else 1), key


def test_refused_rows_and_failures_alone_are_not_an_import(file):
    """Failures without one time say nothing of a file whose times were all refused: it is to be repaired first."""
    store = MemoryStore()
    with pytest.raises(UsageError, match="not one usable timed row, only 1 failed: a time is zero.*nothing was stored"):
        imported(file(cache([gemm_row("InvalidConfig"), gemm_row(0.0)])), store, find_device=find)
    assert list(store.records()) == []


def test_a_processor_does_not_run_kernels_of_gpus(file):
    def processor(name: str) -> Device:
        return replace(find("titan-rtx"), id="cpu-x", kind="cpu", name=name)

    store = MemoryStore()
    with pytest.raises(UsageError, match="cache.json: clblast_xgemm runs on GPUs.*'NVIDIA TITAN RTX' is cpu-x.*--device"):
        imported(file(cache([gemm_row()])), store, find_device=processor)
    with pytest.raises(UsageError, match="'cpu' is cpu-x, of kind cpu"):
        imported(file(cache([gemm_row()])), store, find_device=processor, device="cpu")


def test_a_file_cut_at_any_byte_gives_its_complete_rows(file):
    rows = [gemm_row(12.5 + i) for i in range(3)]
    text = json.dumps(cache(rows), indent=1)
    ends = [text.index('"timestamp"', 0)]
    seen = set()
    for size in range(0, len(text), 3):
        path = file(text[:size])
        try:
            parsed = read_cache(path)
        except UsageError as error:
            assert "cut before its rows" in str(error)
            assert size < ends[0]
            continue
        assert [row for _, row in parsed.rows] == rows[: len(parsed.rows)]
        assert parsed.torn, "a cut is always told"
        seen.add(len(parsed.rows))
    assert seen == {0, 1, 2, 3}
    assert read_cache(file(text)).torn == ""


@pytest.mark.parametrize("end", ["", "\n", ",\n", "}", "}\n", '},\n"16,'])
def test_the_endings_the_tool_leaves_behind_are_all_read(file, end):
    text = json.dumps(cache([gemm_row(), gemm_row(13.5)]))
    assert len(read_cache(file(text[: -len("}}")] + end)).rows) == 2


def test_gzip_cut_anywhere_gives_what_is_in_it(tmp_path):
    path = tmp_path / "cache.json.gz"
    whole = gzip.compress(json.dumps(cache([gemm_row(12.5 + i / 7) for i in range(400)])).encode(), mtime=0)
    path.write_bytes(whole)
    assert (len(read_cache(path).rows), read_cache(path).torn) == (400, "")
    path.write_bytes(whole[: len(whole) // 2])
    parsed = read_cache(path)
    assert 50 < len(parsed.rows) < 400
    assert "gzip data ends early" in parsed.torn
    path.write_bytes(whole[:100] + bytes(len(whole) - 100))
    with pytest.raises(UsageError, match="damaged|cut before its rows"):
        read_cache(path)


def test_gzip_of_several_members_is_one_text(tmp_path):
    path = tmp_path / "cache.json.gz"
    text = json.dumps(cache([gemm_row(12.5 + i) for i in range(40)])).encode()
    members = [gzip.compress(text[at : at + 1500]) for at in range(0, len(text), 1500)]
    assert len(members) > 3
    path.write_bytes(b"".join(members) + bytes(512))
    assert (len(read_cache(path).rows), read_cache(path).torn) == (40, "")
    path.write_bytes(b"".join(members[:3]) + b"<html>")
    assert "bytes after the gzip data are something else" in read_cache(path).torn
    path.write_bytes(b"".join(members[:3]) + members[3][:-9])
    assert "the gzip data ends early" in read_cache(path).torn


def test_a_mark_of_byte_order_in_front_is_read_over(tmp_path):
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(cache([gemm_row()])), encoding="utf-8-sig")
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    assert len(read_cache(path).rows) == 1


def test_importing_again_or_a_longer_version_adds_only_what_is_new(file):
    store = MemoryStore()
    rows = [gemm_row(12.5), gemm_row(13.5), gemm_row("CompilationFailedConfig")]
    assert imported(file(cache(rows[:2])), store, find_device=find).new == 2
    assert imported(file(cache(rows[:2])), store, find_device=find).new == 0
    assert imported(file(cache(rows)), store, find_device=find).new == 1


def test_the_device_comes_from_the_file_or_from_the_caller(file):
    store = MemoryStore()
    path = file(cache([gemm_row()], device_name="Graphics Device"))
    with pytest.raises(UnknownDevice, match="Graphics Device") as caught:
        imported(path, store, find_device=find)
    assert caught.value.exit_code == 2
    assert "cache.json: unknown device" in str(caught.value) and "--device, or add a profile" in str(caught.value)
    assert imported(path, store, find_device=find, device="a4000").device_id == "a4000"
    assert {record.device_id for record in store.records()} == {"a4000"}


def test_a_device_of_this_host_that_cannot_be_asked_is_told_with_the_file(file):
    def silent(name: str) -> Device:
        raise EnvironmentMissing(f"device {name}: no driver")

    with pytest.raises(EnvironmentMissing, match="cache.json: device cuda: no driver"):
        imported(file(cache([gemm_row()], device_name="cuda")), MemoryStore(), find_device=silent)


def test_a_mapping_is_chosen_by_the_parameters_and_refused_when_it_does_not_fit():
    assert choose(GEMM) is XGEMM
    assert choose(CONV_1) is CONV
    with pytest.raises(UsageError, match="conv needs block_size_x"):
        choose(GEMM, "conv")
    with pytest.raises(UsageError, match="unknown mapping 'gemm'; known: xgemm, conv"):
        choose(GEMM, "gemm")
    with pytest.raises(UsageError, match="no mapping fits the parameters tile: xgemm needs"):
        choose(("tile",))


def test_a_parameter_nobody_knows_may_be_there_only_while_it_is_constant(file):
    keys = (*GEMM, "GEMMK")
    store = MemoryStore()
    same = cache([gemm_row(12.5, GEMMK=0), gemm_row(13.5, GEMMK=0)], keys)
    assert imported(file(same), store, find_device=find).new == 2
    varied = cache([gemm_row(12.5, GEMMK=0), gemm_row(13.5, GEMMK=1)], keys)
    with pytest.raises(UsageError, match="does not know the parameter GEMMK, which takes 2 values"):
        imported(file(varied), store, find_device=find)


@pytest.mark.parametrize(
    "content, match",
    [
        ("", "not a Kernel Tuner cache file"),
        ("[1, 2]", "not a Kernel Tuner cache file"),
        ("time,1\n", "not a Kernel Tuner cache file"),
        ('{"cache": ' + "[" * 100_000, "not a Kernel Tuner cache file"),
        ({"device_name": "x"}, "no kernel_name, problem_size, tune_params_keys"),
        (cache([]), "it has no rows"),
        (cache([gemm_row()], device_name=7), "device_name is 7"),
        (cache([gemm_row()], problem_size="big"), "problem_size is 'big'"),
        (cache([gemm_row()], problem_size=[4096]), "xgemm needs m, n"),
        (cache([gemm_row()], problem_size=[0, 4096]), r"problem_size is '\[0, 4096\]', expected whole numbers from 1"),
        (cache([gemm_row()], problem_size=[4294967296, 4096, 4096]), "from 1 to 2\\^31-1"),
        (cache([gemm_row()], problem_size=[4096, 4096, 0]), "from 1 to 2\\^31-1"),
        (cache([gemm_row()], ("tile",)), "no mapping fits"),
        (cache([gemm_row()], tune_params_keys="MWG"), "expected a list of names"),
        (cache([gemm_row(PRECISION=64)]), "PRECISION 64"),
    ],
)
def test_what_is_not_a_cache_file_is_refused(file, content, match):
    with pytest.raises(UsageError, match=match) as caught:
        imported(file(content), MemoryStore(), find_device=find)
    assert "cache.json: " in str(caught.value), "every error names its file"


def test_an_unreadable_file_says_so(tmp_path):
    with pytest.raises(UsageError, match="cannot read .*missing.json: No such file"):
        read_cache(tmp_path / "missing.json")
    with pytest.raises(EnvironmentMissing, match="cannot read"):
        read_cache(tmp_path)


@pytest.mark.parametrize("what", ["pipe", "device"])
def test_only_a_regular_file_is_imported(tmp_path, what):
    path = Path("/dev/zero")
    if what == "pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)
    for load in (load_jsonl, partial(load_kernel_tuner, find_device=find_device)):
        with pytest.raises(EnvironmentMissing, match=f"cannot read .*: it is a {what}, not a regular file"):
            load(path)


def test_what_unpacks_without_end_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "SIZE_LIMIT_BYTES", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 20)))
    assert len(text.read_text(path, "a file")[0]) == 1 << 20
    path.write_bytes(gzip.compress(b" " * (64 << 20)))
    tracemalloc.start()
    with pytest.raises(UsageError, match="it unpacks to more than 1 MiB"):
        load_jsonl(path)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    path.write_bytes(gzip.compress(b" " * (1 << 19)) * 4)  # members add up
    with pytest.raises(UsageError, match="it unpacks to more than 1 MiB"):
        load_jsonl(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(EnvironmentMissing, match="more than 1 MiB"):
        load_jsonl(path)
