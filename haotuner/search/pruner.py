"""Pruner of the candidates of ``grid_search.py``: by what is expected, before anything is timed, and by times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from haotuner.spec.composition import Composition
from haotuner.spec.shape import Shape

ALWAYS = 4  # candidates that stay in any case
HOPELESS = 10.0  # times the best expectation: a candidate so far off is not timed there, nor built if it is so everywhere
LOST = 3.0  # times the best time, at every shape so far and at two of them at least: a candidate is not timed any more

Us: TypeAlias = dict[Composition, dict[Shape, float]]


def worth_timing(expected: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mask of the kernels of a family that are worth timing at which shapes, by what is expected of them."""
    hope = np.asarray(expected <= HOPELESS * expected.min(axis=0), np.bool_)
    hope[np.argsort(np.log(expected).mean(axis=1), kind="stable")[:ALWAYS]] = True
    return hope


def eliminated(composition: Composition, among: Iterable[Composition], us: Us) -> bool:
    """True if a candidate was far behind the best wherever it was timed."""
    own = us.get(composition, {})
    if len(own) < 2:
        return False
    best = {shape: min(us[other].get(shape, np.inf) for other in among if other in us) for shape in own}
    return all(taken > LOST * best[shape] for shape, taken in own.items())
