"""Graphs of primitives: numpy's semantics, types that hold for every size, errors that say what does not fit."""

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.types import numpy_dtype

M, N = dimension("m"), dimension("n")


def run(build: Any, *arrays: Any, dtype: str = "fp32", shapes: Any = ((M, N),)) -> Any:
    """The graph that ``build`` makes of inputs x0, x1, …; its result's declared shape is checked, too."""
    g = GraphBuilder()
    names = [g.input(f"x{index}", shape, dtype) for index, shape in enumerate(shapes)]
    graph = g.finish(build(g, *names))
    feeds = dict(zip(names, arrays, strict=True))
    output = interpret(graph, feeds)[graph.outputs[0]]
    sizes = graph.sizes(feeds)
    assert output.shape == tuple(evaluate(extent, sizes) for extent in graph.types[graph.outputs[0]].shape)
    return output


X = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
PADDED, WIDE = np.pad(X, ((1, 0), (0, 2)), constant_values=3), ((0, 0), (2, 1))
WINDOWS = np.lib.stride_tricks.sliding_window_view(X, 3, 1)
CASES = {
    "transpose": (lambda g, x: g.add("transpose", x, order=(1, 0)), X.T),
    "reshape": (lambda g, x: g.add("reshape", x, shape=(M * N,)), X.ravel()),
    "broadcast": (lambda g, x: g.add("broadcast", x, shape=(3, M, N)), np.broadcast_to(X, (3, 5, 7))),
    "slice": (lambda g, x: g.add("slice", x, axes=(1,), starts=(1,), stops=(N - 1,), steps=(2,)), X[:, 1:-1:2]),
    "reversed": (lambda g, x: g.add("slice", x, axes=(1,), starts=(N - 1,), stops=(-1,), steps=(-1,)), X[:, ::-1]),
    "pad": (lambda g, x: g.add("pad", x, before=(1, 0), after=(0, 2), mode="constant", value=3.0), PADDED),
    "reflect": (lambda g, x: g.add("pad", x, before=(0, 2), after=(0, 1), mode="reflect"), np.pad(X, WIDE, mode="reflect")),
    "concat": (lambda g, x: g.add("concat", x, x, axis=1), np.concatenate([X, X], 1)),
    "window": (lambda g, x: g.add("window", x, axes=(1,), sizes=(3,), strides=(2,), dilations=(1,)), WINDOWS[:, ::2]),
    "gather": (lambda g, x: g.add("gather", x, g.constant(np.array([0, -1, 2])), axis=1), X[:, [0, -1, 2]]),
    "arg_max": (lambda g, x: g.add("arg_reduce", x, how="max", axis=1), X.argmax(1)),
    "cast": (lambda g, x: g.add("cast", x, dtype="int32"), X.astype(np.int32)),
    "contract": (lambda g, x: g.add("contract", x, x, labels="mn,kn->mk"), X @ X.T),
    "iota": (lambda g, x: g.add("iota", extent=N, dtype="int64"), np.arange(7)),
    "select": (lambda g, x: g.map("select", g.map("greater", x, 0.0), x, 0.0), np.maximum(X, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_primitive_is_what_numpy_computes(name):
    build, expected = CASES[name]
    output = run(build, X)
    assert output.dtype == expected.dtype
    np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-6)


def softmax64(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_fission_keeps_the_meaning():
    x = X.astype(np.float64)
    np.testing.assert_allclose(run(decompositions.softmax, X), softmax64(x), rtol=1e-5)
    np.testing.assert_allclose(run(decompositions.log_softmax, X), np.log(softmax64(x)), rtol=1e-5)
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(run(lambda g, t: decompositions.normalise(g, t, (1,), 1e-5), X), normed, rtol=1e-4, atol=1e-5)


def test_softmax_of_huge_numbers_stays_finite():
    assert np.isfinite(run(decompositions.softmax, X * 1e30)).all()


def test_a_reduction_over_nothing_is_its_neutral_element():
    empty = np.zeros((3, 0), np.float32)
    assert run(lambda g, x: g.add("reduce", x, how="sum", axes=(1,)), empty).tolist() == [0, 0, 0]
    assert run(lambda g, x: g.add("reduce", x, how="max", axes=(1,)), empty).tolist() == [-np.inf] * 3


def test_a_slice_that_stops_before_the_first_element_is_empty():
    strided = {"axes": (1,), "starts": (0,), "stops": (3 * ((N + 2) // 3) - 2,), "steps": (3,)}
    pad = {"before": (0, 1), "after": (0, 0), "mode": "constant", "value": 0.0}
    for size, left in ((0, 0), (1, 1), (7, 3)):
        empty = np.zeros((5, size), np.float32)
        assert run(lambda g, x: g.add("slice", g.add("pad", x, **pad), **strided), empty).shape == (5, left)


def test_windows_of_an_image_too_low_for_them_keep_its_width():
    low = np.zeros((1, 7), np.float32)
    window = {"axes": (0, 1), "sizes": (2, 3), "strides": (1, 2), "dilations": (1, 1)}
    assert run(lambda g, x: g.add("window", x, **window), low).shape == (0, 3, 2, 3)


def test_steps_that_no_output_needs_are_left_out():
    g = GraphBuilder()
    x = g.input("x", (M, N))
    g.map("exp", x)
    output = g.map("add", x, 1.0)
    graph = g.finish(output)
    assert [node.output for node in graph.nodes] == [output]
    assert graph.dimensions == ("m", "n")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda g, x: g.add("map", x, function="sine"), "unknown function 'sine'"),
        (lambda g, x: g.map("add", x, g.constant(np.zeros(3))), "different element types"),
        (lambda g, x: g.add("transpose", x, order=(0, 0)), "no order of 2 axes"),
        (lambda g, x: g.add("reshape", g.constant(np.zeros((2, 3))), shape=(5,)), "has 6 elements"),
        (lambda g, x: g.add("reduce", x, how="sum", axes=(2,)), "axis 2 of a tensor with 2 axes"),
        (lambda g, x: g.add("slice", x, axes=(0,), starts=(0,), stops=(1,), steps=(0,)), "a step of 0"),
        (lambda g, x: g.add("pad", x, before=(1, 1), after=(1, 1), mode="mirror"), "unknown mode"),
        (lambda g, x: g.add("contract", x, labels="mnk->m"), "other axes"),
        (lambda g, x: g.add("gather", x, x, axis=0), "expected whole numbers"),
        (lambda g, x: g.map("add", g.constant(np.zeros(2)), g.constant(np.zeros(3))), "do not go together"),
    ],
)
def test_what_does_not_fit_is_told(build, says):
    g = GraphBuilder()
    with pytest.raises(UsageError, match=says):
        build(g, g.input("x", (M, N)))


def test_inputs_that_contradict_their_dimensions_are_refused():
    g = GraphBuilder()
    graph = g.finish(g.map("add", g.input("a", (M, N)), g.input("b", (M, N))))
    with pytest.raises(UsageError, match="n is 4 there and 3 in another place"):
        interpret(graph, {"a": np.zeros((2, 3), np.float32), "b": np.zeros((2, 4), np.float32)})
    with pytest.raises(UsageError, match="inputs b are missing"):
        interpret(graph, {"a": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_whole_numbers_are_divided_towards_zero_the_least_one_too(dtype):
    ends = np.iinfo(dtype)
    x = np.array([[ends.min, ends.min + 1, -7 % 256 if ends.min == 0 else -7, 7, ends.max, 0]], dtype)
    for other in (1, 2, 7, ends.max, *((-1, -2, -7, ends.min) if ends.min else ())):
        y = np.full_like(x, other)
        output = run(lambda g, a, b: g.map("div", a, b), x, y, dtype=dtype, shapes=((M, N), (M, N)))
        exact = [
            abs(int(dividend)) // abs(int(other)) * (1 if (dividend < 0) == (other < 0) else -1) for dividend in x.ravel()
        ]
        wrapped = [(value - int(ends.min)) % 2**ends.bits + int(ends.min) for value in exact]
        np.testing.assert_array_equal(output.ravel(), np.array(wrapped, dtype))


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "fp16"])
@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, 0.5])
def test_small_whole_powers_are_products_and_reciprocals(dtype: str, exponent: float) -> None:
    g = GraphBuilder()
    x = g.input("x", (M,), dtype)
    graph = g.finish(g.map("pow", x, exponent), g.map("pow", x, g.constant(np.array([[exponent]]), dtype)))
    functions = [node.attributes["function"] for node in graph.nodes]
    rounded_twice = exponent == 3.0 and dtype == "fp16"
    assert functions.count("pow") == (2 if exponent == 0.5 or rounded_twice else 1), "an exponent of more axes broadcasts"
    values = np.array([0.0, -0.0, 1.5, -1.25, np.inf, -np.inf, np.nan, 3.0], numpy_dtype(dtype))
    with np.errstate(all="ignore"):
        first, second = interpret(graph, {"x": values}).values()
        expected = values ** values.dtype.type(exponent)
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected[None])
