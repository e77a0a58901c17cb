"""Where the known winner comes in the order of the space, every vendor left out in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.records.clblast import Configs, Winner, Winners, xgemm_space
from tests.bench.transfer_study.winners.features import Values
from tests.bench.transfer_study.winners.prior import WinnersPrior, densities

SAMPLE = 12_000  # of the space, in which ranks are counted: a share of 2 % is known within 0.13 %
EARLY = 0.02  # the bar: the median winner within the first part of the space
PRIOR, BLIND, FREQUENCY = "prior", "prior, without hardware", "how often it wins elsewhere"


def evaluate_winners(
    table: Winners, *, seed: int = 0, sample: int = SAMPLE, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Ranks as shares of the space, 0 the first, as one JSON document.

    Raises:
        UsageError: winners of fewer than two vendors.
    """
    vendors = table.vendors()
    if len(vendors) < 2:
        raise UsageError(f"winners of two vendors are needed, found {', '.join(vendors) or 'none'}")
    every = xgemm_space()
    space = every[np.random.default_rng([seed, 1]).permutation(len(every))[:sample]]
    ranks: dict[str, dict[str, float]] = {name: {} for name in (PRIOR, BLIND, FREQUENCY)}
    for vendor in vendors:
        known = [winner for winner in table.winners if winner.device.vendor != vendor]
        requested = [winner for winner in table.winners if winner.device.vendor == vendor]
        for name, hardware in ((PRIOR, True), (BLIND, False)):
            model = WinnersPrior(known, space, hardware=hardware, seed=seed)
            for winner in requested:
                ranks[name][winner.device.id] = _rank(model.scores(_with(space, winner), winner))
        wins = Counter(winner.values for winner in known)
        for winner in requested:
            ranks[FREQUENCY][winner.device.id] = _rank_by_wins(wins, winner, len(every))
        tell(
            f"winners of {vendor or 'unknown vendors'}: median {_median([ranks[PRIOR][w.device.id] for w in requested]):.4f}"
        )
    own = np.array([winner.values for winner in table.winners], np.int64)
    scores = densities(table.winners, np.concatenate([space, own]))
    alone = [_rank(np.append(row[: len(space)], row[len(space) + at])) for at, row in enumerate(scores)]
    of = {winner.device.id: winner.device.vendor for winner in table.winners}
    return {
        "space": len(every),
        "sample": len(space),
        "winners": len(table.winners),
        "early": EARLY,
        "device_out": {
            "median": _median(alone),
            "within": float(np.mean([rank <= EARLY for rank in alone])),
        },
        "median": {name: _median(list(rank.values())) for name, rank in ranks.items()},
        "within": {name: float(np.mean([rank <= EARLY for rank in rank.values()])) for name, rank in ranks.items()},
        "vendors": {
            vendor: {
                "winners": sum(item == vendor for item in of.values()),
                **{name: _median([rank for at, rank in rank.items() if of[at] == vendor]) for name, rank in ranks.items()},
            }
            for vendor in vendors
        },
        "devices": {name: {"vendor": of[name], **{key: rank[name] for key, rank in ranks.items()}} for name in of},
    }


def _with(space: Configs, winner: Winner) -> Configs:
    return np.concatenate([space, [winner.values]])


def _rank(scores: Values) -> float:
    """Share of the space before the last entry, half of those that tie with it."""
    others, own = scores[:-1], scores[-1]
    return float(((others > own).sum() + 0.5 * (others == own).sum()) / len(others))


def _rank_by_wins(wins: Counter[tuple[int, ...]], winner: Winner, space: int) -> float:
    """The same in the order of how often a configuration won; all that never did tie."""
    own = wins.get(winner.values, 0)
    before = sum(count > own for count in wins.values())
    ties = sum(count == own for count in wins.values()) - 1 if own else space - len(wins) - 1
    return (before + 0.5 * ties) / (space - 1)


def _median(ranks: list[float]) -> float:
    return float(np.median(ranks)) if ranks else float("nan")
