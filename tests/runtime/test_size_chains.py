"""Arithmetic on sizes in a pack: C computes chain after chain as numpy does, at all sizes of a range."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import haotuner
from haotuner.frontends.onnx.read import graph_of
from haotuner.spec.shape import Span
from tests.runtime.model_packs import model_pack

pytest.importorskip("onnx")
from tests.frontends.size_chains import drawn, model_of  # noqa: E402, after the skip

SIZES = range(1, 49)


def agree(folder: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    chains = [drawn(number, draw, SIZES) for number in range(count)]
    ranges = {"n": Span(first=SIZES[0], last=SIZES[-1])}
    graph = graph_of(model_of(chains, joined=True), None, {}, lambda inputs: ranges)
    path = model_pack(folder / "pack", {"chains": graph}, tuned=False, exact=False)
    expected = np.stack([chain.values for chain in chains])
    with haotuner.load(path, threads=1) as pack:
        served = pack.model("chains")
        for column, size in enumerate(SIZES):
            output = served.run({"x": np.zeros(size, np.float32)})["y"]
            np.testing.assert_allclose(output, np.broadcast_to(expected[:, column : column + 1], (count, size)), rtol=1e-6)


def test_chains_of_sizes_in_c(tmp_path):
    agree(tmp_path, 8, 7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_chains_of_sizes_in_c(tmp_path, seed):
    agree(tmp_path, 100, seed)
