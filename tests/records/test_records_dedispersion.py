"""Kernel Tuner's dedispersion caches: what their rows become, which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.records.importing import Loaded, load_kernel_tuner
from haotuner.spec.device import Device
from haotuner.spec.record import Timed

KEYS = ("block_size_x", "block_size_y", "block_size_z", "tile_size_x", "tile_size_y", "tile_stride_x", "tile_stride_y")


def find(name: str) -> Device:
    return find_device(name, measure=False)


def loaded(tmp_path: Path, *rows: dict[str, object], **changes: object) -> Loaded:
    content: dict[str, object] = {
        "device_name": "NVIDIA RTX A4000",
        "kernel_name": "dedispersion_kernel",
        "problem_size": [25000, 2048, 1],
        "tune_params_keys": [*KEYS, "loop_unroll_factor_channel"],
        "cache": {str(at): row for at, row in enumerate(rows)},
    }
    path = tmp_path / "dedispersion.json"
    path.write_text(json.dumps({**content, **changes}), encoding="utf-8")
    return load_kernel_tuner(path, find_device=find)


def row(time: float = 150.0, **changes: object) -> dict[str, object]:
    values = dict(zip(KEYS, (8, 96, 1, 1, 6, 0, 1), strict=True))
    return {
        **values,
        "loop_unroll_factor_channel": 0,
        "time": time,
        "times": [time, time],
        "GB/s": 78643.2 / time,
        **changes,
    }


def test_a_row_becomes_a_record_of_its_own_family(tmp_path: Path) -> None:
    (record,) = loaded(tmp_path, row()).records
    assert record.trial.op.name == "dedispersion_s25000_d2048_c1536"
    assert record.trial.kernel == "kt_dedispersion__bx8_by96_bz1_tx1_ty6_sx0_sy1_un0"
    assert record.outcome == Timed(samples_us=(150_000.0, 150_000.0))
    assert record.device_id == "a4000"


def test_a_rate_that_contradicts_the_time_refuses_the_row(tmp_path: Path) -> None:
    imported = loaded(tmp_path, row(), row(140.0, block_size_y=64, **{"GB/s": 0.5}))
    assert len(imported.records) == 1
    assert [reason for reason in imported.refused if "GB/s does not fit" in reason]
    # one published file counts bytes twice
    assert len(loaded(tmp_path, row(150.0, **{"GB/s": 2 * 78643.2 / 150.0})).records) == 1


def test_several_beams_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="3 beams"):
        loaded(tmp_path, row(), problem_size=[25000, 2048, 3])
