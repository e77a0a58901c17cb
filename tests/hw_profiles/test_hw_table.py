"""The table of devices: sources, names that are nobody else's, numbers of the right order, none that nobody knows."""

import csv
import re
from importlib.resources import files
from typing import get_args

import pytest

from haotuner.errors import UnknownDevice
from haotuner.hw_profiles.find import find_device, list_devices
from haotuner.hw_profiles.profile import plain, profiles
from haotuner.hw_profiles.table import architectures, known_arch, known_named, table
from haotuner.spec.device import Kind

ROWS = table()
RANGES = {
    "compute_units": (1, 320),
    "clock_mhz": (400, 5500),
    "memory_gbps": (10, 10000),
    "memory_bytes": (1 << 30, 300 << 30),
    "l2_bytes": (1 << 17, 256 << 20),
    "l3_bytes": (1 << 20, 256 << 20),
    "wave_width": (4, 64),
    "registers_per_thread": (16, 512),
    "peak_gflops": (40, 200000),
}


def test_every_row_says_where_its_numbers_are_from() -> None:
    assert len(ROWS) > 130
    assert all(len(row.source) > 10 for row in ROWS)
    for row in architectures().values():
        numbers = {name: cell for name, cell in row.items() if name not in ("arch", "generation", "source") and cell}
        assert row["source"] or not numbers, row["arch"]


def test_numbers_are_of_the_right_order() -> None:
    for row in ROWS:
        for name, (low, high) in RANGES.items():
            assert low <= row.facts.get(name, low) <= high, (row.id, name)
        assert row.kind in get_args(Kind)
        assert row.generation, row.id


def test_no_two_rows_and_no_profile_answer_to_one_name() -> None:
    owners: dict[str, str] = {}
    for profile in profiles():
        for name in {profile.device.id, plain(profile.device.name), *map(plain, profile.aliases)}:
            owners[name] = profile.device.id
    for row in ROWS:
        for name in {row.id, plain(row.name), *map(plain, row.aliases)}:
            if name in ("amd radeon(tm) graphics", "amd radeon graphics"):
                continue  # names of several chips; found with the architecture behind them
            assert owners.setdefault(name, row.id) == row.id, name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("geforce gtx 970", "gtx-970"),
        ("AMD Radeon(TM) Graphics (gfx902)", "gfx902-graphics"),
        ("QUALCOMM Adreno(TM) (OpenCL C 2.0 Adreno(TM) 640)", "adreno-640"),
        ("gfx90878", "mi100"),
        ("gfx90a6e", "mi250x"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
    ],
)
def test_names_find_their_row(name: str, expected: str) -> None:
    row = known_named(name)
    assert row is not None and row.id == expected


def test_a_row_that_says_enough_is_a_device() -> None:
    device = find_device("GeForce GTX 970")
    assert (device.id, device.arch, device.compute_units, device.l1_bytes) == ("gtx-970", "sm_52", 13, 96 << 10)
    assert device.peak_gflops == pytest.approx(2 * 128 * 13 * 1.178, rel=1e-6)
    assert device.sources["peak_gflops"] == "derived" and device.sources["clock_mhz"] == "datasheet"
    assert set(device.sources) == set(device.numbers())
    assert "gtx-970" in {listed.device.id for listed in list_devices(tabled=True)}
    assert "gtx-970" not in {listed.device.id for listed in list_devices()}


def test_a_row_that_does_not_is_said_to_be_known_by_name_only() -> None:
    with pytest.raises(UnknownDevice, match="known by name only: nobody says its compute_units"):
        find_device("Radeon RX Vega")
    with pytest.raises(UnknownDevice, match="nearest: .*gtx-970"):
        find_device("GeForce GTX 971")


def test_an_architecture_and_a_number_of_units_say_what_they_say() -> None:
    row = known_arch("gfx90a", 104, name="gfx90a68")
    assert row is not None
    assert row.facts["compute_units"] == 104 and row.facts["wave_width"] == 64
    assert "clock_mhz" not in row.facts and "peak_gflops" not in row.facts
    assert known_arch("gfx9999", 1, name="x") is None


def test_the_file_is_a_plain_table() -> None:
    for name in ("devices.csv", "architectures.csv"):
        text = files("haotuner.hw_profiles").joinpath(name).read_text(encoding="utf-8")
        rows = list(csv.reader(text.splitlines()))
        assert {len(row) for row in rows} == {len(rows[0])}
        assert not re.search(r"[ \t]$", text, re.MULTILINE)
