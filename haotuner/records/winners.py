"""Winners as a source of the shared model: a known winner beside other configurations of its space, none of them timed.

A winner says that on its device nothing of the space is faster. So its table is the roofline's order with one change: the
winner's label is raised above the highest of its rivals. Such tables teach and are never judged by.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from haotuner.cost.features import frame
from haotuner.errors import UnknownDevice
from haotuner.microkernels.imported.xgemm import xgemm
from haotuner.records.clblast import Configs, Winner, Winners, kernel_of, xgemm_space
from haotuner.records.codec import trial_of
from haotuner.spec.demand import demand_query
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.shared_model import runs_on_gpus

FAMILY = "clblast_xgemm"
RIVALS = 150  # drawn of the space beside each winner
LEAD = 0.3  # log units of a winner over the highest expectation of its rivals
_SIZE = 1024  # of the problem that CLBlast tunes for, m = n = k
_OP = Op(kind="dense", static=(("n", _SIZE), ("k", _SIZE)))


@dataclass(slots=True)
class WinnerTables:
    """Tables of winners, and why others have none: reason to number of winners."""

    tables: list[DeviceTable] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def winner_tables(winners: Winners, seed: int = 0) -> WinnerTables:
    """A table of one task for each winner whose device is known well enough."""
    result = WinnerTables(left_out=Counter(winners.left_out))
    space = xgemm_space()
    for at, winner in enumerate(winners.winners):
        try:
            device = winner.device.device()
        except UnknownDevice:
            result.left_out["winners of devices of which too little is known"] += 1
            continue
        if not runs_on_gpus(device):
            result.left_out["winners of CPUs, for which these kernels are not ours"] += 1
            continue
        rng = np.random.default_rng([seed, at])
        rivals = space[rng.choice(len(space), RIVALS, replace=False)]
        result.tables.append(_table(winner, rivals))
    return result


def _table(winner: Winner, rivals: Configs) -> DeviceTable:
    device = winner.device.device()
    others = [Winner(device=winner.device, values=tuple(values)) for values in rivals.tolist()]
    kernels = list({kernel.name: kernel for kernel in map(kernel_of, [winner, *others])}.values())  # the winner first
    shape = Shape.of(m=_SIZE)
    features = frame(device, xgemm(demand_query(device, _OP, [(kernel, shape) for kernel in kernels],
                                                element_bytes=4, cold=False)))  # fmt: skip
    labels = np.asarray(features["expected_log"], np.float64).copy()
    labels[0] = labels.max() + LEAD
    return DeviceTable(
        device=device,
        family=FAMILY,
        frame=features,
        labels=labels,
        trials=tuple(trial_of(_OP.name, kernel.name, shape, weights="hot") for kernel in kernels),
        tasks=np.zeros(len(kernels), np.int64),
        task_names=(_OP.name,),
        timed=False,
    )
