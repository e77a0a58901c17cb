"""Expected times of whole models: from Python and C, between and beyond the sizes of the pack's table, and refusals."""

from __future__ import annotations

import itertools
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackInvalid, UsageError
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.spec.expected_times import ExpectedTable, grid_sizes, nodes_of
from haotuner.spec.shape import Span
from haotuner.verify.pack_check import verify
from tests.runtime.chain_graphs import chosen
from tests.runtime.model_packs import model_pack
from tests.runtime.native_builds import HERE, LIBRARY, cc, run

SIZES = ((1, 2, 8), (1, 4, 16, 64))
LOW, HIGH = 0.9, 1.2
B, T = dimension("batch"), dimension("seq")


def cost(batch: float, seq: float) -> float:
    return 5 + 2 * batch + 3 * batch * seq


def table(threads: int, factor: float = 1.0) -> dict[str, Any]:
    us = tuple(factor * cost(*node) for node in itertools.product(*SIZES))
    return ExpectedTable(threads, SIZES, us, LOW, HIGH).document


def net() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (B, T, 8))
    product = g.add("contract", x, g.constant(np.ones((8, 8), np.float32)), labels="btk,kn->btn")
    return g.finish(g.map("max", product, 0.0))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graphs = {"net": net(), "silent": net(), "chosen": chosen()}
    return model_pack(tmp_path_factory.mktemp("times") / "pack", graphs, times={"net": [table(1), table(4, 0.5)]})


def test_times_are_linear_between_sizes_and_grow_in_proportion_beyond(path: Path) -> None:
    with haotuner.load(path, threads=1) as pack:
        model = pack.model("net")
        for batch, seq in ((1, 1), (8, 64), (2, 16), (3, 5), (7, 63), (1, 30), (5, 4)):
            times = model.expected_us(batch=batch, seq=seq)
            assert times.expected == pytest.approx(cost(batch, seq), rel=1e-3)
            assert (times.low, times.high) == pytest.approx((LOW * times.expected, HIGH * times.expected))
        last = model.expected_us(batch=8, seq=64)
        beyond = model.expected_us(seq=256, batch=16)
        assert beyond.expected == pytest.approx(8 * last.expected)
        assert beyond.high > 8 * last.high, "what lies beyond is known less well"
        assert model.expected_us(batch=0, seq=1).expected == model.expected_us(batch=1, seq=1).expected


def test_the_table_of_the_nearest_thread_count_serves(path: Path) -> None:
    with haotuner.load(path, threads=3) as pack:
        assert pack.model("net").expected_us(batch=2, seq=4).expected == pytest.approx(0.5 * cost(2, 4), rel=1e-3)


def test_other_dimensions_impossible_sizes_and_packs_without_times_are_refused(path: Path) -> None:
    with haotuner.load(path, threads=1) as pack:
        model = pack.model("net")
        with pytest.raises(UsageError, match="has the dimensions batch, seq; got batch, rows"):
            model.expected_us(batch=1, rows=2)
        for size in (-1, 1 << 41, 1 << 70):
            with pytest.raises(UsageError, match="no size|whole numbers"):
                model.expected_us(batch=1, seq=size)
        with pytest.raises(UsageError, match="whole numbers"):
            model.expected_us(batch=1, seq="x")
        with pytest.raises(UsageError, match="says no expected times"):
            pack.model("silent").expected_us(batch=1, seq=2)
        with pytest.raises(UsageError, match="depend on data"):
            pack.model("chosen").expected_us(batch=1)


def test_the_document_and_the_bytecode_say_the_same_times(path: Path) -> None:
    assert [line for line in verify(path) if "net" in line] == []


def test_a_damaged_table_opens_no_model(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"sizes": [[1, 1, 8], [1, 4, 16, 64]]}, "do not ascend"),
        ({"us": [-1.0] * 12}, "is no time"),
        ({"low": 2.0}, "is no time"),
        ({"sizes": [[1, 2, 8], [1, 4]]}, "follows its end"),
        ({"us": [1.0] * 5}, "cut|ends too early"),
    ]
    graphs = {f"net{index}": net() for index in range(len(wrong))}
    documents = {f"net{index}": [table(1) | change] for index, (change, _) in enumerate(wrong)}
    pack = haotuner.load(model_pack(tmp_path / "pack", graphs, times=documents), threads=1)
    for index, (_, words) in enumerate(wrong):
        with pytest.raises(PackInvalid, match=words):
            pack.model(f"net{index}")


def test_asking_takes_less_than_a_microsecond(path: Path) -> None:
    with haotuner.load(path, threads=1) as pack:
        expected_us = pack.model("net").expected_us
        expected_us(batch=3, seq=17)
        least = float("inf")
        for _ in range(200):
            begin = time.perf_counter()
            for _ in range(100):
                expected_us(batch=3, seq=17)
            least = min(least, (time.perf_counter() - begin) / 100)
    assert least < 1e-6


def test_a_grid_has_both_ends_and_few_nodes() -> None:
    spans = [
        Span(first=1, last=8),
        Span(first=32, last=960, step=32),
        Span(first=5, last=5),
        Span(first=1, last=90, listed=(1, 7, 90)),
    ]
    sizes = grid_sizes(spans)
    assert [(row[0], row[-1]) for row in sizes] == [(1, 8), (32, 960), (5, 5), (1, 90)]
    assert all(size in span for span, row in zip(spans, sizes, strict=True) for size in row)
    assert 8 <= len(nodes_of(("a", "b", "c", "d"), sizes)) <= 64
    assert len(grid_sizes([Span(first=1, last=1 << 20)])[0]) == 12
    assert sum(len(row) > 1 for row in grid_sizes([Span(first=1, last=9)] * 8)) == 6


def test_c_tells_what_python_does_in_less_than_a_microsecond(path: Path, tmp_path: Path) -> None:
    program = cc([HERE / "drive_times.c", *LIBRARY], tmp_path / "drive", "-O1")
    with haotuner.load(path, threads=1) as pack:
        expected = pack.model("net").expected_us(batch=3, seq=17)
    *times, nanoseconds, without_model, closed = run([program, path, "net", "3", "17"], 40).stdout.split()
    assert [float(us) for us in times] == pytest.approx(list(expected), abs=1e-3)
    assert int(nanoseconds) < 1000 and (without_model, closed) == ("-2", "-5"), "HT_BAD_VALUE and HT_CLOSED"
    silent = subprocess.run([program, path, "silent", "1", "1"], capture_output=True, text=True, check=False)
    assert silent.returncode == 1 and "says no expected times" in silent.stdout
