"""The policies by name: what ``haotuner tune --search NAME`` knows."""

from __future__ import annotations

from haotuner.search.policies.beam import Beam
from haotuner.search.policies.evolution import Evolution
from haotuner.search.policies.names import NAMES
from haotuner.search.policies.policy import Maker, Random
from haotuner.search.policies.template import Annealing

_MAKERS: tuple[Maker, ...] = (Evolution, Beam, Annealing, Random)
POLICIES: dict[str, Maker] = dict(zip(NAMES, _MAKERS, strict=True))
