"""``python -m tests.bench.transfer_study``: docs/transfer/study.md with its bars and plots, and parts of it alone.

    python -m tests.bench.transfer_study report --db URL --out docs/transfer/study.md
    python -m tests.bench.transfer_study ablate --db URL
    python -m tests.bench.transfer_study permute --db URL
    python -m tests.bench.transfer_study speed --db URL --target a4000

``--data FOLDER`` in place of ``--db URL`` takes Kernel Tuner's cache files. Each prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from haotuner.cli.output_path import check_output_path, plots_beside
from haotuner.cli.status_messages import keep_partial_results, status_messages
from haotuner.cli.transfer_input import counts_of, device_tables, known_device, known_families, shared_families
from haotuner.errors import HaotunerError, UsageError
from haotuner.transfer.reading import DeviceTables
from tests.bench.transfer_study.ablation import ablate
from tests.bench.transfer_study.page import study_page
from tests.bench.transfer_study.permutation import permute
from tests.bench.transfer_study.plots import draw, pyplot_or_say
from tests.bench.transfer_study.speed import time_scoring
from tests.bench.transfer_study.survey import survey


def main(words: Sequence[str] | None = None) -> int:
    """Run one study; the exit code is that of the error, 0 without one."""
    asked = _parser().parse_args(words)
    try:
        if asked.study == "report":
            check_output_path(asked.out)
            pyplot_or_say()  # before minutes are spent
        found = asked.of(device_tables(asked.db, asked.data, quiet=False, verbose=False), asked)
    except HaotunerError as error:
        print(f"transfer_study: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(found, indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.transfer_study", description=__doc__)
    studies = parser.add_subparsers(dest="study", required=True)
    for name, of, seeds in (("report", _report, 20), ("ablate", _ablate, 5), ("permute", _permute, 5), ("speed", _speed, 0)):
        one = studies.add_parser(name)
        one.set_defaults(of=of)
        source = one.add_mutually_exclusive_group(required=True)
        source.add_argument("--db", metavar="URL", help="the record store")
        source.add_argument("--data", metavar="FOLDER", type=Path, help="Kernel Tuner's cache files")
        one.add_argument("--family", action="append", default=[], help="only this family; repeatable")
        if seeds:
            one.add_argument("--seeds", type=int, default=seeds)
        if name == "speed":
            one.add_argument("--target", required=True, metavar="ID")
            one.add_argument("--rows", default="4000,64000")
        if name == "report":
            one.add_argument("--out", type=Path, required=True, help="the page; plots go into a folder beside it")
            one.add_argument("--samples", default="0,16,32,64,128")
            one.add_argument("--jobs", type=int, default=0, help="processes; 0: one a core")
            one.add_argument("--numbers", type=Path, help="keep figures as they come; a later run takes them from here")
    return parser


def _report(read: DeviceTables, asked: argparse.Namespace) -> dict[str, Any]:
    folder, counts = plots_beside(asked.out), counts_of("--samples", asked.samples)
    known_families(read, asked.family)
    with status_messages(quiet=False, verbose=False) as tell, keep_partial_results(asked.numbers) as (kept, keep):
        document = survey(
            read,
            families=asked.family,
            counts=counts,
            seeds=asked.seeds,
            processes=asked.jobs or os.cpu_count() or 1,
            tell=tell,
            kept=kept,
            keep=keep,
        )
    plots = {}
    for name, facts in document["families"].items():
        for split, reports in facts["splits"].items():
            picture = folder / f"{name}-{split}.png"
            draw(reports, f"{name}, {split}", picture)
            plots[name, split] = picture.relative_to(asked.out.parent).as_posix()
    families = "".join(f" --family {name}" for name in asked.family)
    options = f"--db URL{families} --seeds {asked.seeds} --samples {asked.samples}"
    asked.out.write_text(
        study_page(document, f"python -m tests.bench.transfer_study report {options}", plots), encoding="utf-8"
    )
    return document


def _ablate(read: DeviceTables, asked: argparse.Namespace) -> dict[str, Any]:
    return {"families": [ablate(read, name, seeds=asked.seeds) for name in shared_families(read, asked.family)]}


def _permute(read: DeviceTables, asked: argparse.Namespace) -> dict[str, Any]:
    return {"families": [permute(read, name, seeds=asked.seeds) for name in shared_families(read, asked.family)]}


def _speed(read: DeviceTables, asked: argparse.Namespace) -> dict[str, Any]:
    device, counts = known_device(asked.target).id, counts_of("--rows", asked.rows, least=1)
    known_families(read, asked.family)
    both = [name for name in shared_families(read) if any(table.device.id == device for table in read.of(name))]
    names = asked.family or both
    if not names or set(names) - set(both):
        raise UsageError(
            f"the speed of a transfer to {device} needs records of it and of another device; the store has both for "
            f"{', '.join(both) or 'no family'}; import more with: haotuner records import FILE --db URL"
        )
    return {"target": device, "families": [time_scoring(read, device, name, counts) for name in names]}


if __name__ == "__main__":
    sys.exit(main())
