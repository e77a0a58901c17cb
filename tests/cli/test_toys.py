"""Proof by example: a toy operator and a toy backend, one new file and an index entry each; a step of epilogues, a row."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Answer
from tests.cli.warm import run_warm
from tests.run_folder import cache_folder
from tests.standin.patience import WALL_S

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
TOYS = Path(__file__).parent / "toys"
SERVE = """
import haotuner, numpy as np
with haotuner.load("pack", threads=2) as pack:
    op = pack.op("row_sum")
    for m, n in ((1, 1), (3, 5), (64, 300), (7, 1000), (200, 31)):
        x = np.random.default_rng(0).standard_normal((m, n), dtype=np.float32)
        y = op.run(x)
        assert y.shape == (m,) and np.allclose(y, x.sum(axis=1, dtype=np.float64), atol=1e-3), (m, n)
    print(pack.stats())
"""

# All that torch and ONNX models, the reference, tolerances, packs and both backends need of a step: here x / (1 + |x|).
STEP = (
    (
        "ops/epilogue.py",
        """        # ONNX's PRelu, and LeakyRelu""",
        """        Step(name="softsign", number=15,
             formula=apply("div", VALUE, apply("add", apply("abs", VALUE), 1.0))),\n""",
    ),
    ("torch/folding.py", """    torch.nn.Tanh: "tanh",\n""", """    torch.nn.Softsign: "softsign",\n"""),
)
SERVE_STEP = """
import haotuner, numpy as np
with haotuner.load("pack", threads=1) as pack:
    op = pack.op(next(iter(pack.ops)))
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(size, dtype=np.float32) for size in ((9, 24), (40, 24), (40,)))
    y = x.astype(np.float64) @ w.T + b
    assert np.allclose(op.bind(w, bias=b)(x), y / (1 + np.abs(y)), atol=1e-5)
"""


def entered(path: Path, line: str, entry: tuple[str, str]) -> None:
    """One import and one entry in an index."""
    text = path.read_text()
    assert text.count(entry[0]) == 1
    last = text.rindex("\nfrom haotuner")
    path.write_text(text[: last + 1] + line + text[last + 1 :].replace(*entry))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with both toys."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("haotuner", "microkernels", "transfer", "hw_profiles"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    shutil.copy(TOYS / "row_sum.py.txt", folder / "haotuner" / "ops" / "row_sum.py")
    kinds = folder / "haotuner" / "ops" / "index.py"
    entered(kinds, "from haotuner.ops.row_sum import ROW_SUM\n", ("    DENSE,\n", "    DENSE,\n    ROW_SUM,\n"))
    shutil.copy(TOYS / "c_compiler.py.txt", folder / "haotuner" / "backends" / "c_compiler.py")
    backends = folder / "haotuner" / "backends" / "index.py"
    entered(
        backends,
        "from haotuner.backends.c_compiler import CBackend\n",
        ("(CpuBackend(), CudaBackend())", "(CBackend(), CpuBackend(), CudaBackend())"),
    )
    for name, row, new in STEP:
        path = folder / "haotuner" / name
        text = path.read_text()
        assert text.count(row) == 1, f"{name} has no {row!r} any more: mend this test"
        path.write_text(text.replace(row, new + row))
    return folder


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "XDG_CACHE_HOME": str(cache_folder())}


def run(tree: Path, cwd: Path, *words: str) -> Answer:
    """``haotuner words`` of the tree."""
    return Answer(*run_warm(words, cwd, environment(tree), WALL_S, tree))


@pytest.mark.parametrize("device", ["cpu", "c"])
def test_a_row_sum_over_two_dynamic_axes_is_tuned_packed_and_served(tree: Path, tmp_path: Path, device: str) -> None:
    options = ("--op", "row_sum:", "--shapes", "m=1..64;n=1..300", "--device", device, "--threads", "1,2")
    tuned = run(tree, tmp_path, "tune", *options, "--budget", "2s", "--peers", "none", "--json")
    assert tuned.code == 0, tuned.err
    (op,) = json.loads(tuned.out)["ops"]
    family = {"cpu": "cpu_generated_row_sum_fp32", "c": "c_loops_row_sum_fp32"}[device]
    assert op["name"] == "row_sum" and op["measured"] >= 1 and all(k.startswith(f"{family}__") for k in op["kernels"])
    if device == "c":  # what people read knows nothing of devices
        answer = run(tree, tmp_path, "tune", *options, "--budget", "1s", "--peers", "none", "--out", "other")
        assert answer.code == 0 and "row_sum" in answer.out and "m=64;n=300" in answer.out, answer.err
    served = subprocess.run(
        [sys.executable, "-c", SERVE], cwd=tmp_path, env=environment(tree), capture_output=True, text=True, timeout=WALL_S,
        check=False,
    )  # fmt: skip
    assert served.returncode == 0 and "'calls': 5" in served.stdout, served.stderr
    verified = run(tree, tmp_path, "verify", "pack", "--json")
    assert json.loads(verified.out) == {"ok": True, "problems": []}, verified.err
    explained = run(tree, tmp_path, "explain", "pack", "--op", "row_sum", "--shape", "m=7;n=40", "--json")
    assert explained.code == 0, explained.err
    document = json.loads(explained.out)
    assert document["regions"][0]["kernel"] in op["kernels"] and document["regions"][0]["box"] == {"m": [0, 7]}
    assert document["measured_us"] > 0
    printed = run(tree, tmp_path, "explain", "pack", "--op", "row_sum", "--shape", "m=7;n=40")
    assert printed.code == 0 and "row_sum m=7 n=40" in printed.out, printed.err
    listed = run(tree, tmp_path, "inspect", "pack")
    assert listed.code == 0 and "m=1..64 n=1..300" in listed.out, listed.err


def test_a_step_of_epilogues_is_a_row_of_two_files(tree: Path, tmp_path: Path) -> None:
    assert len({name for name, _, _ in STEP}) <= 6
    words = ("--op", "dense:n=40,k=24,epilogue=bias+softsign", "--shapes", "m=1..64", "--threads", "1", "--peers", "none")
    tuned = run(tree, tmp_path, "tune", *words, "--budget", "1s", "--json")
    assert tuned.code == 0, tuned.err
    served = subprocess.run(
        [sys.executable, "-c", SERVE_STEP], cwd=tmp_path, env=environment(tree), capture_output=True, text=True,
        timeout=WALL_S, check=False,
    )  # fmt: skip
    assert served.returncode == 0, served.stderr
    verified = run(tree, tmp_path, "verify", "pack", "--json")
    assert json.loads(verified.out) == {"ok": True, "problems": []}, verified.err
