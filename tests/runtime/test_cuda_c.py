"""CUDA packs from C, without Python or TVM in the process: the example, hostile calls under sanitizers, the cost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from haotuner.backends.cuda.pack_source import PACK_SOURCES, pack_data
from haotuner.pack.write import write_pack
from tests.runtime.cuda_device_code import build_pack, device_code
from tests.runtime.cuda_packs import (
    ATTENTION_PICK,
    FUSED_FP32,
    GENERATED_PICKS,
    GROUPED_FP32,
    PICKS,
    PRODUCT_FP16,
    PRODUCT_FP32,
    SIMT,
    Pick,
    document,
    packed_op,
)
from tests.runtime.native_builds import ASAN, CLIB, DOORS_FLAGS, HERE, LIBRARY, NATIVE, TSAN, cc, host_pack
from tests.standin import environment, toolchain_missing
from tests.standin.patience import ran

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
SECONDS = 110  # of processors
SLOWLY = "cuInit:1+=wait:20,cuDevicePrimaryCtxRetain:1+=wait:20,cuModuleLoadData:1+=wait:20"  # so that threads meet there
DISPATCH_NS = 300  # of issue 31: what a call adds to what it asks of the driver
SLACK = 4  # the machine of the tests is shared, and its clock changes; the number itself is printed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda_c")


def served(folder: Path, pick: Pick) -> Path:
    out = folder / f"pack-{pick.op}-{pick.arch}"
    return out if out.exists() else build_pack(out, pick, folder / "code")


def sanitized(folder: Path, name: str, flags: tuple[str, ...]) -> Path:
    """The pack of SIMT with its host code built for a sanitizer."""
    served(folder, SIMT)
    if (folder / name).exists():
        return folder / name
    cubin = device_code(SIMT, folder / "code")
    ops = [packed_op(SIMT.op, SIMT.kernels, SIMT.cells)]
    data = folder / f"{name}_data.c"
    data.write_text(pack_data(ops, cubin, SIMT.arch))
    library = cc([data, *(NATIVE / source for source in PACK_SOURCES)], folder / f"{name}.so", "-shared", "-fPIC",
                 "-fvisibility=hidden", *flags)  # fmt: skip
    write_pack(folder / name, library, document(ops, SIMT.arch), lambda _: None)
    return folder / name


def run(folder: Path, command: list[str | Path], *, fails: bool = False, **how: Any) -> str:
    where = environment(folder / "images", device=how.pop("device", "sm_80"), sources=folder / "code", **how)
    done = ran(command, SECONDS, env={"PATH": os.environ["PATH"], **where})
    assert (done.returncode != 0) == fails, (done.returncode, done.stdout[-2000:], done.stderr[-6000:])
    return done.stderr if fails else done.stdout


def test_the_example_serves_plain_and_as_a_graph(folder):
    program = cc([CLIB / "examples/serve_cuda.c", *LIBRARY], folder / "serve_cuda", "-O1", "-fvisibility=hidden")
    answer = run(folder, [program, served(folder, SIMT), SIMT.op, "0", "1", "3", "40", "150", "0"])
    assert answer.startswith("calls=10 fallbacks=0 worst="), answer


def test_rows_in_groups_from_c(folder):
    program = cc([HERE / "drive_grouped.c", *LIBRARY], folder / "drive_grouped", "-O1", "-fvisibility=hidden")
    pack = build_pack(folder / "pack-grouped", GROUPED_FP32, folder / "code")
    assert run(folder, [program, pack, GROUPED_FP32.op]).startswith("worst=")


def test_an_epilogue_from_c(folder):
    program = cc([HERE / "drive_fused.c", *LIBRARY], folder / "drive_fused", f"-I{CLIB}", *ASAN)
    pack = build_pack(folder / "pack-fused", FUSED_FP32, folder / "code")
    assert run(folder, [program, pack, FUSED_FP32.op]).startswith("worst=")


def test_products_of_a_calls_own_factors_from_c(folder):
    program = cc([HERE / "drive_products.c", *LIBRARY], folder / "drive_products", f"-I{CLIB}", *ASAN)
    pack = build_pack(folder / "pack-products", PRODUCT_FP32, folder / "code")
    assert run(folder, [program, pack], device=PRODUCT_FP32.arch) == "worst=0\n"


def test_generated_programs_from_c(folder):
    program = cc([HERE / "drive_generated.c", *LIBRARY], folder / "drive_generated", *ASAN)
    pick = GENERATED_PICKS[0]
    assert run(folder, [program, served(folder, pick)], device=pick.arch).startswith("worst=")


def test_keys_of_few_queries_from_c(folder):
    program = cc([HERE / "drive_keys.c", *LIBRARY], folder / "drive_keys", *ASAN)
    assert run(folder, [program, served(folder, ATTENTION_PICK)], device=ATTENTION_PICK.arch) == "right\n"


def test_an_older_driver_is_refused_before_anything_is_loaded(folder):
    program = cc([CLIB / "examples/serve_cuda.c", *LIBRARY], folder / "serve_old", "-O1", "-fvisibility=hidden")
    answer = run(folder, [program, served(folder, SIMT), SIMT.op, "0", "1"], driver=12040, fails=True)
    assert (
        "its sm_80 code needs a driver for CUDA 13.0 or later, the one of this host serves CUDA 12.4: update the NVIDIA"
        in answer
    )
    assert "tune again with a CUDA 12 compiler" in answer


@pytest.mark.parametrize("name, flags", [("address", ASAN), ("thread", TSAN)])
def test_hostile_calls_and_threads_under_a_sanitizer(folder, name, flags):
    program = cc([HERE / "drive_cuda.c", *LIBRARY], folder / f"drive_{name}", *flags)
    pack = sanitized(folder, name, flags)
    assert run(folder, [program, "threads", pack, SIMT.op], bare=True) == "right\n"
    assert (
        run(folder, [program, "together", pack, SIMT.op], bare=True, fail=f"{SLOWLY},cuModuleGetFunction:2=2") == "right\n"
    )


def test_every_door_with_what_it_asks_the_system_for_refused_in_turn(folder):
    host = host_pack(folder / "host")
    for name in ("drive_doors", "drive_bound"):
        program = cc([HERE / f"{name}.c", *LIBRARY], folder / name, *ASAN, *DOORS_FLAGS)
        assert run(folder, [program, sanitized(folder, "address", ASAN), SIMT.op, host], bare=True) == "right\n"


@pytest.mark.parametrize("name, sources", [("drive_checks", ()), ("drive_workspace", ("cuda/workspace.c",))])
def test_what_a_file_promises(folder, name, sources):
    """Tensors are taken and refused; memory for partial sums is the framework's, or what was prepared."""
    sources = [HERE / f"{name}.c", *(NATIVE / source for source in ("check.c", *sources))]
    assert run(folder, [cc(sources, folder / name, *ASAN)]) == "right\n"


