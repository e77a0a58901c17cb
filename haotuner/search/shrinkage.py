"""Shrinkage: measured times drawn towards what a model expects, each as far as its repeats disagree (empirical Bayes).

A log time is the truth plus noise of a known variance, the truth is what the model expects plus an error whose variance all
residuals tell (Efron & Morris, JASA 1975; Robbins 1956). So a time whose samples agree stays, and a single noisy one neither
makes a kernel the best nor throws it out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.spec.record import Timed

BETWEEN = 0.02  # log units by which processes differ though samples of each agree: where code and data lie
MODEL_LEAST = 0.08  # log units that a model is off at least: it was fitted to these very times
LEAST_TIMES = 12  # fewer say too little of how far the model is off
MAD_TO_SD = 1.4826  # of a normal distribution


def variance_of(outcome: Timed) -> float:
    """Of the log of a trial's median: what its samples say of it, and what other processes would."""
    return (MAD_TO_SD * outcome.spread) ** 2 / len(outcome.samples_us) + BETWEEN**2


def combined(us: float, variance: float, other_us: float) -> tuple[float, float]:
    """The mean of a time and of one of another process, and its variance: as much as both disagree, where that is more."""
    apart = float(np.log(other_us / us)) ** 2 / 2
    return (us + other_us) / 2, max(variance, apart) / 2


def shrunk(
    us: NDArray[np.float64], variances: NDArray[np.float64], expected: Sequence[float], *, least: float = MODEL_LEAST
) -> NDArray[np.float64]:
    """Times drawn towards ``expected``, which is put on their level; as they are where there are few. Microseconds.

    ``least``: log units that the model is off at least.
    """
    if len(us) < LEAST_TIMES:
        return us
    off = np.log(us / np.asarray(expected))
    level = float(np.median(off))
    error = (MAD_TO_SD * float(np.median(np.abs(off - level)))) ** 2
    model = max(error - float(np.median(variances)), least**2)
    return np.asarray(us * np.exp(-(off - level) * variances / (variances + model)), np.float64)
