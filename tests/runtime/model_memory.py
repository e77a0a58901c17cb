"""Whole models of a CPU pack that get less memory than they ask for: run in a process that ``memory_refused`` prepared."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import numpy as np

import haotuner
from haotuner.errors import HaotunerError
from haotuner.graph.interpret import interpret
from tests.runtime.memory_refused import Memory
from tests.runtime.test_models import GRAPHS, given
from tests.runtime.test_models_segments import GRAPHS as CHAINS
from tests.runtime.test_models_segments import given as given_to_chain

NAME, CHAIN = "encoder", "grown"


def starved(path: str) -> None:
    """Every piece of memory is refused once while a model is opened, and while it serves a first and a larger request."""
    memory, graph, stats = Memory(path), GRAPHS[NAME], list[Any]()
    pack = haotuner.load(path, threads=2)

    def open_model() -> None:
        with contextlib.closing(haotuner.load(path, threads=2)) as fresh_pack:
            stats.append(fresh_pack.model(NAME).stats())

    opened = memory.each_refused(open_model, HaotunerError, "no memory|weights cannot be mapped")
    assert opened >= 15 and stats[0]["packed_bytes"] > 0, opened
    gc.collect()
    assert memory.held == 0, f"{memory.held} pieces are left of a model that was closed"
    model = pack.model(NAME)
    requests = [given(graph, batch=batch, seq=seq) for batch, seq in ((1, 3), (2, 40), (2, 4), (4, 90))]
    expected = [interpret(graph, inputs) for inputs in requests]

    def serve() -> None:
        model.bound._known.clear()
        try:
            for inputs, reference in zip(requests, expected, strict=True):
                outputs = model.run(inputs)
                for name, array in reference.items():
                    np.testing.assert_allclose(outputs[name], array, rtol=2e-4, atol=2e-4)
        finally:
            model.trim()

    served = memory.each_refused(serve, HaotunerError, "no memory for|working memory, which cannot be had")
    assert served >= 8, served
    serve()
    assert model.stats()["contexts"] == 0


def chained(path: str) -> None:
    """The same of a model cut where a size follows from data: memory of its segments and of what lies between them."""
    memory, stats, graph = Memory(path), list[Any](), CHAINS[CHAIN]
    memory.refuse(0)
    pack = haotuner.load(path, threads=1)

    def open_model() -> None:
        with contextlib.closing(haotuner.load(path, threads=1)) as fresh_pack:
            stats.append(fresh_pack.model(CHAIN).stats())

    assert memory.each_refused(open_model, HaotunerError, "no memory|weights cannot be mapped") >= 20
    model: Any = pack.model(CHAIN)
    requests = [given_to_chain(CHAIN, rows) for rows in (2, 40)]
    expected = [interpret(graph, inputs, seed=4) for inputs in requests]

    def serve() -> None:
        for segment in model.segments.values():
            segment._known.clear()
        try:
            for inputs, reference in zip(requests, expected, strict=True):
                outputs = model.run(inputs, seed=4)
                for output, array in reference.items():
                    np.testing.assert_allclose(outputs[output], array, rtol=3e-4, atol=3e-4)
        finally:
            model.trim()

    assert memory.each_refused(serve, HaotunerError, "no memory|working memory, which cannot be had") >= 6
    serve()
