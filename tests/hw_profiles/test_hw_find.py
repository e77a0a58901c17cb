"""Finding a device by any of the names it goes by."""

from dataclasses import replace

import pytest

from haotuner.errors import EnvironmentMissing, UnknownDevice
from haotuner.hw_profiles.cpu import cpu_info
from haotuner.hw_profiles.find import find_device, list_devices
from haotuner.hw_profiles.isa import ISAS
from haotuner.hw_profiles.topology import Host
from haotuner.spec.device import Device
from tests.hw_profiles.hw_gpus import LOST, Board, FakeNvml
from tests.hw_profiles.hw_machines import CORE_2, RYZEN, XEON, machine


def find(text: str, host: Host) -> Device:
    return find_device(text, measure=False, host=host)


@pytest.mark.parametrize(
    ("text", "device_id", "arch", "wave", "registers"),
    [
        ("cpu", "cpu-amd-epyc-f26m2-avx512", "x86-64-v4", 16, 32),
        ("CPU", "cpu-amd-epyc-f26m2-avx512", "x86-64-v4", 16, 32),
        ("cpu:avx512", "cpu-amd-epyc-f26m2-avx512", "x86-64-v4", 16, 32),
        ("cpu:avx2", "cpu-amd-epyc-f26m2-avx2", "x86-64-v3", 8, 16),
        ("cpu:x86-64-v3", "cpu-amd-epyc-f26m2-avx2", "x86-64-v3", 8, 16),
        (" cpu:sse ", "cpu-amd-epyc-f26m2-sse", "x86-64-v2", 4, 16),
        ("cpu-amd-epyc-f26m2-avx2", "cpu-amd-epyc-f26m2-avx2", "x86-64-v3", 8, 16),
    ],
)
def test_this_host_and_its_narrower_instruction_sets(tmp_path, text, device_id, arch, wave, registers):
    device = find(text, machine(tmp_path))
    assert (device.id, device.arch, device.wave_width, device.registers_per_thread) == (device_id, arch, wave, registers)
    assert (device.kind, device.compute_units, device.l3_bytes) == ("cpu", 2, 32 << 20)
    assert device.sources["l2_bytes"] == "queried"
    assert device.sources["wave_width"] == "derived"
    assert (device.peak_gflops, "peak_gflops" in device.sources) == (None, False)
    assert device.fma_pipes == (2 if wave == 16 else None)  # Zen 5


@pytest.mark.parametrize("text", ["cpu:avx512", "cpu:amx", "cpu:x86-64-v4", "cpu:avx"])
def test_an_instruction_set_that_the_host_lacks_names_those_it_has(tmp_path, text):
    with pytest.raises(UnknownDevice, match=r"this host \(AMD Ryzen 9 3900X.*has cpu:avx2, cpu:sse"):
        find(text, machine(tmp_path, cpuinfo=RYZEN))


def test_a_record_of_another_cpu_is_not_this_one(tmp_path):
    with pytest.raises(UnknownDevice, match="cpu-amd-epyc-f26m2-avx2"):
        find("cpu-amd-epyc-f26m2-avx2", machine(tmp_path, cpuinfo=XEON))


@pytest.mark.parametrize(
    ("text", "device_id"), [("h200", "h200"), ("H200", "h200"), ("nvidia h200", "h200"), ("Tesla T4", "t4")]
)
def test_absent_devices_by_id_and_by_the_names_of_drivers(tmp_path, text, device_id):
    assert find(text, machine(tmp_path)).id == device_id


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("h20", "h200"),
        ("rtx3090", "rtx-3090"),
        ("a100", "a100-40gb"),
        ("cdua", "cuda"),
        ("tesla v100", "v100"),
        ("gpu", "cpu"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(tmp_path, text, near):
    with pytest.raises(UnknownDevice, match=f"unknown device '{text}'; nearest: .*{near}.*haotuner devices") as caught:
        find(text, machine(tmp_path))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "text", ["", "cpu:", "cpu:avx2:x", "cuda:", "cuda:x", "cuda:-1", "cuda:99999", "ünïcode", "x" * 5000, "\x00"]
)
def test_nonsense_is_an_unknown_device(tmp_path, text):
    with pytest.raises(UnknownDevice):
        find(text, machine(tmp_path))


@pytest.mark.parametrize("settings", [{"architecture": "aarch64"}, {"system": "Darwin"}, {"architecture": "ppc64le"}])
def test_another_platform_gets_a_clear_line_and_exit_4(tmp_path, settings):
    host = machine(tmp_path, **settings)
    with pytest.raises(
        EnvironmentMissing, match=r"Linux x86-64; this host is .*haotuner candidates --device h200"
    ) as caught:
        find("cpu", host)
    assert caught.value.exit_code == 4
    assert find("h200", host).id == "h200"
    with pytest.raises(UnknownDevice):
        find("cpu-apple-m4-neon", host)


def test_a_cpu_older_than_sse4_2_is_refused_with_what_it_lacks(tmp_path):
    with pytest.raises(EnvironmentMissing, match=r"lacks popcnt sse4_2 of x86-64-v2"):
        find("cpu", machine(tmp_path, cpuinfo=CORE_2))


def test_gpus_of_this_host(tmp_path):
    host = replace(machine(tmp_path), nvml=FakeNvml(Board(), Board(name="Tesla T4", capability=(7, 5), cores=2560)))
    assert (find("cuda", host).id, find("cuda:0", host).id, find("CUDA:1", host).id) == ("h200", "h200", "t4")
    assert find("cuda:1", host).compute_units == 40
    with pytest.raises(UnknownDevice, match="cuda:2: this host has cuda:0, cuda:1"):
        find("cuda:2", host)


def test_the_list_has_this_host_first_then_every_profile(tmp_path):
    host = replace(machine(tmp_path), nvml=FakeNvml(Board(), Board(fails={"nvmlDeviceGetName": LOST})))
    listed = list_devices(host=host)
    assert [(entry.ask, entry.source) for entry in listed[:4]] == [
        ("cpu", "queried"),
        ("cpu:avx2", "queried"),
        ("cpu:sse", "queried"),
        ("cuda:0", "queried"),
    ]
    assert {entry.source for entry in listed[4:]} == {"datasheet"}
    assert all(find(entry.ask, host) == entry.device for entry in listed)


def test_a_host_that_is_not_supported_still_lists_the_profiles(tmp_path):
    listed = list_devices(host=machine(tmp_path, architecture="aarch64"))
    assert len(listed) > 20
    assert {entry.source for entry in listed} == {"datasheet"}


def test_the_machine_we_run_on_is_a_device():
    host = Host.here()
    device = find_device("cpu", measure=False)
    assert device.compute_units <= len(host.cpus)
    assert device.arch == cpu_info(host).isas()[0].arch
    assert device.memory_bytes and device.memory_bytes > 1 << 28


def test_the_level_agrees_with_archspec():
    archspec = pytest.importorskip("archspec.cpu")
    here = archspec.host()
    ours = {isa.arch for isa in cpu_info(Host.here()).isas()}
    for isa in ISAS:
        assert (here >= archspec.TARGETS[isa.arch.replace("-64-", "_64_")]) == (isa.arch in ours)


def test_asking_without_measuring_invents_no_rates():
    device = find_device("cpu", measure=False)
    assert (device.peak_gflops, device.memory_gbps, device.clock_mhz) == (None, None, None)
    assert "measured" not in device.sources.values()
