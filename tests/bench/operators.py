"""Races packs of kinds other than dense, and writes docs/results/operators.md, a section a kind.

    python -m tests.bench.operators [SECTION ...] [--seconds-per-row 1] [--budget 30s] [--weights hot] [--threads 1]

A section is a module ``operators_NAME.py`` with TITLE, CASES (``--op``, ``--shapes`` to tune, ``--shapes`` to race, or None)
and PEERS, or with TITLE and a ``section`` of its own, timed in this process. Sections that are not named stay as they are
in the page. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.cpu_dense import haotuner, machine

SECTIONS = ("conv", "products", "fused", "types", "kinds")
HEAD = """# Operators beside dense: races

Made by `python -m tests.bench.operators`, each section by the command that it names. Ratios are the best peer's time at each
shape over ours: more than 1 means that we are faster. Rows that other load may have shaped are marked.
"""


def main() -> None:
    """Tune, race, write."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("sections", nargs="*", default=list(SECTIONS))
    words.add_argument("--seconds-per-row", default="1")
    words.add_argument("--budget", default="30s")
    words.add_argument("--weights", default="hot")
    words.add_argument("--threads", default="1")
    words.add_argument("--db", default="", help="a store that keeps the records of sections timed here, for kind_models")
    words.add_argument("--out", type=Path, default=Path("docs/results/operators.md"))
    args = words.parse_args()
    for name in args.sections:
        module = importlib.import_module(f"tests.bench.operators_{name}")
        for text in section(name, module, args):  # case by case: what was raced is kept however the run ends
            page = args.out.read_text(encoding="utf-8") if args.out.exists() else HEAD
            args.out.write_text(with_section(page, module.TITLE, text), encoding="utf-8")


def with_section(page: str, title: str, text: str) -> str:
    """The page with a section in place of the one of that title, or behind all others."""
    parts = re.split(r"(?m)^(?=## )", page)
    others = [part for part in parts if not part.startswith(f"## {title}\n")]
    return "\n\n".join(part.strip() for part in [*others, text]) + "\n"


def section(name: str, module: Any, args: argparse.Namespace) -> Iterator[str]:
    """Markdown of one kind, after each of its cases: a row a shape, and the mean."""
    command = f"python -m tests.bench.operators {name} --seconds-per-row {args.seconds_per_row} --budget {args.budget}"
    command += f" --weights {args.weights} --threads {args.threads}"
    if hasattr(module, "section"):
        yield module.section(command, args)
        return
    rows: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for index, (op, tune_at, race_at) in enumerate(module.CASES):
            pack = str(Path(folder) / str(index))
            words = (
                "--threads",
                args.threads,
                "--budget",
                args.budget,
                "--cache-state",
                args.weights,
                "--peers",
                "none",
                "-q",
            )
            tuned = haotuner("tune", "--op", op, "--shapes", tune_at, "--out", pack, *words)
            more = () if race_at is None else ("--shapes", race_at)
            race = ("--peers", module.PEERS, "--threads", args.threads, "--cache-state", args.weights)
            raced = haotuner("bench", pack, *more, *race, "--seconds-per-row", args.seconds_per_row, "-q")
            rows += raced["rows"]
            yield _text(module, command, machine(tuned), rows, index + 1)


def _text(module: Any, command: str, where: str, rows: list[Any], cases: int) -> str:
    text = [f"## {module.TITLE}", "", f"`{command}`", "", where, ""]
    text += ["| op | shape | threads | ours us | GFLOP/s | best peer | best peer over ours | 95 % | |", "|" + "---|" * 9]
    text += [row_text(row) for row in rows]
    best = [row["best"]["ratio"] for row in rows if row["best"]]
    mean = math.exp(sum(map(math.log, best)) / len(best)) if best else float("nan")
    lost = sum(bool(row["best"] and row["best"]["high"] is not None and row["best"]["high"] < 0.95) for row in rows)
    done = "" if cases == len(module.CASES) else f" {cases} of {len(module.CASES)} cases were raced."
    return "\n".join([*text, "", f"Geometric mean {mean:.2f}x over {len(best)} rows, {lost} of them lost.{done}"])


def row_text(row: Any) -> str:
    """One raced shape."""
    best, shape = row["best"] or {"peer": "-", "ratio": float("nan"), "low": None, "high": None}, row["shape"]
    span = "-" if best["low"] is None else f"{best['low']:.2f}..{best['high']:.2f}"
    ours = "-" if row["ours_us"] is None else f"{row['ours_us']:.1f} | {row['gflops']:.0f}"
    at = " ".join(f"{axis}={extent}" for axis, extent in shape.items())
    note = "contended" if row["contended"] else ""
    return f"| {row['op']} | {at} | {row['threads']} | {ours} | {best['peer']} | {best['ratio']:.2f}x | {span} | {note} |"


if __name__ == "__main__":
    main()
