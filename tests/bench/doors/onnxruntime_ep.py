"""Door of ONNX Runtime: sessions whose provider serves a pack, beside sessions of the runtime's own CPU provider.

Three models are built and tuned for a minute each; one thread; a process for each session.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime

from tests.bench.doors.row import Row
from tests.bench.measured_models import encoder, linear_attention
from tests.integrations.onnxruntime_packs import mlp, provider_library

BUDGET = "60s"
MODELS = {
    "mlp": "b=1..512",
    "encoder": "b=1..8;t=1..128",
    "efficientvit": "n=1..2;h=8..64;w=8..64",
}
BUILDERS = {
    "mlp": lambda path: path.write_bytes(mlp().SerializeToString()),
    "encoder": encoder,
    "efficientvit": linear_attention,
}
FIGURES = ("cold_ms", "first_ms", "p50_us", "p99_us", "throughput", "memory_mb")


def tuned(name: str, folder: Path) -> tuple[Path, Path]:
    """A model's file and its pack."""
    file, pack = folder / f"{name}.onnx", folder / name
    if not file.exists():
        BUILDERS[name](file)
    if not (pack / "manifest.json").exists():
        words = ["tune", str(file), "--shapes", MODELS[name], "--budget", BUDGET, "--peers", "none", "--threads", "1"]
        done = subprocess.run([sys.executable, "-m", "haotuner", *words, "-q", "--out", str(pack)], check=False)
        if done.returncode not in (0, 3):
            raise RuntimeError(f"haotuner {' '.join(words)} exited with {done.returncode}")
    return file, pack


def measured(*words: str | Path) -> dict[str, Any]:
    """Figures of a session in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.doors.onnxruntime_child", *map(str, words)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document | {"cold_ms": 1e3 * (document["ready"] - began)}


def prepare(folder: Path) -> None:
    """Files and packs of the models."""
    for name in MODELS:
        tuned(name, folder)


@cache
def documents(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Figures of each model's sessions: of the pack's, and of the CPU provider's."""
    result = {}
    with tempfile.TemporaryDirectory() as scratch:
        library = provider_library(Path(scratch))
        for name, shapes in MODELS.items():
            file, pack = tuned(name, folder)
            result[name] = measured(file, shapes, pack, library), measured(file, shapes)
    return result


def rows(folder: Path) -> list[Row]:
    """A row for each model."""
    return [
        Row(
            door="onnxruntime_ep",
            model=name,
            **{figure: own[figure] for figure in FIGURES},
            beside={figure: other[figure] for figure in FIGURES},
            server=f"CPUExecutionProvider {onnxruntime.__version__}",
        )
        for name, (own, other) in documents(folder).items()
    ]


def notes(folder: Path) -> str:
    """What was measured beside the table's figures."""
    head = (
        "| model | sizes | first calls of 200 new shapes over warm ones | of the CPU provider | MB they added "
        "| of the CPU provider | us over `pack.model` |"
    )
    lines = [
        f"| {name} | {MODELS[name]} | {own['first_over_warm']:.2f}x | {other['first_over_warm']:.2f}x "
        f"| {own['grown_mb']:.1f} | {other['grown_mb']:.1f} | {own['over_direct_us']:.1f} |"
        for name, (own, other) in documents(folder).items()
    ]
    return "\n".join(
        ["", f"One thread; packs of `haotuner tune --budget {BUDGET}`.", "", head, "|---|---|---|---|---|---|---|", *lines]
    )
