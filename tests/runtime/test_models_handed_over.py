"""Whole models that callers hold answer on while packs are handed over; what cannot be handed over is refused before."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackClosed, UsageError
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from tests.runtime.chain_graphs import chosen
from tests.runtime.conftest import rows
from tests.runtime.model_packs import model_pack
from tests.runtime.test_life import in_threads

B, SIZES = dimension("batch"), (1, 3, 17)


def net(width: int, columns: int = 8, extra: int = 0) -> Graph:
    """A product of ``width`` terms; ``extra`` other inputs."""
    g = GraphBuilder()
    x = g.input("x", (B, width))
    output = g.add("contract", x, g.constant(np.ones((width, columns), np.float32)), labels="bk,kn->bn")
    for index in range(extra):
        output = g.map("add", output, g.input(f"y{index}", (B, columns)))
    return g.finish(g.map("max", output, 0.0))


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two packs of the models ``net`` and ``chosen``, by other plans; of the rest the second has others or none."""
    folder, same = tmp_path_factory.mktemp("handed"), {"net": net(16), "chosen": chosen()}
    return (
        model_pack(folder / "one", same | {"wide": net(16), "more": net(16), "gone": net(16)}),
        model_pack(folder / "other", same | {"wide": net(24), "more": net(16, extra=1)}, tuned=False),
    )


def near(answers: Any, expected: Any) -> bool:
    return all(np.allclose(answer, expected[name], rtol=3e-4, atol=3e-4) for name, answer in answers.items())


@pytest.mark.parametrize("swaps", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_models_that_threads_hold_answer_while_packs_are_swapped(packs: tuple[Path, Path], swaps: int) -> None:
    pack = haotuner.load(packs[0], threads=1)
    model, chain, session = pack.model("net"), pack.model("chosen"), pack.session("net")
    inputs = {size: {"x": rows(size, 16)} for size in SIZES}
    data = {size: {"x": rows(size, 8)} for size in SIZES}
    expected = {size: (model.run(inputs[size]), chain.run(data[size])) for size in SIZES}
    holders, done, current = [], threading.Event(), [pack]

    def call(index: int) -> None:
        for turn in itertools.count(index):
            size = SIZES[turn % len(SIZES)]
            assert near(model.run(inputs[size]), expected[size][0])
            assert near(chain.run(data[size]), expected[size][1])
            assert near(dict(zip(expected[size][0], session.run(None, inputs[size]), strict=True)), expected[size][0])
            assert near(
                current[0].model("net").run(inputs[size]), expected[size][0]
            )  # of a pack that may be the old one by now
            if done.is_set():
                return

    def swap() -> None:
        try:
            for turn in range(swaps):
                new = haotuner.load(packs[(turn + 1) % 2], threads=1)
                holders.append(weakref.ref(model.bound))
                old, current[0] = current[0], new
                old.hand_over(new)
        finally:
            done.set()

    in_threads(3, lambda index: swap() if index == 0 else call(index))
    gc.collect()
    assert all(holder() is None for holder in holders)  # what an old pack held of the model went with its last call
    assert model.pack is current[0] and model.stats()["contexts"] <= 4
    current[0].close()
    for call_it in (lambda: model.run(inputs[1]), lambda: chain.run(data[1]), lambda: session.run(None, inputs[1])):
        with pytest.raises(PackClosed, match="load the pack again"):
            call_it()


@pytest.mark.parametrize(
    "name, words", [("wide", r"x float32 \(batch, 24\)"), ("more", "y0 float32"), ("gone", "no model 'gone'")]
)
def test_another_model_is_refused_and_nothing_changes(packs: tuple[Path, Path], name: str, words: str) -> None:
    with haotuner.load(packs[0], threads=1) as pack, haotuner.load(packs[1], threads=1) as new:
        model, other = pack.model("net"), pack.model(name)
        with pytest.raises(UsageError, match=words):
            pack.hand_over(new)
        assert model.pack is pack and other.pack is pack
        assert near(other.run({"x": rows(3, 16)}), model.run({"x": rows(3, 16)}))


def test_a_model_that_nobody_holds_may_be_lacking(packs: tuple[Path, Path]) -> None:
    pack, new = haotuner.load(packs[0], threads=1), haotuner.load(packs[1], threads=1)
    assert pack.model("gone").run({"x": rows(3, 16)})
    gc.collect()
    pack.hand_over(new)
    assert pack.model("chosen").pack is new  # who comes late is served by the new one
    with pytest.raises(UsageError, match="no model 'gone'"):
        pack.model("gone")
    new.close()


def test_a_segment_that_is_held_by_itself_is_handed_over(packs: tuple[Path, Path]) -> None:
    pack, new = haotuner.load(packs[0], threads=1), haotuner.load(packs[1], threads=1)
    name = next(iter(pack.model("chosen").segments))
    segment = pack.model(name)
    pack.hand_over(new)
    assert segment.pack is new and segment.bound is new.model("chosen").segments[name]
    new.close()


def test_a_torch_module_of_a_model_is_handed_over(packs: tuple[Path, Path]) -> None:
    torch = pytest.importorskip("torch")
    from haotuner.torch import ServedModel

    pack, new = haotuner.load(packs[0], threads=1), haotuner.load(packs[1], threads=1)
    module, x = ServedModel(pack, "net"), torch.ones(3, 16)
    before = module(x)
    pack.hand_over(new)
    assert torch.allclose(module(x), before, rtol=1e-4)
    new.close()


@pytest.mark.parametrize("name", ["net", "chosen"])
def test_a_model_that_is_opened_while_its_pack_is_handed_over_is_the_new_packs(
    name: str, packs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, new = haotuner.load(packs[0], threads=1), haotuner.load(packs[1], threads=1)
    open_model = type(pack)._opened

    def opened_meanwhile(self: Any, *arguments: Any) -> Any:
        bound = open_model(self, *arguments)
        if self is pack and pack.is_open:
            pack.hand_over(new)
        return bound

    monkeypatch.setattr(type(pack), "_opened", opened_meanwhile)
    model, data = pack.model(name), {"x": rows(3, 16 if name == "net" else 8)}
    assert model.pack is new and near(model.run(data), new.model(name).run(data))
    assert pack.model_stats() == {}  # a pack that was let go of holds no weights
    new.close()
