"""The reader of cubins and the rules of residency; neither needs a tool."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from haotuner.backends.cuda.compiler import find_nvcc
from haotuner.backends.cuda.cubin import NotACubin, read_cubin
from haotuner.backends.cuda.device_code import resident_blocks, typical_of
from haotuner.hw_profiles.find import find_device
from tests.microkernels.little_cubin import little_cubin

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


def test_a_cubin_made_by_hand_is_read():
    facts = read_cubin(little_cubin())
    kernel = facts.kernels["f"]
    assert facts.toolkit == 130, "what the ELF's ABI tells, for its kernel does not say"
    assert (facts.arch, kernel.parameters, kernel.max_threads, kernel.code_bytes) == ("sm_80", [(0, 80)], 128, 32)


@pytest.mark.parametrize(
    "abi, flags, arch",
    [(7, 0x5A055A, "sm_90"), (7, 0x5A0D5A, "sm_90a"), (8, 0x6006402, "sm_100"), (8, 0x600640A, "sm_100a")],
)
def test_code_for_one_capability_alone_is_told_by_the_flags_of_cuda_12(abi, flags, arch):
    assert read_cubin(little_cubin(flags=flags, abi=abi)).arch == arch


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a", "sm_120f", "sm_120a"])
def test_variants_of_an_architecture_are_told_apart(arch):
    nvcc = find_nvcc()
    if not nvcc.builds_for(arch):
        pytest.skip(f"{nvcc.name}: does not build for {arch}")
    facts = read_cubin(nvcc.compile('extern "C" __global__ void f(int* x) { *x = 1; }', arch).cubin)
    assert facts.arch == arch
    assert facts.toolkit == round(10 * float(nvcc.toolkit.release))


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a"])
def test_facts_equal_what_ptxas_reports(cubins, arch):
    built = cubins[arch]
    facts = read_cubin(built.cubin)
    assert facts.arch == arch
    assert set(facts.kernels) == set(built.resources) == {"one", "two"}
    for name, kernel in facts.kernels.items():
        reported = built.resources[name]
        actual = (kernel.registers, kernel.stack_bytes, kernel.shared)
        assert actual == (reported["registers"], reported["stack_bytes"], reported["static_shared_bytes"]), name
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
@example(at=47, value=128, cut=0)  # the table of sections beyond 2^63
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
