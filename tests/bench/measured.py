"""Gain of measuring over a pack of predictions: ``python -m tests.bench.measured --models FOLDER --scratch FOLDER``.

    python -m tests.bench.measured --models FOLDER --scratch FOLDER [--only NAME …] [--budget 60s] [--page FILE]

Each model of ``measured_models.py`` is tuned with ``--zero-measure``, then for ``--budget``. Both packs answer the same
requests in turns, in one process: at three sizes, with one and two threads, on the host as it is and beside one busy
process a core. What is known of a model lies in the scratch folder as JSON, and is not measured again; the page is made of
all that is there. A model whose file cannot be had is named on the page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any

from haotuner.bench import machine_load
from haotuner.bench.models import shape_constraints_of
from haotuner.partition.dim_ranges import spans_of
from haotuner.runtime.pack import load
from haotuner.verify.model_check import graph_of, name_of
from haotuner.verify.pack_race import call_of
from tests.bench.markdown import markdown_table
from tests.bench.measured_models import SUBJECTS, Subject, file_of
from tests.bench.wild import taken

SIZES = 9  # drawn requests, of which the smallest, the middle one and the largest are raced
LEAST_TURNS = 5
TUNE_LIMIT_S, RACE_LIMIT_S = 1800.0, 300.0
NOISE = 1.03  # below it a difference says nothing
HEAD = """# What measuring adds to a pack of predictions

Made by `python -m tests.bench.measured --models FOLDER --scratch FOLDER --page docs/results/measured.md`. Each model is
tuned with `--zero-measure`, and with `--budget {budget}`. Both packs answer the same requests in turns in one process. A
number is the least time of the predicted pack over that of the other one: above 1 measuring made the model faster. With one
thread it is the processor's time, with two wall time. Three numbers are of the smallest, a middle and the largest of nine
requests drawn of the range. *crowded*: beside one busy process a core, which the command starts. *served*: the plan that
tuning published; it races the timed plan against the predicted one and publishes the faster. *timed*: ops and groups that
have times.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune and race what is not known yet, and write the page of all that is."""
    options = _parser().parse_args(arguments)
    if options.race:
        print(json.dumps(raced(options.race)))
        return 0
    options.scratch.mkdir(parents=True, exist_ok=True)
    for subject in SUBJECTS:
        store = options.scratch / f"{subject.name}.json"
        if (not options.only or subject.name in options.only) and not store.exists():
            row = _measured(subject, options)
            store.write_text(json.dumps(row, indent=1), encoding="utf-8")
            print(subject.name, json.dumps(row), flush=True)
    if options.page:
        options.page.write_text(page(_stored(options.scratch), options.budget), encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="keeps ONNX files; those of examples/orchestration are built there")
    parser.add_argument("--scratch", type=Path, help="keeps packs and figures")
    parser.add_argument("--only", nargs="*", default=[], help=f"of {', '.join(subject.name for subject in SUBJECTS)}")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each race at each size")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--race", type=json.loads, help=argparse.SUPPRESS)
    return parser


def _measured(subject: Subject, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of a model; ``absent`` with the reason where its file cannot be had, ``failed`` where tuning fails."""
    try:
        file = file_of(subject, options.models)
    except FileNotFoundError as error:
        return {"absent": str(error)}
    packs = {plan_kind: options.scratch / subject.name / plan_kind for plan_kind in ("predicted", "timed")}
    packs["timed"].parent.mkdir(exist_ok=True)
    seconds: dict[str, float] = {}
    report: dict[str, Any] = {}
    try:
        for plan_kind, words in (("predicted", ["--zero-measure"]), ("timed", ["--budget", options.budget])):
            begin = time.monotonic()
            tune = ["haotuner", "tune", str(file), "--shapes", subject.shapes, "--threads", "1,2", "--peers", "none"]
            report = json.loads(_run([*tune, *words, "--json", "--out", str(packs[plan_kind])], TUNE_LIMIT_S, good=(0, 3)))
            seconds[plan_kind] = round(time.monotonic() - begin, 1)
        job = {"predicted": str(packs["predicted"]), "timed": str(packs["timed"]), "name": name_of(file)}
        job |= {"file": str(file), "shapes": subject.shapes, "seconds": options.seconds}
        races = []
        for crowded in (False, True):
            for threads in (1, 2):
                with _crowd() if crowded else _nobody():
                    answer = _run(["tests.bench.measured", "--race", json.dumps(job | {"threads": threads})], RACE_LIMIT_S)
                races.append({"crowded": crowded, "threads": threads, **json.loads(answer.splitlines()[-1])})
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return {"failed": " ".join(str(error).split())[-300:]}
    manifest = json.loads((packs["timed"] / "manifest.json").read_text())
    plan: dict[str, Any] = next(iter(manifest["tuning"]["models"].values()), {})
    return {
        "seconds": seconds,
        "budget": options.budget,
        "ops": [sum(op["measured"] > 0 for op in report["ops"]), len(report["ops"])],
        "groups": plan.get("measured", 0),
        "served": "predicted" if report["unverified"] else "timed",
        "kept": report.get("kept", ""),
        "races": races,
    }


