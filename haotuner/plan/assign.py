"""Choice of few micro-kernels to keep where each shape uses one of them: a p-median integer program.

Minimise sum_s share_s (us_ks / best_s)^2 + PENALTY |kept| + PRICE sum_f size_f. Every shape s is assigned to a kept
micro-kernel k (after Hakimi, 1964); f are the forms of the weight that the kept ones read beside the plain one. Solved
exactly by HiGHS (scipy.optimize.milp).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from haotuner.plan.cover import MAX_KEPT, PENALTY, POWER
from haotuner.spec.family import Form

LIMIT_S = 4.0
PRICE = 0.005  # of the objective for memory as of the plain weight, half of it in time: a form of 4 times gains 1 % or goes
TOO_SLOW = 4.0  # times the best: no shape is ever assigned so, which keeps the program small


def assign_within(
    groups: Sequence[Hashable],
    us: NDArray[np.float64],
    shares: NDArray[np.float64],
    most: int = MAX_KEPT,
    forms: Sequence[Form | None] = (),
) -> list[int]:
    """As ``assign``, of one group alone: that whose kernels together lose least.

    ``groups``: of each kernel. ValueError if some shape has no kernel of any one group.
    """
    rows: dict[Hashable, list[int]] = {}
    for kernel, group in enumerate(groups):
        rows.setdefault(group, []).append(kernel)
    among = min(rows.values(), key=lambda of: float(shares @ (us[of].min(axis=0) / us.min(axis=0)) ** POWER))
    return [among[at] for at in assign(us[among], shares, most, [forms[at] for at in among] if forms else ())]


def assign(
    us: NDArray[np.float64], shares: NDArray[np.float64], most: int = MAX_KEPT, forms: Sequence[Form | None] = ()
) -> list[int]:
    """Indices of the micro-kernels to keep, ascending. ``us``: (kernels, shapes), inf where one cannot serve a shape.

    ``forms``: what each kernel reads beside the plain weight; none is the plain one for all.

    ValueError if some shape has no micro-kernel at all.
    """
    best = us.min(axis=0)
    if not np.isfinite(best).all():
        raise ValueError(f"{int((~np.isfinite(best)).sum())} of {us.shape[1]} shapes have no time of any micro-kernel")
    cost = shares * (us / best) ** POWER
    kernels, shapes = us.shape
    at, of = np.nonzero((us <= best * TOO_SLOW).T)  # pairs (shape, kernel)
    pairs = len(at)
    once = [(shape, pair, 1.0) for pair, shape in enumerate(at.tolist())]  # one kernel a shape
    selected = [(shapes + pair, pair, 1.0) for pair in range(pairs)]  # which is kept
    selected += [(shapes + pair, pairs + kernel, -1.0) for pair, kernel in enumerate(of.tolist())]
    few = [(shapes + pairs, pairs + kernel, 1.0) for kernel in range(kernels)]
    beside = {form.name: form.size for form in forms if form is not None}
    position = {name: pairs + kernels + at for at, name in enumerate(beside)}
    reads = [(kernel, form.name) for kernel, form in enumerate(forms) if form is not None]
    first = shapes + pairs + 1
    stored = [(first + at, pairs + kernel, 1.0) for at, (kernel, _) in enumerate(reads)]  # with a form that is held
    stored += [(first + at, position[name], -1.0) for at, (_, name) in enumerate(reads)]
    rows, columns, values = (list(part) for part in zip(*once, *selected, *few, *stored, strict=True))
    size = (first + len(reads), pairs + kernels + len(beside))
    matrix = coo_matrix((values, (rows, columns)), shape=size).tocsr()
    low = np.concatenate([np.ones(shapes), np.full(pairs, -np.inf), [1.0], np.full(len(reads), -np.inf)])
    high = np.concatenate([np.ones(shapes), np.zeros(pairs), [float(most)], np.zeros(len(reads))])
    answer = milp(
        np.concatenate([cost[of, at], np.full(kernels, PENALTY), PRICE * np.array(list(beside.values()))]),
        constraints=LinearConstraint(matrix, low, high),
        integrality=np.concatenate([np.zeros(pairs), np.ones(kernels + len(beside))]),
        bounds=Bounds(0, 1),
        options={"time_limit": LIMIT_S, "mip_rel_gap": 1e-4},
    )
    if answer.x is None:  # no time, or too few may be kept for what is near enough: one after the other
        return _greedy(cost, most)
    return np.flatnonzero(answer.x[pairs : pairs + kernels] > 0.5).tolist()


def _greedy(cost: NDArray[np.float64], most: int) -> list[int]:
    """The one that helps most, again and again."""
    selected: list[int] = []
    least = np.full(cost.shape[1], np.inf)
    while len(selected) < most:
        gains = np.minimum(cost, least).sum(axis=1) + PENALTY * (len(selected) + 1)
        result = int(gains.argmin())
        if result in selected or (selected and gains[result] >= least.sum() + PENALTY * len(selected)):
            break
        selected.append(result)
        least = np.minimum(least, cost[result])
    return sorted(selected)
