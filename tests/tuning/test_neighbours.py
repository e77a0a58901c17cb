"""Neighbours: what one device has measured becomes another one's start, once there is enough of it."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from itertools import islice

import pytest

from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.record import Record, Trial
from haotuner.spec.shape import Shape
from haotuner.transfer.warm_start import Started
from haotuner.tuning.initial_model import Start
from haotuner.tuning.neighbours import Neighbours
from tests.search.fake_lab import CORE, FAMILY, OP, FakeLab

pytestmark = pytest.mark.skipif(find_spec("lightgbm") is None, reason="could not import 'lightgbm'")
OTHER = replace(CORE, id="fake-core-b", clock_mhz=2000)
COLD_START = Start(model=None, words="cold")


def records_of(device: Device, count: int) -> list[Record]:
    """Times of so many kernels at two shapes."""
    kernels = [point for point in islice(FAMILY.points(OP, device), 0, 40 * count, 20)][:count]
    trials = [
        Trial.of(OP, Composition.of(kernel.name), Shape.of(m=FAMILY.tile(kernel).extent["m"] * tiles))
        for kernel in kernels
        for tiles in (1, 4)
    ]
    return FakeLab(device).measure(trials)


def test_a_device_starts_from_what_another_one_measured() -> None:
    neighbours = Neighbours([CORE, OTHER])
    family = FAMILY.name
    for record in records_of(OTHER, 20):
        neighbours.note(record)
    assert neighbours.model(CORE, family, COLD_START) is None and not neighbours.document(CORE), "too few to learn from"
    for record in records_of(OTHER, 60)[40:]:
        neighbours.note(record)
    model = neighbours.model(CORE, family, COLD_START)
    assert isinstance(model, Started)
    assert neighbours.model(CORE, family, COLD_START) is model, "fitted again only once there is much more"
    assert neighbours.document(CORE)[family] == {"rows": 120, "of": [OTHER.id]}
    assert neighbours.model(OTHER, family, COLD_START) is None, "nobody learns from its own records here"


def test_a_model_of_the_device_itself_or_of_the_user_stays() -> None:
    neighbours = Neighbours([CORE, OTHER])
    for record in records_of(OTHER, 60):
        neighbours.note(record)
    own = Start(model=None, words="shipped", document={"of": CORE.id})
    assert neighbours.model(CORE, FAMILY.name, own) is None
    assert neighbours.model(CORE, FAMILY.name, COLD_START, requested="none") is None