def raced(job: Mapping[str, Any]) -> dict[str, Any]:
    """Requests, and of each the least microseconds of both packs; with one thread the processor's time."""
    spans = spans_of(graph_of(Path(job["file"]), job["shapes"]), job["shapes"])
    before, rows = machine_load.read(()), []
    with load(job["predicted"], threads=job["threads"]) as first, load(job["timed"], threads=job["threads"]) as second:
        models = [pack.model(job["name"]) for pack in (first, second)]
        dims = [name for name in spans if any(name in end.shape for end in models[0].inputs)]
        requests = taken({name: spans[name] for name in dims}, SIZES, shape_constraints_of(models[0], dims))
        requests.sort(key=lambda sizes: prod(sizes.values()))
        for request in (requests[0], requests[len(requests) // 2], requests[-1]):
            calls = [call_of(model, request) for model in models]
            for call in calls:
                call()
            clock = time.thread_time if job["threads"] == 1 else time.perf_counter
            times: list[list[float]] = [[], []]
            begin = time.perf_counter()
            while len(times[0]) < LEAST_TURNS or time.perf_counter() - begin < job["seconds"]:
                for position in (0, 1) if len(times[0]) % 2 else (1, 0):
                    start = clock()
                    calls[position]()
                    times[position].append((clock() - start) * 1e6)
            us = [min(column) for column in times]
            rows.append({"request": request, "us": us, "ratio": us[0] / us[1]})
    return {"rows": rows, "foreign_cores": machine_load.foreign_cores(before, machine_load.read(()))}


@contextmanager
def _crowd() -> Iterator[None]:
    """One busy process a core, until it is left."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def _nobody() -> Iterator[None]:
    yield


def _stored(scratch: Path) -> dict[str, Any]:
    paths = {subject.name: scratch / f"{subject.name}.json" for subject in SUBJECTS}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}


def page(rows: Mapping[str, Any], budget: str) -> str:
    """The page's text."""
    conditions = [(crowded, threads) for crowded in (False, True) for threads in (1, 2)]
    names = [
        f"{'crowded' if crowded else 'as it is'}, {threads} thread{'s' * (threads > 1)}" for crowded, threads in conditions
    ]
    lines, means = [], dict[tuple[bool, int], list[float]]()
    all_ratios: list[float] = []
    for name, row in rows.items():
        if "races" not in row:
            continue
        cells = []
        for condition in conditions:
            (race,) = [race for race in row["races"] if (race["crowded"], race["threads"]) == condition]
            ratios = [size["ratio"] for size in race["rows"]]
            all_ratios += ratios
            means.setdefault(condition, []).append(statistics.geometric_mean(ratios))
            cells.append(", ".join(f"{ratio:.2f}" for ratio in ratios))
        timed = f"{row['ops'][0]} of {row['ops'][1]}, {row['groups']}"
        lines.append(
            [name, timed, row["served"], *cells, f"{row['seconds']['predicted']:.0f}, {row['seconds']['timed']:.0f}"]
        )
    if lines:
        total = [f"**{statistics.geometric_mean(means[condition]):.2f}**" for condition in conditions]
        lines.append(["geometric mean", "", "", *total, ""])
    lines_of_cpu = (line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines())
    cpu = next((value.strip() for key, _, value in lines_of_cpu if key.startswith("model name")), platform.machine())
    foreign = [race["foreign_cores"] for row in rows.values() for race in row.get("races", ()) if not race["crowded"]]
    slower = sum(ratio < 1 / NOISE for ratio in all_ratios)
    text = [HEAD.format(budget=budget), *markdown_table(["model", "timed", "served", *names, "tuned in, s"], lines)]
    text.append(f"{cpu}, {len(os.sched_getaffinity(0))} cores, {datetime.now(UTC):%Y-%m-%d}.")
    if foreign:
        text.append(
            f"Other programs kept {statistics.median(foreign):.1f} cores busy during the races on the host as it is "
            f"(median; most {max(foreign):.1f})."
        )
    text.append(f"Of {len(all_ratios)} numbers {slower} are below {1 / NOISE:.2f}: there the pack of a budget was slower.")
    for name, row in rows.items():
        if "races" not in row:
            text.append(f"{name} is left out: {row.get('absent') or row.get('failed')}.")
    return "\n".join(text) + "\n"


def _run(command: Sequence[str], limit_s: float, good: Sequence[int] = (0,)) -> str:
    """Text that a module of Python prints. RuntimeError with its last words where it fails."""
    process = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=limit_s, check=False)
    if process.returncode not in good:
        words = process.stderr.strip() or process.stdout.strip()
        raise RuntimeError(f"{command[0]} exits with {process.returncode}: {words}")
    return process.stdout


if __name__ == "__main__":
    sys.exit(main())
