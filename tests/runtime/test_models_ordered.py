"""Plain loops of primitives in which order matters: sorts, running totals, scatters, recurrent layers; against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import UsageError
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.ordered import WRITES
from haotuner.graph.recurrent import ACTIVATIONS, GATES, packed_bytes
from tests.runtime.model_packs import model_pack

pytestmark = pytest.mark.long

B, T, H = dimension("batch"), dimension("seq"), 5
DRAW = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


def sorts() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (B, T, 3))
    few = g.map("floor", g.map("mul", x, 2.0))  # many are equal
    outputs = [g.add("arg_sort", few, axis=axis, falling=falling) for axis in (1, 2) for falling in (False, True)]
    totals = [g.add("scan", x, axis=axis, how=how) for axis, how in ((0, "sum"), (1, "max"), (2, "prod"))]
    return g.finish(*outputs, *totals)


def scatters(computed: bool = False) -> Graph:
    g = GraphBuilder()
    x, at = g.input("x", (T,)), g.input("at", (B,), "int64")
    at = g.map("add", at, 0) if computed else at
    new = g.map("add", g.add("cast", at, dtype="fp32"), 0.5)
    return g.finish(*(g.add("scatter", x, at, new, how=how) for how in WRITES))


def boxes() -> Graph:
    """Places that are kept of boxes in two classes; some overlap, and some have no area."""
    g = GraphBuilder()
    x, scores = g.input("x", (B, T, 4)), g.input("scores", (B, 2, T))
    order = g.add("arg_sort", scores, axis=2, falling=True)
    limits = [g.constant(np.array([limit], kind)) for limit, kind in ((9, np.int64), (0.1, np.float32), (-0.8, np.float32))]
    return g.finish(g.add("suppress", x, scores, order, *limits))


def recurrent(kind: str, names: tuple[str, ...], width: int = H, **options: Any) -> Graph:
    g = GraphBuilder()
    gates = GATES[kind]
    x, lengths = g.input("x", (T, B, gates * width)), g.input("at", (B,), "int64")
    first, second = g.input("h", (B, width)), g.input("c", (B, width))
    settings = tuple((name, 0.3, 0.2) for name in names)
    # No gate stretches a state: a rounding would grow from step to step, until answers differ by what step 130 makes of it.
    drawn = numbers(width, gates * width)
    steady = drawn / max(np.float32(1), *(np.linalg.norm(gate, 2) for gate in np.split(drawn, gates, axis=1)))
    weights, more = g.constant(steady), list[str]()
    if "added" in options:  # bytes, or the real numbers that they stand for
        whole, added, scales = of_bytes(steady, options.pop("lowest"), options["added"])
        packed = packed_bytes(whole) if options["bytes"] else ((whole + added) * scales).astype(np.float32)
        weights = g.constant(packed)
        more = (
            [g.constant(array) for array in (whole.sum(axis=0, dtype=np.int32), added, scales)] if options["bytes"] else []
        )
    return g.finish(
        g.add("recurrent", x, weights, g.constant(np.linspace(-1, 1, gates * width, dtype=np.float32)),
              g.constant(np.linspace(-1, 1, 3 * width, dtype=np.float32)),
              first, second, lengths, *more, kind=kind, hidden=width, activations=settings, **options)
    )  # fmt: skip


def of_bytes(weights: Any, lowest: bool, added: bool) -> tuple[Any, Any, Any]:
    """Whole numbers, what is added to each column, its scale. ``lowest``: -128 is among them; ``added``: something is."""
    scales = (np.abs(weights).max(axis=0) / (100 if added else 127)).astype(np.float32)
    moved = np.full(weights.shape[1], 28 if added else 0, np.int32)
    whole = np.clip(np.rint(weights / scales).astype(np.int32) - moved, -128, 127)
    whole[0, 0] = -128 if lowest else whole[0, 0]
    return whole, moved, scales


def bytewise(*, width: int = H, lowest: bool = False, added: bool = False, real: bool = False) -> Graph:
    DRAW.bit_generator.state = np.random.default_rng(1).bit_generator.state  # of both the same weights
    names = ("sigmoid", "tanh", "tanh")
    return recurrent("lstm", names, width, reverse=False, bytes=not real, lowest=lowest, added=added)


ALL = tuple(ACTIVATIONS)
GRAPHS = {
    "sorts": sorts(),
    "scatters": scatters(),
    "computed": scatters(computed=True),
    "boxes": boxes(),
    "lstm": recurrent("lstm", ("sigmoid", "tanh", "tanh"), reverse=False),
    "lstm_back": recurrent("lstm", ("hardsigmoid", "softsign", "elu"), reverse=True, coupled=True, clip=0.7),
    "lstm_bytes": bytewise(),
    "lstm_bytes_wide": bytewise(width=70),
    "lstm_bytes_lowest": bytewise(width=70, lowest=True),
    "lstm_bytes_added": bytewise(width=19, lowest=True, added=True),
    "gru": recurrent("gru", ("sigmoid", "tanh"), reverse=False, linear_before_reset=True),
    "gru_back": recurrent("gru", ("hardsigmoid", "leakyrelu"), reverse=True, linear_before_reset=False),
    **{f"rnn_{name}": recurrent("rnn", (name,), reverse=False, clip=1.5) for name in ALL},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return model_pack(tmp_path_factory.mktemp("ordered") / "pack", GRAPHS, tuned=False, exact=False)


def feeds_of(graph: Graph, batch: int, seq: int) -> dict[str, Any]:
    """The same numbers in whatever order tests are run."""
    draw = np.random.default_rng((batch, seq))
    sizes = {"batch": batch, "seq": seq}
    shapes = {n: [sizes.get(str(e), e) for e in graph.types[n].shape] for n in graph.inputs if n != "at"}
    feeds: dict[str, Any] = {n: draw.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}  # type: ignore[arg-type]
    if "at" in graph.inputs:
        least = 1 if len(graph.inputs) > 2 else -seq
        feeds["at"] = draw.integers(least, seq, batch) if seq > 1 else np.zeros(batch, np.int64)
    return feeds


@pytest.mark.parametrize("name", GRAPHS)
def test_order_is_that_of_numpy(path, name):
    for threads in (1, 2):
        with haotuner.load(path, threads=threads) as pack:
            for batch, seq in ((1, 1), (3, 7), (5, 6), (6, 2), (7, 4), (19, 3), (2, 130)):
                if name.startswith("lstm_bytes") and seq > 7:
                    continue  # among as many states one may be rounded to the other of two bytes
                inputs = feeds_of(GRAPHS[name], batch, seq)
                answers = pack.model(name).run(inputs)
                for output, expected in interpret(GRAPHS[name], inputs).items():
                    np.testing.assert_allclose(answers[output], expected, rtol=3e-4, atol=3e-4)


@pytest.mark.parametrize("name", ["lstm_back", "gru_back", *(f"rnn_{name}" for name in ALL)])
def test_a_state_that_is_no_number_is_that_of_numpy(path, name):
    inputs = feeds_of(GRAPHS[name], 3, 7)
    inputs["x"][2, 1] = np.nan
    with haotuner.load(path, threads=1) as pack:
        answers = pack.model(name).run(inputs)
    for output, expected in interpret(GRAPHS[name], inputs).items():
        np.testing.assert_allclose(answers[output], expected, rtol=3e-4, atol=3e-4)


def test_an_lstm_of_bytes_rounds_each_state(path):
    inputs = feeds_of(GRAPHS["lstm_bytes"], 3, 7)
    (plain,) = interpret(bytewise(real=True), inputs).values()
    with haotuner.load(path, threads=1) as pack:
        (output,) = pack.model("lstm_bytes").run(inputs).values()
    assert 1e-3 < np.abs(output - plain).max() < 0.1


def test_not_a_number_sorts_beyond_all_others_and_foreign_places_are_never_written(path):
    with haotuner.load(path, threads=1) as pack:
        inputs = feeds_of(GRAPHS["sorts"], 1, 9)
        inputs["x"][0, 3] = np.nan
        outputs = pack.model("sorts").run(inputs)
        for output, expected in list(interpret(GRAPHS["sorts"], inputs).items())[:4]:
            np.testing.assert_array_equal(outputs[output], expected)
        request = {"x": np.zeros(3, np.float32), "at": np.array([5, -9, 2**62, -(2**62), 1])}
        for out in pack.model("computed").run(request).values():
            assert not out[0] and not out[2]
        for index in (3, -4, 2**62, -(2**62)):
            with pytest.raises(UsageError, match=f"element 1 of the input at is the index {index}, but there are 3 rows"):
                pack.model("scatters").run({"x": np.zeros(3, np.float32), "at": np.array([0, index])})
