"""Timings of one device in one file become records; what cannot be right is refused in words."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.records import MemoryStore
from haotuner.records.codec import trial_of
from haotuner.records.timings import is_timings, load_timings, read_timings
from haotuner.spec.record import Record, Timed
from haotuner.spec.shape import Shape
from haotuner.transfer.reading import read_records
from tests.bench.own_records import OwnRecords, shape_key

H200 = Path(__file__).parents[1] / "bench" / "records" / "cuda" / "h200.json"
device_named = partial(find_device, measure=False)


def changed(tmp_path: Path, line: int, content: str) -> Path:
    """A copy of the H200's file with another line."""
    lines = H200.read_text().splitlines()
    lines[line] = content
    (tmp_path / "device.json").write_text("\n".join(lines) + "\n")
    return tmp_path / "device.json"


def test_timings_of_the_h200_become_records_that_transfer_reads() -> None:
    loaded = load_timings(H200, find_device=device_named)
    store = MemoryStore()
    assert is_timings(H200) and loaded.into(store).new == len(loaded.records) > 1000
    assert loaded.into(store).new == 0, "a second import stores nothing twice"
    read = read_records(store.records(), device_named)
    assert {"cuda_simt_fp32", "cuda_mma_bf16", "cuda_wgmma_bf16"} <= set(read.families())
    (table,) = read.of("cuda_simt_fp32")
    assert any("parts=" in name for name in table.task_names), "sums in parts compete among themselves"
    assert abs(table.labels - table.frame["expected_log"]).mean() < 0.4, "parts are priced as parts"


@pytest.mark.parametrize(
    "content", ["not json", '["dense_n2304_k768"]', '["dense_n2304_k768",1,"cold","k4",{"8":[[9999,1.0]]}]']
)
def test_a_damaged_line_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(UsageError, match="line 2 is not one of a file of one device's timings"):
        read_timings(changed(tmp_path, 1, content))


def test_times_that_are_no_times_are_counted_and_left_out(tmp_path: Path) -> None:
    path = changed(tmp_path, 1, '["dense_n2304_k768",1,"cold","n",{"8":[[30,NaN],[31,0],[32,-1.0],[33,2.5]]}]')
    assert read_timings(path).refused == {"a time that is no positive number": 3}


def test_two_devices_under_one_name_are_refused(tmp_path: Path) -> None:
    head = json.loads(H200.read_text().splitlines()[0])
    head["device"]["compute_units"] = 78
    with pytest.raises(UsageError, match="two devices under the name h200: compute_units is 78 in the file and 132"):
        load_timings(changed(tmp_path, 0, json.dumps(head)), find_device=device_named)


def test_other_files_are_not_taken_for_timings(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"date": 1, "device": 2}\n')
    assert not is_timings(tmp_path / "other.json") and not is_timings(tmp_path / "missing.json")


def test_shapes_of_several_axes_and_repeats_are_written_and_read_again(tmp_path: Path) -> None:
    shapes = [Shape.of(b=1, h=14, w=14), Shape.of(b=2, h=7, w=31)]
    assert [shape_key(shape) for shape in [*shapes, Shape.of(m=37)]] == ["b=1;h=14;w=14", "b=2;h=7;w=31", "37"]
    records = [
        Record(trial=trial_of("conv2d_c8_f8_r3_s3", f"cpu_conv_fp32__mr{mr}", shape, repeat=repeat), device_id="x", when=1.0,
               outcome=Timed(samples_us=(10.0 * mr + repeat, 90.0)), fingerprint="f", session="s")
        for shape in shapes for mr in (1, 2) for repeat in (0, 1)
    ]  # fmt: skip
    own = OwnRecords.of_repeats(read_timings(H200).device, records)
    again = OwnRecords.read(own.write(tmp_path))
    assert again.rounds == own.rounds and len(own.rounds) == 4
    assert sorted(own.rounds.values()) == [(10.0, 11.0)] * 2 + [(20.0, 21.0)] * 2


@pytest.mark.parametrize("shape", ["b=1;h", "m=many", "-3", "b=1;b=2;c"])
def test_a_shape_that_is_none_is_named(tmp_path: Path, shape: str) -> None:
    with pytest.raises(UsageError, match="line 2 is not one of"):
        read_timings(changed(tmp_path, 1, json.dumps(["dense_n2304_k768", 1, "cold", "n", {shape: [[0, 1.0]]}])))
