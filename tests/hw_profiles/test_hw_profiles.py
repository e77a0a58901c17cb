"""Profiles: every number in its range, and the identities that tie the numbers of one GPU to each other."""

import gzip
import re
from pathlib import Path

import pytest

from haotuner.hw_profiles.profile import Profile, parse_profile, plain, profile_named, profiles

SHARED = Path(__file__).parents[3] / "shared/data/kernel_tuner"
ALL = profiles()
CUDA = [p for p in ALL if p.device.kind == "cuda"]
CPU = [p for p in ALL if p.device.kind == "cpu"]
GPU = [p for p in ALL if p.device.kind != "cpu"]
LEVELS = {"x86-64-v2": (4, 16), "x86-64-v3": (8, 16), "x86-64-v4": (16, 32)}  # fp32 lanes and SIMD registers
MIB = 1 << 20

# Compute capability: registers, threads and blocks of an SM, KiB of shared memory of an SM and of a block, fp32 cores.
# Written down a second time, from the programming guide's tables, so that a slip in a profile shows.
CAPABILITIES = {
    "sm_37": (131072, 2048, 16, 112, 48, 192),
    "sm_60": (65536, 2048, 32, 64, 48, 64),
    "sm_70": (65536, 2048, 32, 96, 96, 64),
    "sm_75": (65536, 1024, 16, 64, 64, 64),
    "sm_80": (65536, 2048, 32, 164, 163, 64),
    "sm_86": (65536, 1536, 16, 100, 99, 128),
    "sm_89": (65536, 1536, 24, 100, 99, 128),
    "sm_90a": (65536, 2048, 32, 228, 227, 128),
    "sm_100a": (65536, 2048, 32, 228, 227, 128),
}
# Dense fp16 tensor flops of an SM and cycle, fp32 accumulators; the GeForce parts of a chip run at half of it.
TENSOR = {"sm_70": 1024, "sm_75": 1024, "sm_80": 2048, "sm_86": 1024, "sm_89": 1024, "sm_90a": 4096, "sm_100a": 8192}
HALF_RATE = {"rtx-2080-ti", "rtx-3090", "rtx-4090"}

MINIMUM = """name = "X"
kind = "cuda"
arch = "sm_80"
aliases = ["X"]
compute_units = 1
wave_width = 32
registers_per_thread = 255
[source]
"a datasheet" = "https://example.com"
"""


def by_id(profile: Profile) -> str:
    return profile.device.id


def test_every_device_that_was_asked_for_has_a_profile():
    expected_ids = "k80 p100 v100 t4 rtx-2080-ti titan-rtx rtx-3060-laptop rtx-3090 rtx-4090 a4000 a6000 a100-40gb a100-80gb"
    expected_ids += " a10 l4 l40s h100 h200 b200 w6600 w7800 mi250x"
    assert set(expected_ids.split()) <= {p.device.id for p in ALL}
    assert [p.device.id for p in ALL] == sorted(p.device.id for p in ALL)


@pytest.mark.parametrize("profile", CPU, ids=by_id)
def test_numbers_of_a_cpu_are_in_range_and_those_of_its_level(profile):
    device = profile.device
    assert (device.wave_width, device.registers_per_thread) == LEVELS[device.arch]
    assert 1 <= device.compute_units <= 256 and device.fma_pipes in (1, 2)
    assert 32 << 10 <= device.l1_bytes < device.l2_bytes < device.l3_bytes <= 512 * MIB
    assert 20 <= device.memory_gbps <= 1000 and 1000 <= device.clock_mhz <= 5000
    assert set(device.sources.values()) <= {"datasheet", "derived"}
    assert set(device.sources) == set(device.numbers())


@pytest.mark.parametrize("profile", GPU, ids=by_id)
def test_numbers_of_a_gpu_are_in_range(profile):
    device = profile.device
    assert 5 <= device.compute_units <= 300
    assert device.wave_width in (32, 64)
    assert 2 << 30 <= device.memory_bytes <= 300 << 30
    assert 100 <= device.memory_gbps <= 10000
    assert 1000 <= device.peak_gflops <= 200000
    assert device.l2_bytes is None or MIB <= device.l2_bytes <= 256 * MIB
    assert device.clock_mhz is None or 500 <= device.clock_mhz <= 3500
    assert device.tensor_tflops is None or device.tensor_tflops * 1000 > device.peak_gflops
    assert device.shared_per_block_bytes <= device.l1_bytes
    assert device.threads_per_block <= device.threads_per_unit
    assert set(device.sources.values()) <= {"datasheet", "derived"}
    assert set(device.sources) == set(device.numbers())


