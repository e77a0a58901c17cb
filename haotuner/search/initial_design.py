"""Initial design of a search whose sources of a start disagree: a portfolio of their opinions, a few at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from haotuner.cost.model import CostModel, HasEnsemble

FIRST = 8
TOGETHER = 8  # chosen before any of them is measured: compilers work two at a time, and a round costs a second


def initial_design(
    model: CostModel | None,
    frame: pd.DataFrame,
    tasks: Sequence[NDArray[np.int64]],
    labels: dict[int, float],
    *,
    left_out: NDArray[np.int64],
) -> list[int]:
    """Rows of a frame to measure next; none once enough are measured, or where nobody can disagree.

    Args:
        model: what the search started from.
        frame: a row for every kernel and shape.
        tasks: rows that compete with each other; a row may stand in several.
        labels: log(throughput / roofline) of the measured rows.
        left_out: rows that cannot be measured.
    """
    if not isinstance(model, HasEnsemble) or len(labels) >= FIRST:
        return []
    out = set(left_out.tolist())
    every = [np.array([row for row in rows.tolist() if row not in out], np.int64) for rows in tasks]
    every = [rows for rows in every if len(rows) > 1]
    if not every:
        return []
    rows = np.concatenate(every)
    of = np.repeat(np.arange(len(every)), [len(rows) for rows in every])
    known = np.flatnonzero(np.isin(rows, list(labels)))
    names = model.head(frame.iloc[rows], of, 2 * TOGETHER, known, [labels[row] for row in rows[known].tolist()])
    return [row for row in dict.fromkeys(rows[names].tolist()) if row not in labels][:TOGETHER]
