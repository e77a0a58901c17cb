"""`haotuner tune --device cuda:0` from the command line, over the stand-in driver: tune, pack, verify, kill, resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cuda.compiler import find_nvrtc
from haotuner.errors import EnvironmentMissing
from tests.cli.command import Answer, command, haotuner, run_command, tuned
from tests.cli.command import environment as of_commands
from tests.standin import environment as of_driver
from tests.standin import toolchain_missing
from tests.standin.patience import WALL_S

pytestmark = [
    pytest.mark.skipif(bool(toolchain_missing()), reason=f"compiler: {toolchain_missing()}"),
]
OP = "dense:n=64,k=64,dtype=fp16"
ASKED = ("--op", OP, "--shapes", "m=1..48", "--device", "cuda:0")


class Host:
    """A host whose GPU is a stand-in."""

    def __init__(self, cache: Path, images: Path, device: str, **how: Any) -> None:
        code = cache / "haotuner" / "device-code"
        self.environment = {**of_commands(cache), **of_driver(images, device=device, sources=code, execute="demand", **how)}

    def run(self, cwd: Path, *words: str, seconds: float = WALL_S) -> Answer:
        return run_command(words, cwd, self.environment, seconds)

    def tune(self, cwd: Path, *words: str, budget_s: int = 4) -> Answer:
        """``tune``, as often as it takes until every op has times."""
        return tuned(partial(self.run, cwd), *words, budget_s=budget_s)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def ampere(cache: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, Path, Any]:
    """A host with an sm_80 device, the folder where it tuned, and what `tune` printed."""
    host, folder = Host(cache, images, "sm_80"), tmp_path_factory.mktemp("ampere")
    answer = host.tune(folder, *ASKED, "--json", budget_s=3)
    assert answer.code == 0, answer.err
    return host, folder, answer.json()


def keys(db: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        return [row[0] for row in connection.execute("select trial_key from record")]


def test_a_stand_in_is_tuned_packed_and_its_pack_verified(ampere: tuple[Host, Path, Any]) -> None:
    host, folder, document = ampere
    (op,) = document["ops"]
    assert document["device"] == "stand-in-sm-80" and op["measured"] >= 1 and op["kernels"]
    assert document["verification"] == {"numbers": True, "why": ""} and not document["unverified"]
    manifest = json.loads((folder / "pack" / "manifest.json").read_text())
    assert manifest["device"]["arch"] == "sm_80" and manifest["contract"]["dtype"] == "float16"
    verified = host.run(folder, "verify", "pack", "--json")
    assert verified.json() == {"ok": True, "problems": []}, verified.err


def test_without_the_device_verify_says_what_it_could_not_check(ampere: tuple[Host, Path, Any], cache: Path) -> None:
    _, folder, _ = ampere
    done = haotuner("verify", "pack", "--json", cache=cache, cwd=folder)
    document = done.json()
    assert done.code == 0 and document["ok"] and "no device of this host runs sm_80" in document["not_checked"][0]


def test_explain_and_inspect_read_the_pack_alone(ampere: tuple[Host, Path, Any], cache: Path) -> None:
    _, folder, _ = ampere
    words = ("explain", "pack", "--op", OP, "--shape", "m=7")
    plain = haotuner(*words, cache=cache, cwd=folder)
    assert plain.code == 0 and "kept" in plain.out and "one region" in plain.out
    document = haotuner(*words, "--json", cache=cache, cwd=folder).json()
    assert document["considered"][0]["composition"].startswith("cuda_") and document["cell"][0] <= 7 <= document["cell"][1]
    assert {candidate["from"] for candidate in document["considered"]} <= {"measured", "predicted"}
    listed = haotuner("inspect", "pack", cache=cache, cwd=folder)
    assert listed.code == 0 and "stand-in" in listed.out and "sm_80" in listed.out


def test_records_hold_how_a_time_was_taken_and_what_the_compiler_made(ampere: tuple[Host, Path, Any]) -> None:
    _, folder, _ = ampere
    with closing(sqlite3.connect(f"file:{folder / 'pack.records.db'}?mode=ro", uri=True)) as connection:
        facts = [json.loads(row[0]) for row in connection.execute("select facts from record")]
    assert facts and all(
        entry["how"] == "graph" and entry["registers"] >= 16 and entry["cold_bytes"] > 0 for entry in facts if entry
    )


def test_hopper_is_tuned_with_its_own_instructions_in_the_search(cache: Path, images: Path, tmp_path: Path) -> None:
    answer = Host(cache, images, "sm_90a").tune(tmp_path, *ASKED, "--json", budget_s=2)
    assert answer.code == 0, answer.err
    assert answer.json()["device"] == "stand-in-sm-90a"


@pytest.mark.slow
@pytest.mark.parametrize("weight", ["", ",weight=kn"])
def test_turing_is_tuned_with_its_own_tensor_cores_and_verified(
    weight: str, cache: Path, images: Path, tmp_path: Path
) -> None:
    host = Host(cache, images, "sm_75")
    searched = host.run(tmp_path, "candidates", "--op", OP + weight, *ASKED[2:], "--json").json()["families"]
    assert {family["name"] for family in searched} == {"cuda_mma8_fp16", "cuda_gemv_fp16"}
    answer = host.tune(tmp_path, "--op", OP + weight, *ASKED[2:], "--json")
    assert answer.code == 0, answer.err
    assert answer.json()["device"] == "stand-in-sm-75"
    assert host.run(tmp_path, "verify", "pack", "--json").json() == {"ok": True, "problems": []}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "op", "families"),
    [
        ("sm_80", "dense:n=64,k=64,dtype=int8,out=uint8,epilogue=scale+bias+relu", {"cuda_mma_int8", "cuda_simt_int8"}),
        ("sm_75", "dense:n=48,k=37,dtype=int8,in=int8", {"cuda_simt_sint8"}),
    ],
)
def test_layers_of_bytes_are_tuned_packed_and_verified(
    device: str, op: str, families: set[str], cache: Path, images: Path, tmp_path: Path
) -> None:
    host = Host(cache, images, device)
    searched = host.run(tmp_path, "candidates", "--op", op, *ASKED[2:], "--json").json()["families"]
    assert {family["name"] for family in searched} == families
    answer = host.tune(tmp_path, "--op", op, *ASKED[2:], "--json")
    assert answer.code == 0, answer.err
    assert host.run(tmp_path, "verify", "pack", "--json").json() == {"ok": True, "problems": []}


@pytest.mark.slow
def test_rows_in_groups_are_tuned_packed_verified_and_explained(cache: Path, images: Path, tmp_path: Path) -> None:
    host, op = Host(cache, images, "sm_80"), "grouped:g=6,n=64,k=64,dtype=fp16"
    answer = host.tune(tmp_path, "--op", op, *ASKED[2:], "--json", budget_s=24)
    assert answer.code == 0, answer.err
    assert all("cuda_grouped_" in kernel for kernel in answer.json()["ops"][0]["kernels"])
    assert host.run(tmp_path, "verify", "pack", "--json").json() == {"ok": True, "problems": []}
    explained = host.run(tmp_path, "explain", "pack", "--op", op, "--shape", "m=40")
    assert "one launch for 6 groups of rows" in explained.out and "no workspace" in explained.out
    document = host.run(tmp_path, "explain", "pack", "--op", op, "--shape", "m=40", "--json").json()
    assert (document["launches"], document["workspace_bytes"], document["groups"]) == (1, 0, 6)
    assert {candidate["way"] for candidate in document["considered"]} == {"one region"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "op", "shapes"),
    [
        ("sm_80", "batch_matmul:k=16,layout=nt,dtype=fp16", "b=1..4;m=1..40;n=m"),  # scores of attention
        ("sm_90a", "batch_matmul:n=16,dtype=bf16", "b=1..4;m=1..40;k=m"),  # and what they weigh
        ("sm_80", "batch_matmul:", "b=1..3;m=1..40;n=m;k=m"),
        ("sm_80", "batch_matmul:k=16,layout=nt,dtype=int8", "b=1..4;m=1..40;n=m"),
    ],
)
def test_products_of_a_calls_own_factors_are_tuned_packed_verified_and_explained(
    device: str, op: str, shapes: str, cache: Path, images: Path, tmp_path: Path
) -> None:
    host = Host(cache, images, device)
    answer = host.tune(tmp_path, "--op", op, "--shapes", shapes, "--device", "cuda:0", "--json")
    assert answer.code == 0, answer.err
    (tuned,) = answer.json()["ops"]
    assert tuned["measured"] >= 1 and all("cuda_batched_" in kernel for kernel in tuned["kernels"])
    assert host.run(tmp_path, "verify", "pack", "--json").json() == {"ok": True, "problems": []}
    axes = [part.partition("=")[0] for part in shapes.split(";")]
    explained = host.run(tmp_path, "explain", "pack", "--op", op, "--shape", ";".join(f"{axis}=3" for axis in axes))
    assert explained.code == 0 and "one launch" in explained.out and "m 0..2" in explained.out, explained.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "op", "shapes"),
    [
        ("sm_80", "conv2d:c=8,f=24,r=3,s=3,pad=1,dtype=fp16,epilogue=bias+relu", "b=1..3;h=4..9;w=h"),
        (
            "sm_90a",
            "conv2d:c=6,f=10,r=3,s=2,pad=1.2,stride=2.1,dilation=1.2,groups=2,layout=nhwc,dtype=bf16",
            "b=1..3;h=4..9;w=4..9",
        ),
        ("sm_80", "conv1d:c=5,f=8,s=3,pad=2,dilation=2", "b=1..3;w=8..40"),
        ("sm_80", "conv2d:c=16,f=8,r=1,s=1,layout=nhwc,dtype=fp16", "b=1..3;h=4..9;w=h"),
        ("sm_80", "conv_transpose2d:c=8,f=6,r=3,s=2,stride=2,pad=1.0.0.1,epilogue=bias+hardswish", "b=1..3;h=4..9;w=h"),
        ("sm_90a", "conv_transpose2d:c=64,f=8,r=3,s=2,stride=2,layout=nhwc,dtype=bf16,epilogue=relu", "b=1..3;h=4..9;w=h"),
        ("sm_80", "conv2d:c=8,f=24,r=3,s=3,pad=1,dtype=int8,out=uint8,epilogue=scale+bias+relu", "b=1..3;h=4..9;w=h"),
        ("sm_80", "conv2d:c=64,f=24,r=3,s=3,pad=1,layout=nhwc,dtype=fp16,epilogue=bias+relu", "b=1..3;h=4..9;w=h"),
        ("sm_80", "conv2d:c=16,f=16,r=3,s=3,pad=1,groups=16,dtype=fp16,epilogue=bias+relu6", "b=1..3;h=4..9;w=h"),
    ],
)
def test_convolutions_are_tuned_packed_verified_and_explained(
    device: str, op: str, shapes: str, cache: Path, images: Path, tmp_path: Path
) -> None:
    of = "cuda_direct_" if "groups=16" in op else "cuda_"
    host = Host(cache, images, device)
    answer = host.tune(tmp_path, "--op", op, "--shapes", shapes, "--device", "cuda:0", "--json")
    assert answer.code == 0, answer.err
    (tuned,) = answer.json()["ops"]
    assert tuned["measured"] >= 1 and all(of in kernel for kernel in tuned["kernels"])
    assert host.run(tmp_path, "verify", "pack", "--json").json() == {"ok": True, "problems": []}
    axes = [part.partition("=")[0] for part in shapes.split(";")]
    explained = host.run(tmp_path, "explain", "pack", "--op", op, "--shape", ";".join(f"{axis}=5" for axis in axes))
    launches = "one launch where" if "r=1,s=1" in op else "one launch" if "groups=16" in op else "two launches"
    assert explained.code == 0 and launches in explained.out and of in explained.out, explained.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "op", "shapes"),
    [
        ("sm_80", "softmax:", "m=1..64;n=1..256"),
        ("sm_90a", "layer_norm:affine=scale_bias,dtype=bf16", "m=1..64;n=1..256"),
        ("sm_80", "gelu:", "m=1..64;n=1..256"),
        ("sm_90a", "attention:d=40,causal=end", "b=1..4;t=1..16;s=t"),
        ("sm_90a", "max_pool:kernel=3,stride=2,pad=1", "b=1..3;c=4;h=4..20;w=h"),
    ],
)
def test_generated_programs_are_tuned_packed_verified_and_explained(
    device: str, op: str, shapes: str, cache: Path, images: Path, tmp_path: Path
) -> None:
    host = Host(cache, images, device)
    answer = host.tune(tmp_path, "--op", op, "--shapes", shapes, "--device", "cuda:0", "--json")
    assert answer.code == 0, answer.err
    (tuned,) = answer.json()["ops"]
    assert tuned["measured"] >= 1 and all("cuda_generated_" in kernel for kernel in tuned["kernels"])
    assert host.run(tmp_path, "verify", "pack", "--json").json() == {"ok": True, "problems": []}
    axes = [part.partition("=")[0] for part in shapes.split(";")]
    explained = host.run(tmp_path, "explain", "pack", "--op", op, "--shape", ";".join(f"{axis}=5" for axis in axes))
    assert explained.code == 0 and "one launch" in explained.out, explained.err


@pytest.mark.slow
def test_outputs_of_a_file_are_tuned_as_one_op_and_verified(cache: Path, images: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from tests.runtime.test_group import node, saved

    saved(tmp_path / "norm.onnx", [
        node("Add", ["x", "r"], ["total"]), node("ReduceMax", ["total", "axes"], ["most"], keepdims=1),
        node("Sub", ["total", "most"], ["y"]), node("Transpose", ["y"], ["turned"], perm=[1, 0]),
    ], {"x": ["m", "n"], "r": ["m", "n"]}, ["most", "turned", "y", "total"], axes=np.array([1]))  # fmt: skip
    host, options = Host(cache, images, "sm_90a"), ("--op", "group:norm.onnx", "--shapes", "m=1..64;n=1..256")
    answer = host.tune(tmp_path, *options, "--device", "cuda:0", "--json", budget_s=24)
    assert answer.code == 0, answer.err
    ops = answer.json()["ops"]
    assert len(ops) == 2 and all(op["measured"] for op in ops)
    assert host.run(tmp_path, "verify", "pack", "--json").json() == {"ok": True, "problems": []}
    names = [op["name"] for op in json.loads((tmp_path / "pack" / "manifest.json").read_text())["ops"]]
    texts = [host.run(tmp_path, "explain", "pack", "--op", name, "--shape", "m=5;n=5").out for name in names]
    assert "one launch writes total, most, y" in texts[0] and "not written with y: y lies over other points" in texts[1], (
        texts
    )


def test_kill_9_and_resume_measure_nothing_twice(ampere: tuple[Host, Path, Any], tmp_path: Path) -> None:
    host, _, _ = ampere
    db = tmp_path / "pack.records.db"
    run = subprocess.Popen(
        command("tune", *ASKED, "--budget", "100s", "--resume"), cwd=tmp_path, env=host.environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until, seen = time.monotonic() + WALL_S, 0
    while time.monotonic() < until and run.poll() is None and seen < 6:
        time.sleep(0.1)
        try:
            seen = len(keys(db)) if db.exists() else 0
        except sqlite3.Error:
            continue
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    before = keys(db)
    assert len(before) >= 6
    answer = host.run(tmp_path, "tune", *ASKED, "--budget", "2s", "--resume", "--json")
    assert answer.code == 0, answer.err
    assert answer.json()["reused"] == len(before)
    after = keys(db)
    assert len(after) == len(set(after)), "a trial was measured twice"


def test_a_pack_for_an_absent_device_comes_from_predictions(cache: Path, tmp_path: Path) -> None:
    words = ("--op", "dense:n=256,k=8192,dtype=bf16", "--shapes", "m=17..32", "--device", "h200", "--zero-measure", "--json")
    done = haotuner("tune", *words, cache=cache, cwd=tmp_path)
    assert done.code == 3, done.err
    document = done.json()
    assert document["unverified"] and document["device"] == "h200" and document["ops"][0]["kernels"]
    assert "runs sm_90a" in document["verification"]["why"]
    explained = haotuner("explain", "pack", "--op", "dense_n256_k8192_bf16", "--shape", "m=20", cache=cache, cwd=tmp_path)
    assert "the sum over k in 16 parts, added in a fixed order" in explained.out, "the grid is short of waves"
    assert "2 launches; workspace of partial sums: 327680 bytes" in explained.out and "% behind" in explained.out


def test_a_host_without_nvcc_compiles_by_nvrtc(tmp_path: Path) -> None:
    """With a cache of its own: nothing that nvcc compiled is found."""
    try:
        nvrtc = find_nvrtc().name
    except EnvironmentMissing:
        pytest.skip("nvrtc: the wheel nvidia-cuda-nvrtc is not installed")
    (tmp_path / "bin").mkdir()
    for name in ("cc", "ld", "as"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    options = ("--op", "dense:n=64,k=64,dtype=bf16", "--shapes", "m=1..16", "--device", "h200", "--zero-measure", "--json")
    where = {**of_commands(tmp_path / "cache"), "PATH": str(tmp_path / "bin")}
    done = run_command(("tune", *options), tmp_path, where)
    assert done.code == 3 and done.json()["unverified"], done.err
    toolchain = json.loads((tmp_path / "pack" / "manifest.json").read_text())["toolchain"]
    assert "nvcc" not in toolchain and f"nvrtc {toolchain['nvidia-cuda-nvrtc']}".startswith(nvrtc)


def test_thread_counts_are_refused(ampere: tuple[Host, Path, Any], tmp_path: Path) -> None:
    answer = ampere[0].run(tmp_path, "tune", *ASKED, "--threads", "2")
    assert answer.code == 2 and "leave --threads out" in answer.err and "Traceback" not in answer.err, answer.err


def test_a_driver_too_old_for_what_is_compiled_here_is_refused_before_anything_is(
    cache: Path, images: Path, tmp_path: Path
) -> None:
    answer = Host(cache, images, "sm_80", driver=12040).run(tmp_path, "tune", *ASKED, "--budget", "3s")
    assert answer.code == 4 and "lacks a driver for CUDA 13.0 (driver 580 or later), as nvcc 13" in answer.err, answer.err
    assert "it serves CUDA 12.4: update the NVIDIA driver, or compile with a CUDA 12 toolkit" in answer.err
    assert not (tmp_path / "pack").exists() and not (tmp_path / "pack.records.db").exists()


def test_a_device_that_is_lost_is_a_record_and_the_run_goes_on(cache: Path, images: Path, tmp_path: Path) -> None:
    host = Host(cache, images, "sm_80", fail="cuLaunchKernel:7=async:700")
    answer = host.tune(tmp_path, *ASKED, "--json", budget_s=3)
    assert answer.code == 5 and "did not pass verification" in answer.err, answer.err  # every process loses the device
    with closing(sqlite3.connect(f"file:{tmp_path / 'pack.records.db'}?mode=ro", uri=True)) as connection:
        reasons = {json.loads(row[0]).get("reason") for row in connection.execute("select outcome from record")}
    assert reasons == {"crash"} and "Traceback" not in answer.err
