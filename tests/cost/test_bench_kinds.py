"""Models of kinds: what a store's records teach, and which family predictions choose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from haotuner.records import open_store
from haotuner.spec.record import Failed, Timed
from tests.bench.kind_families import loss
from tests.bench.kind_models import records_of
from tests.transfer.transfer_examples import KERNELS, WIDE, records


def test_of_repeated_trials_the_least_sample_teaches(tmp_path: Path) -> None:
    first, other = records(WIDE, kernels=KERNELS[:2])[:2]
    again = [
        replace(first, trial=replace(first.trial, repeat=repeat), outcome=Timed(samples_us=samples), session=f"s{repeat}")
        for repeat, samples in enumerate(((9.0, 5.0, 4000.0), (7.0, 4.0, 8.0), (6.0, 6.0, 6.0)))
    ]
    failed = replace(other, outcome=Failed(stage="run", reason="error", detail=""))
    url = f"sqlite:///{tmp_path}/kinds.db"
    open_store(url).append([*again, failed])
    (only,) = records_of([url])
    assert only.trial == first.trial and isinstance(only.outcome, Timed) and only.outcome.median_us == 4.0


@pytest.mark.parametrize(
    ("margin", "expected", "other_chosen"), [(1.0, 1.25, 0.5), (1.3, 1.25**0.5, 0.0), (np.inf, 1.25**0.5, 0.0)]
)
def test_another_family_is_taken_where_it_is_expected_to_be_so_many_times_faster(margin, expected, other_chosen) -> None:
    """Of two contests the other family is expected 1.2 times faster in one, where the first one is, and is faster in one."""
    slow, fast = 0.0, float(np.log(1.25))
    contests = [
        [(True, 0.0, fast), (False, float(np.log(1.2)), slow)],
        [(True, 0.0, slow), (False, -0.1, fast)],
    ]
    losses = loss(contests, margin)
    assert losses == pytest.approx((expected - 1, other_chosen, 0.5))
