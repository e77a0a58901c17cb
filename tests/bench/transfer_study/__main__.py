"""``python -m tests.bench.transfer_study``: how well transfer works, verb by verb.

    python -m tests.bench.transfer_study evaluate --db URL --target a4000 --samples 0,16,32,64,128 --json
    python -m tests.bench.transfer_study curve --model FILE --records FILE [--op NAME]
    python -m tests.bench.transfer_study report --data FOLDER [--out page.md]
    python -m tests.bench.transfer_study shapes --db URL
    python -m tests.bench.transfer_study solvers --data FOLDER
    python -m tests.bench.transfer_study winners --data FOLDER
    python -m tests.bench.transfer_study study --db URL --out docs/transfer/study.md
    python -m tests.bench.transfer_study ablate --db URL
    python -m tests.bench.transfer_study permute --db URL
    python -m tests.bench.transfer_study speed --db URL --target a4000

``study`` is ``report`` with bars, plots, ablation and permutation test. ``--data FOLDER`` holds Kernel Tuner's cache files
where a verb takes ``--db URL``, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from haotuner.cli.app import run
from tests.bench.transfer_study.evaluate_verb import evaluate
from tests.bench.transfer_study.report_verb import report
from tests.bench.transfer_study.shapes_verb import shapes
from tests.bench.transfer_study.solvers_verb import solvers
from tests.bench.transfer_study.study_verbs import ablate, permute, speed, study
from tests.bench.transfer_study.tuning_curve import curve
from tests.bench.transfer_study.winners_verb import winners


def study_app(_arguments: Sequence[str]) -> typer.Typer:
    """The command with all its verbs."""
    app = typer.Typer(
        name="transfer_study",
        help="How well transfer works.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    for verb in (curve, evaluate, report, shapes, solvers, winners, study, ablate, permute, speed):
        app.command()(verb)
    return app


def main(words: Sequence[str]) -> int:
    """Run one verb; exit codes as of ``haotuner``."""
    return run(words, study_app)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
