"""The reader of cubins and the rules of residency; neither needs a tool."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.backends.cuda.cubin import NotACubin, read_cubin
from haotuner.backends.cuda.nvcc import find_nvcc
from haotuner.backends.cuda.residency import resident_blocks, typical_of
from haotuner.hw_profiles.find import find_device

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc: no CUDA toolkit")
A100, L40S = find_device("a100-40gb"), find_device("l40s")
TEXT = """
struct Large { int a[300]; };
extern "C" __global__ void __launch_bounds__(96) one(int* out, char flag, double scale) {
  __shared__ int kept[100];
  kept[threadIdx.x] = out[threadIdx.x]; __syncthreads();
  out[threadIdx.x] = kept[threadIdx.x ^ 3] * scale + flag;
}
extern "C" __global__ void two(const __grid_constant__ Large large, float* out) {
  int local[64];
  for (int i = 0; i < (int)out[0]; i++) local[(int)out[i]] = large.a[i] + (int)out[i];
  out[threadIdx.x] = local[(int)out[1]];
}
"""


@pytest.fixture(scope="module")
def cubins():
    return {arch: find_nvcc().compile(TEXT, arch) for arch in ("sm_75", "sm_80", "sm_89", "sm_90a")}


def little_cubin(machine: int = 190, flags: int = 0x6005004) -> bytes:
    """A cubin of one kernel `f`, laid out by hand as CUDA 13 does."""
    names = b"\0.shstrtab\0.text.f\0.nv.info.f\0"
    info = struct.pack("<BBHIHHI", 4, 0x17, 12, 0, 0, 0, 80 << 18 | 0x1F000)
    info += struct.pack("<BBH", 3, 0x1B, 80) + struct.pack("<BBHIII", 4, 0x05, 12, 128, 1, 1)
    parts, offsets, at = [names, b"\0" * 32, info], [], 64
    for part in parts:
        offsets.append(at)
        at += len(part)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01\x41\x08", 2, machine, 1, 0, 0, at, flags, 64, 56, 0, 64, 4, 1
    )
    rows = [
        (0, 0, 0, 0),
        (1, 3, *_of(offsets, parts, 0)),
        (11, 1, *_of(offsets, parts, 1)),
        (19, 1, *_of(offsets, parts, 2)),
    ]
    return (
        header + b"".join(parts) + b"".join(struct.pack("<IIQQQQIIQQ", n, k, 0, 0, o, s, 0, 0, 1, 0) for n, k, o, s in rows)
    )


def _of(offsets: list[int], parts: list[bytes], index: int) -> tuple[int, int]:
    return offsets[index], len(parts[index])


def test_a_cubin_made_by_hand_is_read():
    facts = read_cubin(little_cubin())
    kernel = facts.kernels["f"]
    assert (facts.arch, kernel.parameters, kernel.max_threads, kernel.code_bytes) == ("sm_80", [(0, 80)], 128, 32)


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a"])
def test_facts_equal_what_ptxas_reports(cubins, arch):
    built = cubins[arch]
    facts = read_cubin(built.cubin)
    assert facts.arch == arch.rstrip("a")
    assert set(facts.kernels) == set(built.resources) == {"one", "two"}
    for name, kernel in facts.kernels.items():
        reported = built.resources[name]
        told = (kernel.registers, kernel.stack_bytes, kernel.shared)
        assert told == (reported["registers"], reported["stack_bytes"], reported["static_shared_bytes"]), name
    assert facts.kernels["one"].parameters == [(0, 8), (8, 1), (16, 8)]
    assert facts.kernels["two"].parameters == [(0, 1200), (1200, 8)]
    assert (facts.kernels["one"].max_threads, facts.kernels["two"].max_threads) == (96, 1024)
    assert facts.kernels["one"].shared == 400
    assert facts.kernels["two"].stack_bytes == 256


@pytest.mark.parametrize(
    ("data", "why"), [(b"", "0 bytes"), (b"\x7fELF", "4 bytes"), (little_cubin(machine=62), "machine 62")]
)
def test_what_is_no_cubin_is_said_so(data, why):
    with pytest.raises(NotACubin, match=why):
        read_cubin(data)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 500), value=st.integers(0, 255), cut=st.integers(0, 500))
def test_damage_never_raises_anything_else(at, value, cut):
    data = bytearray(little_cubin())
    data[min(at, len(data) - 1)] = value
    for damaged in (bytes(data), bytes(data[:cut])):
        try:
            read_cubin(damaged)
        except NotACubin as error:
            assert str(error)


@pytest.mark.parametrize(
    ("device", "threads", "registers", "shared", "blocks"),
    [
        # by NVIDIA's occupancy calculator
        (A100, 256, 32, 0, 8),  # threads
        (A100, 256, 33, 0, 6),  # 40 registers a thread: 12 warps a scheduler, 48 in all
        (A100, 256, 128, 0, 2),
        (A100, 256, 129, 0, 1),  # 136 a thread: 3 warps a scheduler
        (A100, 32, 255, 0, 8),
        (A100, 96, 168, 0, 4),  # 3 warps a scheduler: 12, in blocks of 3
        (A100, 32, 16, 0, 32),  # blocks
        (A100, 128, 64, 48 * 1024, 3),  # shared: 164 KiB, 49 for each
        (A100, 128, 64, 164 * 1024, 0),
        (L40S, 512, 40, 0, 3),  # 1,536 threads
    ],
)
def test_residency_follows_the_rules_of_cuda(device, threads, registers, shared, blocks):
    assert resident_blocks(device, threads=threads, registers=registers, shared_bytes=shared) == blocks


def test_an_unknown_architecture_has_the_least_limits_there_are():
    assert typical_of("sm_80").registers_per_unit == 65536
    assert resident_blocks(typical_of("sm_130"), threads=256, registers=64, shared_bytes=0) == 4
    small = replace(A100, registers_per_unit=None, threads_per_unit=None, l1_bytes=None, blocks_per_unit=None)
    assert resident_blocks(small, threads=256, registers=64, shared_bytes=0) == 4
