"""Which family do predictions choose where several compute an op? ``python -m tests.bench.kind_families STORE…``.

Reads the records of ``kind_records``. At every op and shape that kernels of two families or more were timed at, the kernel
is taken that is expected to be the fastest: by the analysis of each family, or by models that were fitted to the other ops.
Families beside the first must be expected so many times faster (``search/cost_extrapolation.py``: ``UNTIMED``). A row says
what that loses against the best of all that were timed, geometric mean, and how often another family was taken, and was
best.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence

import numpy as np

from haotuner.backends.index import backend_for
from haotuner.cost.model import Scores
from haotuner.host.cache_folder import cache_folder
from haotuner.hw_profiles.find import find_device
from haotuner.search.cost_extrapolation import UNTIMED
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.reading import read_records
from tests.bench.kind_models import LEAST_OPS, records_of
from tests.bench.ship_models import held_out, ops_of
from tests.bench.transfer_use import markdown

MARGINS = (0.8, 0.9, 1.0, 1.1, 1.25, UNTIMED, np.inf)  # inf: the first family alone
Candidate = tuple[bool, float, float]  # of the first family; logarithms of the share of the roofline expected, and reached


def contests(tables: Sequence[DeviceTable], scores: Mapping[str, Scores]) -> list[list[Candidate]]:
    """Candidates of every op and shape that two families were timed at."""
    candidates: dict[str, dict[str, list[Candidate]]] = {}
    for table in tables:
        for row, trial in enumerate(table.trials):
            op = trial.known_op
            first = backend_for(table.device).searched(op, table.device)[0].name
            candidate = (table.family == first, float(scores[table.family][row]), float(table.labels[row]))
            candidates.setdefault(f"{trial.op.name} {trial.shape}", {}).setdefault(table.family, []).append(candidate)
    several = [families.values() for families in candidates.values() if len(families) > 1]
    return [[candidate for family in each for candidate in family] for each in several]


def loss(candidates: Sequence[Sequence[Candidate]], margin: float) -> tuple[float, ...]:
    """Time lost, share of the contests in which another family was taken, and in which one was best."""
    chosen = [
        max(each, key=lambda candidate: candidate[1] - (0.0 if candidate[0] else np.log(margin))) for each in candidates
    ]
    best = [max(each, key=lambda candidate: candidate[2]) for each in candidates]
    lost = np.mean([right[2] - candidate[2] for candidate, right in zip(chosen, best, strict=True)])
    return (
        float(np.exp(lost) - 1),
        float(np.mean([not candidate[0] for candidate in chosen])),
        float(np.mean([not candidate[0] for candidate in best])),
    )


def rows(tables: Sequence[DeviceTable]) -> list[list[str]]:
    """A row for each way to predict and margin."""
    analytic = {table.family: np.asarray(table.frame["expected_log"], np.float64) for table in tables}
    enough = [table for table in tables if len(set(ops_of(table))) >= LEAST_OPS]
    models = analytic | {table.family: held_out(table, ops_of(table)) for table in enough}
    lines = [["expected by", "margin", "contests", "lost", "another taken", "another best"]]
    for name, scores in (("analysis", analytic), ("models, op held out", models)):
        every = contests(tables, scores)
        for margin in MARGINS if every else ():
            lost, other_chosen, best = loss(every, margin)
            lines.append([name, f"{margin:.2f}", str(len(every)), f"{lost:.1%}", f"{other_chosen:.0%}", f"{best:.0%}"])
    return lines


def main() -> None:
    """Print a table."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("stores", nargs="+")
    args = words.parse_args()
    records = records_of(args.stores)
    read = read_records(records, lambda name: find_device(name, cache_dir=cache_folder(os.environ)))
    print("\n".join(markdown(rows(read.tables))))


if __name__ == "__main__":
    main()
