"""The planned loss of what is served, from the times that a manifest holds as text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from haotuner.bench.compare import _regret
from haotuner.pack.manifest import Manifest

TIMES = {"a__mr4*2@n": 12.0, "a__mr8*1@n": 10.0, "a__mr8*1@serial": 20.0}


def manifest(times: Any) -> Manifest:
    facts = {"plans": {"2": {"measured_us": {"8": times}}}}
    return cast(Manifest, SimpleNamespace(ops=[SimpleNamespace(name="op", facts=facts)]))


@pytest.mark.parametrize(
    ("served", "lost"),
    [("a__mr4*2@n", 0.2), ("a__mr8*1@n", 0.0), ("a__mr8*1@serial", 1.0), ("a__mr8*2@n", None), ("", None)],
)
def test_what_is_served_is_compared_with_the_best_that_was_timed(served: str, lost: float | None) -> None:
    regret = _regret(manifest(TIMES), "op", 8, 2, served)
    assert regret == (None if lost is None else pytest.approx(lost))


@pytest.mark.parametrize("query", [("other", 8, 2), ("op", 9, 2), ("op", 8, 1)])
def test_what_was_not_timed_has_no_loss(query: tuple[str, int, int]) -> None:
    assert _regret(manifest(TIMES), *query, "a__mr8*1@n") is None and _regret(manifest({}), "op", 8, 2, "a__mr8*1@n") is None