@pytest.mark.parametrize("pick", (*PICKS, PRODUCT_FP16), ids=lambda pick: f"{pick.op} on {pick.arch}")
def test_every_argument_that_the_doors_for_tvm_ffi_do_not_take(folder, pick):
    program = cc([HERE / "drive_ffi.c", *LIBRARY], folder / "drive_ffi", f"-I{CLIB}", *ASAN, "-rdynamic")
    assert run(folder, [program, served(folder, pick), pick.op], device=pick.arch, execute=False) == "right\n"


@pytest.mark.parametrize("pick", PICKS, ids=lambda pick: pick.arch)
def test_what_a_dispatch_adds_to_the_driver(folder, pick, capsys):
    program = cc([HERE / "drive_cuda.c", *LIBRARY], folder / "drive", "-O2")
    answer = run(folder, [program, "time", served(folder, pick), pick.op], bare=True, device=pick.arch)
    with capsys.disabled():
        print(f"\n{pick.arch}: {answer.strip()}")
    match = re.search(r"a dispatch adds (-?\d+)", answer)
    assert match and int(match[1]) <= SLACK * DISPATCH_NS, answer


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["address", "thread"])
def test_all_scenarios_under_a_sanitizer(tmp_path, name):
    command = [sys.executable, "-m", "tests.runtime.cuda_sanitizers", str(tmp_path), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