@pytest.mark.parametrize("profile", ALL, ids=by_id)
def test_peak_is_two_flops_times_lanes_times_clock(profile):
    device = profile.device
    if device.clock_mhz is None:
        assert device.id == "p100-pcie"  # the one whose boost clock the sources disagree on
        return
    expected = 2 * device.wave_width * device.fma_pipes * device.compute_units * device.clock_mhz / 1000
    assert device.peak_gflops == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("profile", ALL, ids=by_id)
def test_bandwidth_is_bus_width_times_pin_rate(profile):
    memory = profile.memory
    if not memory:
        assert profile.device.id in ("b200", "h100-pcie")  # the published pin rates and totals do not agree
        return
    assert profile.device.memory_gbps == pytest.approx(memory["bus_bits"] * memory["gbits_per_pin"] / 8, rel=0.02)


@pytest.mark.parametrize("profile", CUDA, ids=by_id)
def test_an_sm_is_that_of_its_compute_capability(profile):
    device = profile.device
    registers, threads, blocks, shared, block_shared, cores = CAPABILITIES[device.arch]
    assert (device.registers_per_unit, device.threads_per_unit, device.blocks_per_unit) == (registers, threads, blocks)
    assert (device.l1_bytes, device.shared_per_block_bytes) == (shared << 10, block_shared << 10)
    assert device.wave_width * device.fma_pipes == cores
    assert (device.registers_per_thread, device.threads_per_block) == (255, 1024)


@pytest.mark.parametrize("profile", [p for p in CUDA if p.device.tensor_tflops and p.device.clock_mhz], ids=by_id)
def test_tensor_peak_is_that_of_its_tensor_cores(profile):
    device = profile.device
    flops = TENSOR[device.arch] / (2 if device.id in HALF_RATE else 1)
    # Wider than the fp32 tolerance: the vendor states the Hopper and Blackwell peaks at a lower clock than the maximum.
    assert device.tensor_tflops == pytest.approx(flops * device.compute_units * device.clock_mhz * 1e-6, rel=0.10)


@pytest.mark.parametrize("profile", ALL, ids=by_id)
def test_every_profile_cites_where_its_numbers_are_from(profile):
    assert profile.references
    for title, address in profile.references.items():
        assert len(title) > 5
        assert re.fullmatch(r"https://[\w.-]+/\S+", address)


def test_no_two_profiles_answer_to_one_name():
    owners: dict[str, str] = {}
    for profile in ALL:
        for name in {profile.device.id, plain(profile.device.name), *map(plain, profile.aliases)}:
            assert owners.setdefault(name, profile.device.id) == profile.device.id, name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla K80", "k80"),
        ("nvidia h200", "h200"),
        ("  NVIDIA   GeForce RTX 2080 Ti ", "rtx-2080-ti"),
        ("NVIDIA TITAN RTX", "titan-rtx"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("AMD Radeon PRO W6600", "w6600"),
        ("rtx-3060-laptop", "rtx-3060-laptop"),
    ],
)
def test_names_that_drivers_report_find_their_profile(name, expected):
    profile = profile_named(name)
    assert profile is not None
    assert profile.device.id == expected


@pytest.mark.parametrize("name", ["", " ", "h20", "NVIDIA", "NVIDIA H200 MIG 1g.18gb", "rtx"])
def test_a_part_of_a_name_is_not_the_name(name):
    assert profile_named(name) is None


def test_the_devices_of_the_public_measurements_are_known():
    if not SHARED.is_dir():
        pytest.skip("shared: no ../shared/data here")
    for path in sorted(SHARED.glob("*.json.gz")):
        with gzip.open(path, "rt") as file:
            name = re.search(r'"device_name":\s*"([^"]+)"', file.read(4096))
        assert name
        assert profile_named(name[1]), name[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("compute_units = 1", "compute_unit = 1"), "unknown keys compute_unit;"),
        (("compute_units = 1\n", ""), "compute_units"),
        (("compute_units = 1", "compute_units = 0"), "must be at least 1"),
        (("compute_units = 1", "compute_units = -4"), "must be at least 1"),
        (("wave_width", "memory_gbps = -1.0\nwave_width"), "must not be negative"),
        (('aliases = ["X"]', "aliases = []"), "needs a [source] table and aliases"),
        (('"a datasheet" = "https://example.com"', ""), "needs a [source] table and aliases"),
        (("[source]", "[source"), "Expected ']'"),
    ],
)
def test_a_profile_that_is_wrong_is_refused(change, message):
    assert change[0] in MINIMUM
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_profile(MINIMUM.replace(*change), "x")


def test_the_smallest_profile_is_enough():
    profile = parse_profile(MINIMUM, "x")
    assert (profile.device.id, profile.device.compute_units, dict(profile.memory)) == ("x", 1, {})


def test_the_id_is_the_file_name_and_must_be_one():
    with pytest.raises(ValueError, match="lower case words"):
        parse_profile(MINIMUM, "Not An Id")
