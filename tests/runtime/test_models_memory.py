"""Memory that whole models of a CPU pack cannot have: said in words, nothing is left, and the next request is right."""

from __future__ import annotations

import pytest

from tests.runtime.memory_refused import preloaded
from tests.runtime.model_memory import CHAIN, NAME
from tests.runtime.model_packs import model_pack
from tests.runtime.test_models import GRAPHS
from tests.runtime.test_models_segments import GRAPHS as CHAINS
from tests.standin.forking import Forking


@pytest.mark.long
def test_every_piece_of_memory_may_be_refused(tmp_path):
    path = model_pack(tmp_path / "pack", {NAME: GRAPHS[NAME], CHAIN: CHAINS[CHAIN]})
    apart = Forking(preloaded(tmp_path), ["tests.runtime.model_memory"])
    for scenario in ("starved", "chained"):
        assert not apart.call("tests.runtime.model_memory", scenario, str(path), environment={}, seconds=60)
    apart.close()
