"""Cores, caches and memory that a process may use."""

from dataclasses import replace

import pytest

from haotuner.hw_profiles.topology import cpu_quota, parse_cpu_list, parse_size, topology
from tests.hw_profiles.hw_machines import machine, write

MIB = 1 << 20


def test_a_plain_machine(tmp_path):
    cpu_topology = topology(machine(tmp_path))
    assert (cpu_topology.cores, cpu_topology.cpus, cpu_topology.quota) == (2, (0, 1), None)
    assert (cpu_topology.l1_bytes, cpu_topology.l2_bytes, cpu_topology.l3_bytes) == (48 << 10, MIB, 32 * MIB)
    assert cpu_topology.memory_bytes == 24684100 * 1024


def test_smt_siblings_count_once(tmp_path):
    cpu_topology = topology(machine(tmp_path, cpus=8, threads_per_core=2))
    assert (cpu_topology.cores, cpu_topology.cpus) == (4, (0, 1, 2, 3))
    assert cpu_topology.l2_bytes == MIB  # shared by the two threads of one core: whole


def test_affinity_takes_cores_away(tmp_path):
    host = replace(machine(tmp_path, cpus=8, threads_per_core=2), cpus=frozenset({1, 5, 6}))
    assert topology(host).cpus == (1, 6)  # 1 and 5 are one core


def test_an_l2_shared_by_a_cluster_is_divided_among_its_cores(tmp_path):
    assert topology(machine(tmp_path, cpus=4, l2_shared_by="0-3")).l2_bytes == MIB // 4


def test_without_sys_every_cpu_is_a_core_and_caches_are_unknown(tmp_path):
    host = replace(machine(tmp_path, cpus=4), sysfs=tmp_path / "nowhere")
    cpu_topology = topology(host)
    assert (cpu_topology.cores, cpu_topology.l1_bytes, cpu_topology.l2_bytes, cpu_topology.l3_bytes) == (4, None, None, None)


@pytest.mark.parametrize(
    ("text", "cores", "quota"), [("150000 100000", 1, 1.5), ("50000 100000", 1, 0.5), ("max 100000", 4, None)]
)
def test_cgroup_v2_quota(tmp_path, text, cores, quota):
    host = machine(tmp_path, cpus=4, cgroup="0::/jobs/a\n")
    write(host.sysfs / "fs/cgroup/jobs/a/cpu.max", text)
    cpu_topology = topology(host)
    assert (cpu_topology.cores, cpu_topology.quota) == (cores, quota)
    assert len(cpu_topology.cpus) == cores


def test_the_strictest_group_from_the_inner_to_the_root_counts(tmp_path):
    host = machine(tmp_path, cpus=8, cgroup="0::/a/b\n")
    write(host.sysfs / "fs/cgroup/a/b/cpu.max", "max 100000")
    write(host.sysfs / "fs/cgroup/a/cpu.max", "300000 100000")
    write(host.sysfs / "fs/cgroup/cpu.max", "600000 100000")
    assert cpu_quota(host) == 3.0


def test_cgroup_v1_quota_and_a_path_from_outside_the_container(tmp_path):
    host = machine(tmp_path, cpus=4, cgroup="9:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/x\n")
    write(host.sysfs / "fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n")
    write(host.sysfs / "fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(host.sysfs / "fs/cgroup/memory/memory.limit_in_bytes", str(512 * MIB))
    cpu_topology = topology(host)
    assert (cpu_topology.cores, cpu_topology.quota, cpu_topology.memory_bytes) == (2, 2.0, 512 * MIB)


def test_unlimited_cgroup_v1_is_no_limit(tmp_path):
    host = machine(tmp_path, cgroup="9:cpu:/\n4:memory:/\n")
    write(host.sysfs / "fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(host.sysfs / "fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(host.sysfs / "fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    cpu_topology = topology(host)
    assert (cpu_topology.cores, cpu_topology.quota, cpu_topology.memory_bytes) == (2, None, 24684100 * 1024)


@pytest.mark.parametrize("text", ["", "nonsense", "0 0", "100000 0", "-5 100000", "\x00"])
def test_a_damaged_quota_is_no_limit(tmp_path, text):
    host = machine(tmp_path, cgroup="0::/\n")
    write(host.sysfs / "fs/cgroup/cpu.max", text)
    assert cpu_quota(host) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ()), ("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0-1,8,10-11", (0, 1, 8, 10, 11)), ("ff", ()), ("1-", ()), ("3-1", ())],
)
def test_cpu_lists(text, expected):
    assert parse_cpu_list(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("48K", 48 << 10), ("1024K", MIB), ("2M", 2 * MIB), ("512", 512), ("", None), ("big", None)]
)
def test_sizes(text, expected):
    assert parse_size(text) == expected
