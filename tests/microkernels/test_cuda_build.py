"""Built libraries: what they need, what they export, and the resources the compiler reports."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from haotuner.backends.cuda.compiler import CompileFailed, Toolkit, find_toolkit, read_resources, run_tool
from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.errors import EnvironmentMissing
from tests.microkernels.cuda_examples import FAMILIES, MMA, SIMT, WGMMA, kernel_part
from tests.microkernels.cuda_library import build_cuda

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc: no CUDA toolkit")
KERNELS = (
    SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4),
    MMA.kernel(bm=64, bn=64, bk=32, wm=2, wn=2, st=3),
    WGMMA.kernel(bm=64, bn=64, st=3),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    programs = {kernel.name: (FAMILIES[kernel.family], kernel) for kernel in KERNELS}
    return build_cuda(programs, tmp_path_factory.mktemp("cuda") / "kernels.so", arch="sm_90a")


@needs_nvcc
def test_the_library_needs_tvm_ffi_and_the_driver_only(library):
    listed = subprocess.run(["readelf", "-d", library.path], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[([^]]+)\]", listed))
    system = {
        name
        for name in needed
        if re.match(r"(libstdc\+\+|libm|libgcc_s|libc|libdl|librt|libpthread|ld-linux-x86-64)\.so", name)
    }
    assert needed - system == {"libtvm_ffi.so", "libcuda.so.1"}


@needs_nvcc
def test_every_kernel_is_exported_and_reported(library):
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", library.path], capture_output=True, text=True, check=True
    ).stdout
    for kernel in KERNELS:
        assert f"__tvm_ffi_{kernel.name}\n" in exported
        facts = library.resources[kernel.name]
        assert facts["spill_bytes"] == facts["stack_bytes"] == 0
        assert 0 < facts["registers"] <= 255
    assert "cudaMalloc" not in exported  # the runtime inside is nobody else's


@needs_nvcc
def test_setmaxnreg_shares_out_no_more_registers_than_the_block_starts_with(library):
    kernel = KERNELS[2]
    source = kernel_part(device_unit({"dense": (WGMMA, kernel)}))
    producer_registers, consumer_registers = (
        int(n) for n in re.findall(r"setmaxnreg_(?:dec|inc)_sync_aligned_u32_(\d+)\(\);", source)
    )
    consumers = WGMMA.footprint(kernel).threads // 128 - 1
    assert producer_registers + consumers * consumer_registers <= library.resources[kernel.name]["registers"] * (
        consumers + 1
    )


@needs_nvcc
def test_an_architecture_that_the_toolkit_lacks_is_said_so(tmp_path):
    with pytest.raises(EnvironmentMissing, match="CUDA 12 nvcc"):
        build_cuda({"dense": (SIMT, KERNELS[0])}, tmp_path / "k.so", arch="sm_70")


@needs_nvcc
def test_a_compiler_error_carries_the_compilers_words(tmp_path):
    toolkit = find_toolkit()
    (tmp_path / "bad.cu").write_text("int broken( {")
    with pytest.raises(CompileFailed, match="error"):
        run_tool([str(toolkit.nvcc), "-c", str(tmp_path / "bad.cu"), "-o", str(tmp_path / "bad.o")], seconds=100)


def test_no_compiler_says_what_to_do():
    with pytest.raises(EnvironmentMissing, match="install a CUDA"):
        find_toolkit("nvcc-that-is-not-there")


def test_a_compiler_that_hangs_is_ended():
    with pytest.raises(CompileFailed, match="did not finish"):
        run_tool(["sleep", "30"], seconds=0.2)


def test_suffixed_architectures_are_built_by_their_plain_entry(tmp_path):
    toolkit = Toolkit(nvcc=tmp_path / "nvcc", release="13.0", archs=("sm_80", "sm_90"))
    assert toolkit.builds_for("sm_90a")
    assert not toolkit.builds_for("sm_70")


def test_the_resource_report_is_read_from_ptxas():
    report = """
ptxas info    : Compiling entry function 'one_kernel' for 'sm_80'
ptxas info    : Function properties for one_kernel
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'two_kernel' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers
"""
    assert read_resources(report) == {
        "one_kernel": {"stack_bytes": 8, "spill_bytes": 16, "registers": 96, "static_shared_bytes": 1024},
        "two_kernel": {"stack_bytes": 0, "spill_bytes": 0, "registers": 40, "static_shared_bytes": 0},
    }
