"""Packs made before schedules were files are served as newer ones, from Python and from C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackInvalid
from haotuner.verify.pack_check import verify
from tests.runtime.chain_graphs import GRAPHS as CHAINS
from tests.runtime.compiled_schedules import compiled_pack
from tests.runtime.model_packs import planned
from tests.runtime.native_builds import HERE, LIBRARY, c_pack, cc, run
from tests.runtime.test_models_c import GRAPH, LANES, counted

CHAIN = "grown"


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same models in a pack made before, and in one of today."""
    folder = tmp_path_factory.mktemp("packs")
    models, chains, ops = planned(GRAPH | {CHAIN: CHAINS[CHAIN]}, LANES, exact=False)
    every = [*models, *chains]
    return compiled_pack(folder / "before", ops, every), c_pack(folder / "today", ops, models=every)


def test_it_answers_what_a_newer_pack_does(packs, tmp_path):
    program = cc([HERE / "drive_models.c", *LIBRARY], tmp_path / "drive", "-O1")
    answers = []
    for path in packs:
        assert verify(path) == []
        with haotuner.load(path, threads=2) as pack:
            feeds = {"x": counted((2, 7, 8), np.float32), "mask": counted((2, 7), np.int64)}
            results = list(pack.model("encoder").run(feeds).values())
            assert pack.model(CHAIN).bound.native is not None
            grown = {end.name: np.full([4 if isinstance(axis, str) else axis for axis in end.shape], 2, end.dtype)
                     for end in pack.model(CHAIN).inputs}  # fmt: skip
            results += pack.model(CHAIN).run(grown, seed=1).values()
        run([program, path, "encoder", "2", tmp_path / "out", "2", "7"], 40)
        answers.append([*(result.tobytes() for result in results), (tmp_path / "out").read_bytes()])
    assert answers[0] == answers[1]
    assert [sorted(file.suffix for file in (path / "models").iterdir() if file.stem == "encoder") for path in packs] == [
        [".json", ".weights"],
        [".bytecode", ".json", ".weights"],
    ]


def test_its_weights_are_compared_unless_the_server_cannot_wait(packs):
    path = packs[0] / "models" / "encoder.weights"
    sound = path.read_bytes()
    path.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    try:
        with haotuner.load(packs[0]) as pack, pytest.raises(PackInvalid, match="has another checksum"):
            pack.model("encoder")
        with haotuner.load(packs[0], check_weights=False) as pack:
            assert pack.model("encoder").dims == ("batch", "seq")
    finally:
        path.write_bytes(sound)


def test_a_model_that_neither_the_library_nor_a_file_has_is_refused(packs):
    for path, name in ((packs[1], "encoder"), (packs[0], "other")):
        with haotuner.load(path) as pack, pytest.raises(PackInvalid, match=f"holds no model '{name}', as its manifest"):
            pack.library().mapped.compiled.find(name)
