"""RapidOCR with its three sessions replaced by one pack: ``python -m tests.bench.ocr PACK [--images 1000] [--page FILE]``.

The pack holds RapidOCR's detector, recogniser and classifier (``haotuner tune`` takes several files). Images of odd sizes
with a few lines of text come one after the other; contenders take turns at each, every one in a process of its own: RapidOCR
unchanged on ONNX Runtime and on OpenVINO (as RapidOCR sets it, then told to keep to fp32), and on the pack, where no other
session is ever made. Told are latencies, memory, and whether texts agree.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.bench.contender import OURS, Setting, child_environment
from haotuner.bench.processes import ExclusiveRunner, greetings
from haotuner.isolate.answers import Job
from haotuner.isolate.child import Child
from haotuner.isolate.program import Program

PROGRAM = "tests.bench.ocr:contender"
AS_FP32 = "openvino-f32"  # by itself OpenVINO multiplies in bf16 where the CPU can; RapidOCR does not ask it for fp32
CONTENDERS = (OURS, "onnxruntime", "openvino", AS_FP32)
WORDS = ("Invoice", "total 48.20", "haotuner", "batch 17", "Rue de Lyon", "2026-11-25", "shapes", "No. 6120", "thank you")


class PackSession:
    """A model of a pack where RapidOCR expects an ``onnxruntime.InferenceSession``; the file gives its metadata alone."""

    def __init__(self, session: Any, file: str) -> None:
        import onnx

        self._session = session
        stored = onnx.load(file, load_external_data=False)
        self.custom_metadata_map = {entry.key: entry.value for entry in stored.metadata_props}
        self.run, self.get_inputs, self.get_outputs = session.run, session.get_inputs, session.get_outputs

    def get_modelmeta(self) -> PackSession:
        """The object that has ``custom_metadata_map``."""
        return self

    def get_providers(self) -> list[str]:
        """What RapidOCR checks."""
        return ["CPUExecutionProvider"]


def replaced(pack: Any) -> Callable[..., PackSession]:
    """What makes a session of the pack out of the path of the model that RapidOCR would load."""
    return lambda path, **_: PackSession(pack.session(Path(path).stem), path)


def drawn(index: int) -> Any:
    """An image of an odd size, (height, width, 3), with one to five lines of text."""
    cv2: Any = importlib.import_module("cv2")

    draw = np.random.default_rng(index)
    height, width = (2 * int(draw.integers(low, high)) + 1 for low, high in ((40, 320), (80, 480)))
    image = np.full((height, width, 3), int(draw.integers(190, 256)), np.uint8)
    lines = int(draw.integers(1, 6))
    for line in range(lines):
        text = " ".join(draw.choice(WORDS, int(draw.integers(1, 4))))
        size = min(float(draw.uniform(0.5, 1.2)), height / lines / 30)
        at = (int(draw.integers(4, max(5, width // 4))), int((line + 0.7) * height / lines))
        cv2.putText(image, text, at, cv2.FONT_HERSHEY_SIMPLEX, size, (20, 20, 20), max(1, round(size * 2)), cv2.LINE_AA)
    return image


def _status(key: str) -> int:
    """Bytes of a line of this process's status: VmRSS, VmHWM."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), 0)


