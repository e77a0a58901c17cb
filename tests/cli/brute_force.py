"""Many kernels that selection keeps, timed at some rows on this host's device; and compositions, timed the same way.

A process of its own, whose driver is the stand-in: ``python -m tests.cli.brute_force OP RANGE STORE CACHE`` reads a JSON
object on stdin, from numbers of rows to compositions to time ({}: then the best there is among the kernels), and prints
microseconds by rows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from haotuner.backends.backend import CACHE_WORD, DEVICE_WORD
from haotuner.backends.fingerprint import Policy
from haotuner.backends.index import backend_for
from haotuner.cost.expected import over_traffic
from haotuner.errors import NothingLegal
from haotuner.hw_profiles.find import find_device
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.plan.grids import Grid, alone
from haotuner.records import open_store
from haotuner.search.select.funnel import select
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.record import Timed, Trial
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic

DEVICE = "cuda:0"
ROWS = (1, 3, 9, 16, 40, 64, 100, 190, 256)
MOST = 48  # kernels, evenly in the order of selection: each is compiled, for a second or two
PARTS = (1, 2, 4)
QUICK = Policy(sample_us=20, limit_us=60, least=1, most=1)  # the clock is virtual: one sample says all


def grids(op: Op, device: Device, traffic: Traffic) -> Iterator[Grid]:
    """What selection keeps, of every family."""
    for family in backend_for(device).searched(op, device):
        with suppress(NothingLegal):
            for candidate in select(op, family, device, traffic, over_traffic(op, family, device, traffic)).candidates:
                yield Grid.of(candidate.kernel, family, op, device)


def main(spec: str, shapes: str, store: str, cache: str, compositions: Mapping[str, str]) -> dict[int, float]:
    """Microseconds by rows: of the compositions asked for, or of the best there is."""
    device, op = find_device(DEVICE), Op.parse(spec)
    candidates = {int(m): [Composition.parse(text)] for m, text in compositions.items()}
    if not candidates:
        every = list(grids(op, device, Traffic.of_range(ShapeRange.parse(shapes))))
        every = every[:: -(-len(every) // MOST)]
        candidates = {m: [composition for grid in every for composition in alone(grid, m, PARTS)] for m in ROWS}
    environment = {**os.environ, DEVICE_WORD: DEVICE, CACHE_WORD: str(Path(cache) / "device-code")}
    with closing(open_store(store)) as records:
        lab = DeviceMeasurer(device, records, environment=environment, policy=QUICK, what="brute force")
        with closing(lab):
            lab.start()
            trials = [Trial.of(op, composition, Shape.of(m=m)) for m, ones in candidates.items() for composition in ones]
            best: dict[int, float] = {}
            for record in lab.measure(trials):
                if isinstance(record.outcome, Timed):
                    m = record.trial.shape["m"]
                    best[m] = min(best.get(m, record.outcome.median_us), record.outcome.median_us)
    return best


if __name__ == "__main__":
    op, shapes, store, cache = sys.argv[1:]
    json.dump(main(op, shapes, store, cache, json.load(sys.stdin)), sys.stdout)
