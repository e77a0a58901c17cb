"""WinnersPrior: learned from other devices' winners alone, orders a space so that a new device's winner comes early.

No table says how fast anything is. A forest tells winners from random configurations by program, analysis and what is known
of the device; where few winners are known of a kind of program, nearness to any winner counts as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

from haotuner.hw_profiles.table import Known
from haotuner.records.clblast import Configs, Winner
from tests.bench.transfer_study.winners.features import Values, analysis, facts, plain, program

if TYPE_CHECKING:
    import lightgbm

_RANDOM = 300  # configurations drawn beside each winner
_ROUNDS, _LEAVES, _SEEDS = 150, 7, 2  # a hundred winners bear no more
_NEAR, _WIDTH = 0.5, 1.0  # weight of nearness; distance, in doublings of parameters, at which it has fallen to a third
_FEW = 1e-9


NEAR_ARCHITECTURE, NEAR_VENDOR = 9.0, 3.0  # weight of a winner of the same architecture, of the same vendor; others have 1


def densities(winners: Sequence[Winner], configs: Configs) -> Values:
    """Log of the kernel density of all other known winners at each configuration, ``(winners, configs)``.

    Winners of a device's relatives are counted more; its own is left out.
    """
    known = plain(np.array([winner.values for winner in winners], np.int64))
    near = np.exp(-cdist(known, plain(configs), "cityblock") / _WIDTH)
    devices = [winner.device for winner in winners]
    weights = np.array([[_weight(device, other) for other in devices] for device in devices])
    return np.asarray(np.log(weights @ near + _FEW), np.float64)


def _weight(device: Known, other: Known) -> float:
    if device.id == other.id:
        return 0.0
    if device.arch and device.arch == other.arch:
        return NEAR_ARCHITECTURE
    return NEAR_VENDOR if device.vendor == other.vendor else 1.0


class WinnersPrior:
    """Fitted on winners of other devices."""

    def __init__(self, winners: Sequence[Winner], space: Configs, *, hardware: bool = True, seed: int = 0) -> None:
        self.hardware = hardware
        self.values = np.array([winner.values for winner in winners], np.int64)
        self.forests = [self._fit(winners, space, seed + at) for at in range(_SEEDS)]

    def scores(self, configs: Configs, winner: Winner) -> Values:
        """Of each configuration on the winner's device, higher is earlier; its values are not read."""
        inputs = self._inputs(configs, winner)
        prediction = np.mean([forest.predict(inputs, raw_score=True) for forest in self.forests], axis=0)
        return np.asarray(prediction + _NEAR * self._nearness(configs), np.float64)

    def _fit(self, winners: Sequence[Winner], space: Configs, seed: int) -> lightgbm.Booster:
        import lightgbm  # a second to import

        rng = np.random.default_rng(seed)
        inputs = []
        for winner in winners:
            drawn = space[rng.integers(0, len(space), _RANDOM)]
            inputs.append(self._inputs(np.concatenate([[winner.values], drawn]), winner))
        labels = np.tile(np.r_[1.0, np.zeros(_RANDOM)], len(winners))
        description = {
            "objective": "binary",
            "num_leaves": _LEAVES,
            "learning_rate": 0.05,
            "min_data_in_leaf": 10,
            "min_sum_hessian_in_leaf": 5.0,
            "feature_fraction": 0.4,
            "bagging_fraction": 0.7,
            "bagging_freq": 1,
            "lambda_l2": 20.0,
            "num_threads": 1,  # the same trees whatever the machine
            "deterministic": True,
            "seed": seed,
            "verbose": -1,
        }
        weight = np.where(labels > 0, _RANDOM / 3.0, 1.0)
        return lightgbm.train(description, lightgbm.Dataset(np.concatenate(inputs), labels, weight=weight), _ROUNDS)

    def _inputs(self, configs: Configs, winner: Winner) -> Values:
        parts = [program(configs)]
        if self.hardware:
            parts += [analysis(configs, winner.device)[:, None], np.tile(facts(winner.device), (len(configs), 1))]
        return np.concatenate(parts, axis=1)

    def _nearness(self, configs: Configs) -> Values:
        places, result = plain(configs), np.zeros(len(configs))
        for winner in plain(self.values):
            result += np.exp(-np.abs(places - winner).sum(axis=1) / _WIDTH)
        return np.log(result + _FEW)
