"""Races on a GPU as a page: ``python -m tests.bench.cuda_race RESULTS --page docs/results/cuda-race.md``.

RESULTS holds what ``haotuner bench PACK --device cuda:0 --json`` printed, a file a pack; a bundle's are below ``race/``.
``--note TEXT`` says what a reader must know of that run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from haotuner.host.files import written_aside

SHORT = 16  # rows of a decoding step
HEAD = """# Races on a GPU

Made by `python -m tests.bench.cuda_race RESULTS --page docs/results/cuda-race.md`, from what `haotuner bench PACK
--device cuda:0 --peers torch,cublaslt,cublaslt16 --json` measured. Times are microseconds of one call in a captured graph,
contenders interleaved; TF32 and sums in halves are off. Weights are cold: every call finds its weight out of the L2.
*cublaslt* is the heuristic's first choice, *cublaslt16* the best of its 16 proposals, timed at every shape. Ratios are the
peer's time over ours: above 1 ours is faster."""


def main(arguments: Sequence[str]) -> int:
    """Write the page; 2 without a single race."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cuda_race")
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--note", default="")
    args = parser.parse_args(arguments)
    rows = {path.stem: json.loads(path.read_text()) for path in sorted(args.results.glob("*.json")) if path.stat().st_size}
    races = {stem: race for stem, race in rows.items() if race.get("rows")}
    if not races:
        print(
            f"cuda_race: no race in {args.results}: pass the folder of files that `haotuner bench --json` wrote",
            file=sys.stderr,
        )
        return 2
    with written_aside(args.page) as aside:
        aside.write_text(page(races, args.note))
    return 0


def page(races: Mapping[str, dict[str, Any]], note: str) -> str:
    """All races: a table of means, then each race row by row."""
    first = next(iter(races.values()))
    versions = ", ".join(f"{peer} {version}" for peer, version in first["versions"].items() if not peer.startswith("ours"))
    lines = [HEAD, "", f"{first['device']['id']}, {first['device']['compute_units']} multiprocessors; {versions}.", ""]
    lines += [note, ""] if note else []
    lines += ["| op | run | rows | best peer | each peer |", "|---|---|---|---|---|"]
    for stem, race in races.items():
        name = race["rows"][0]["op"]
        for words, rows in _parts(race["rows"]):
            each = ", ".join(
                f"{peer} {_mean([row['ratios'][peer]['ratio'] for row in rows]):.2f}" for peer in rows[0]["ratios"]
            )
            lines.append(f"| {name} | {stem} | {words} | {_mean([row['best']['ratio'] for row in rows]):.2f} | {each} |")
    for stem, race in races.items():
        peers = list(race["rows"][0]["peers_us"])
        lines += ["", f"## {race['rows'][0]['op']}, {stem}", "", f"| m | ours | {' | '.join(peers)} | TFLOP/s | plan |"]
        lines.append("|---" * (len(peers) + 4) + "|")
        for row in race["rows"]:
            times = [row["ours_us"], *(row["peers_us"].get(peer) for peer in peers)]
            cells = " | ".join("-" if us is None else f"{us:.1f}" for us in times)
            lines.append(f"| {row['shape']['m']} | {cells} | {(row['gflops'] or 0) / 1e3:.1f} | `{row['composition']}` |")
    return "\n".join(lines) + "\n"


def _parts(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """All rows that were raced, and those of decoding steps apart."""
    sound = [row for row in rows if row["best"] and not row["contended"]]
    short = [row for row in sound if row["shape"]["m"] <= SHORT]
    long = [row for row in sound if row["shape"]["m"] > SHORT]
    parts = ((f"m up to {SHORT}", short), (f"m above {SHORT}", long), ("all", sound))
    return [(f"{words} ({len(some)})", some) for words, some in parts if some]


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
