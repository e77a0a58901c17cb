"""What requests may take: a bound for each, and working memory that shrinks again after a large one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import haotuner
from haotuner.errors import UsageError
from tests.runtime.chain_graphs import chosen
from tests.runtime.model_packs import model_pack
from tests.runtime.test_models import GRAPHS, given

HUGE = 2 << 20
CALLS = 2 * 64 + 1  # windows of model/run.c: one that saw the large request, one that did not


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_pack(tmp_path_factory.mktemp("bounds") / "pack", {"encoder": GRAPHS["encoder"], "chosen": chosen()})


def test_working_memory_of_a_large_request_is_given_back(path: Path) -> None:
    with haotuner.load(path, threads=1) as pack:
        model, small = pack.model("encoder"), given(GRAPHS["encoder"], batch=1, seq=4)
        model.run(given(GRAPHS["encoder"], batch=8, seq=4000))
        assert model.stats()["arena_bytes"] == model.memory_bytes(batch=8, seq=4000) > 4 * HUGE
        expected = model.run(small)
        for _ in range(CALLS):
            answers = model.run(small)
        assert model.stats()["arena_bytes"] <= HUGE
        assert all(np.array_equal(answers[name], array) for name, array in expected.items())
        assert not model.bound._answers._free, "nor are its answers kept"


def test_steady_traffic_keeps_its_memory(path: Path) -> None:
    with haotuner.load(path, threads=1) as pack:
        model = pack.model("encoder")
        requests = [given(GRAPHS["encoder"], batch=8, seq=seq) for seq in (1000, 4000)]
        for turn in range(70):  # a window, and a little
            model.run(requests[turn % 32 == 0])
        assert model.stats()["plans"] == 2 and model.stats()["arena_bytes"] == model.memory_bytes(batch=8, seq=4000)


def test_memory_of_a_chain_is_given_back(path: Path) -> None:
    with haotuner.load(path, threads=1) as pack:
        model = pack.model("chosen")
        model.run({"x": np.ones((400_000, 8), np.float32)})
        arena_bytes = model.stats()["arena_bytes"]
        for _ in range(CALLS):
            model.run({"x": np.ones((3, 8), np.float32)})
        assert arena_bytes > 4 * HUGE and model.stats()["arena_bytes"] < arena_bytes / 8


def test_a_request_of_more_bytes_is_refused_before_anything_is_allocated(path: Path) -> None:
    with haotuner.load(path, threads=1) as pack:
        model, small, large = pack.model("encoder"), *(given(GRAPHS["encoder"], batch=2, seq=seq) for seq in (50, 5000))
        most = model.memory_bytes(batch=2, seq=50) + sum(output.nbytes for output in model.run(small).values())
    with haotuner.load(path, threads=1, max_request_bytes=most) as pack:
        model = pack.model("encoder")
        with pytest.raises(UsageError, match=rf"takes [\d]+ bytes of working memory and outputs, at most {most} a request"):
            model.run(large)
        assert model.stats()["arena_bytes"] == 0 and model.stats()["plans"] == 0
        model.run(small)
        with pytest.raises(UsageError, match="send a smaller one"):
            model.run(large)
    with (
        haotuner.load(path, threads=1, max_request_bytes=most - 1) as pack,
        pytest.raises(UsageError, match="send a smaller"),
    ):
        pack.model("encoder").run(small)


def test_a_request_whose_sizes_the_data_tell_is_refused_as_well(path: Path) -> None:
    few, many = (np.ones((count, 8), np.float32) for count in (3, 30_000))
    with haotuner.load(path, threads=1, max_request_bytes=1 << 20) as pack:
        chain = pack.model("chosen")
        assert chain.run({"x": few})
        with pytest.raises(UsageError, match="send a smaller one"):
            chain.run({"x": many})
        assert chain.run({"x": few})


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "1 MB", 1 << 63])
def test_what_is_no_number_of_bytes_is_refused(path: Path, most: object) -> None:
    with pytest.raises(UsageError, match="max_request_bytes"):
        haotuner.load(path, max_request_bytes=most)  # type: ignore[arg-type]
