"""Models whose operands are empty in some requests: nothing is read of what has no elements."""

from __future__ import annotations

import numpy as np
import pytest

import haotuner
from haotuner.graph.interpret import interpret
from tests.runtime.empty_models import NAME, SIZES, cached, given, guarded
from tests.runtime.model_packs import model_pack
from tests.standin.apart import failure_of


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return model_pack(tmp_path_factory.mktemp("empty") / "pack", {NAME: cached()})


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_is_empty_is_not_read(path, sizes):
    def served() -> None:
        with haotuner.load(path, threads=1) as pack:
            outputs, expected = pack.model(NAME).run(guarded(given(sizes))), interpret(cached(), given(sizes))
            for name, array in expected.items():
                np.testing.assert_array_equal(outputs[name], array, err_msg=name)

    assert not failure_of(served)