def contender(config: Mapping[str, Any]) -> Program:
    """RapidOCR on the sessions that ``config`` names. It greets with the seconds of loading, and serves two verbs.

    ``answer``: image ``place``; its milliseconds, texts, and resident memory behind it. ``peak``: the most memory so far.
    """
    rapidocr: Any = importlib.import_module("rapidocr")

    threads = config["threads"]
    params: dict[str, Any] = {
        "Global.log_level": "error", "Det.limit_type": "max", "Det.limit_side_len": config["side"],
        "EngineConfig.onnxruntime.intra_op_num_threads": threads, "EngineConfig.openvino.inference_num_threads": threads,
    }  # fmt: skip
    if config["contender"] in ("openvino", AS_FP32):
        params |= {f"{part}.engine_type": rapidocr.EngineType.OPENVINO for part in ("Det", "Cls", "Rec")}
    if config["contender"] == AS_FP32:
        settings: Any = importlib.import_module("rapidocr.inference_engine.openvino.device_config").CPUConfig
        default = settings.get_config
        settings.get_config = lambda self: {**default(self), "INFERENCE_PRECISION_HINT": "f32"}
    begin = time.perf_counter()
    if config["contender"] == OURS:
        import haotuner

        sessions: Any = importlib.import_module("rapidocr.inference_engine.onnxruntime.main")

        sessions.InferenceSession = replaced(haotuner.load(config["pack"], threads=threads))
    engine = rapidocr.RapidOCR(params=params)
    load_s = time.perf_counter() - begin

    def answer(job: Job) -> Job:
        image = drawn(job["place"])
        begin = time.perf_counter()
        result = engine(image)
        ms = (time.perf_counter() - begin) * 1e3
        return {"ms": ms, "texts": list(result.txts or ()), "rss": _status("VmRSS")}

    return Program(verbs={"answer": answer, "peak": lambda _: {"bytes": _status("VmHWM")}}, greeting={"load_s": load_s})


def race(config: Mapping[str, Any], images: int) -> dict[str, dict[str, Any]]:
    """What each contender took and read; one that fails is left out, HaotunerError if ours does."""
    warn = partial(print, file=sys.stderr)
    own = child_environment({**os.environ, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}, Setting(threads=config["threads"]))
    children = {name: Child(PROGRAM, {**config, "contender": name}, environment=own, rests=True) for name in CONTENDERS}
    try:
        results = {
            name: {**greeting, "ms": [], "texts": [], "rss": []} for name, greeting in greetings(children, warn).items()
        }
        turns = ExclusiveRunner({name: children[name] for name in results}, warn)
        for index in range(images):
            for name, answer in turns.round(index, {"do": "answer", "place": index}).items():
                for key, value in answer.items():
                    results[name][key].append(value)
        return {name: results[name] | {"peak": reply["bytes"]} for name, reply in turns.round(0, {"do": "peak"}).items()}
    finally:
        for child in children.values():
            child.close()


def page(results: Mapping[str, Mapping[str, Any]], images: int, command: str, threads: int) -> str:
    """The page's text."""
    reference = next((name for name in ("onnxruntime", "openvino") if name in results), "ours")
    cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())  # fmt: skip
    lines = [
        "# RapidOCR on one pack", "",
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, {cpu}, {threads} thread(s), load average {os.getloadavg()[0]:.0f} on "
        f"{os.cpu_count()} cores.",
        f"{images:,} images of odd sizes, 81 to 959 pixels, one after the other. Each contender is in a process of its",
        "own; they take turns at each image: one runs, the others are stopped.",
        "Times are of the whole of RapidOCR, its image processing included. *first 10*, *after all*: resident memory then.",
        f"*{AS_FP32}*: told to keep to fp32, as all but *openvino* do, which multiplies in bf16 on CPUs that have it.",
        "",
        "| sessions | p50 ms | p99 ms | all, s | load, s | MB, first 10 | MB, after all | peak MB | same texts |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, result in results.items():
        ms = sorted(result["ms"])
        alike = sum(a == b for a, b in zip(result["texts"], results[reference]["texts"], strict=True)) / images
        lines.append(
            f"| {name} | {statistics.median(ms):.1f} | {ms[min(len(ms) - 1, int(0.99 * len(ms)))]:.1f} | "
            f"{sum(ms) / 1e3:.1f} | "
            f"{result['load_s']:.1f} | {result['rss'][min(9, images - 1)] / 1e6:.0f} | {result['rss'][-1] / 1e6:.0f} | "
            f"{result['peak'] / 1e6:.0f} | {alike:.1%} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Race the contenders, print the table; ``--page`` writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", type=int, default=640, help="the detector's longest side")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args(arguments)
    results = race({"pack": args.pack, "threads": args.threads, "side": args.side}, args.images)
    text = page(results, args.images, f"python -m tests.bench.ocr PACK --images {args.images}", args.threads)
    print(text)
    if args.page:
        args.page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
