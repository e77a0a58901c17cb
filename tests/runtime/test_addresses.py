"""numpy's arrays go to a library by address: it sees what DLPack says of them, and takes nothing else so."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st

import haotuner
from haotuner.errors import PackInvalid, UsageError
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph
from haotuner.runtime import arrays
from haotuner.spec.limits import BY_ADDRESS
from tests.runtime.conftest import DENSE, rows
from tests.runtime.model_packs import model_pack
from tests.runtime.packs import LANES, best_level
from tests.runtime.product_packs import product_pack
from tests.runtime.written_nodes import Nodes

SPEC = "batch_matmul:layout=nt"


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path: Path = product_pack(tmp_path_factory.mktemp("addresses") / "pack", [SPEC], LANES[best_level()], best_level())
    with haotuner.load(path, threads=1) as opened:
        yield opened


@pytest.fixture
def product(products: Any) -> Any:
    return products.op(products.ops[0])


class Calls:
    """The native call, and what it was called with."""

    def __init__(self, call: Any) -> None:
        self.call, self.seen = call, list[tuple[Any, ...]]()

    def __call__(self, *arguments: Any) -> Any:
        self.seen.append(arguments)
        return self.call(*arguments)


def test_usual_calls_hand_over_no_array(product: Any, linear: Any) -> None:
    x, w = np.ones((2, 3, 5), np.float32), np.ones((2, 4, 5), np.float32)
    calls = product._call = Calls(product._call)
    assert np.array_equal(product.run(x, w), np.full((2, 3, 4), 5))
    product.run(x, w, out=np.empty((2, 3, 4), np.float32))
    bound = Calls(linear.bound.call)
    linear.serve(replace(linear.bound, call=bound))
    expected = linear(rows(3))
    y = np.empty_like(expected)
    assert linear(rows(3), out=y) is y and np.array_equal(y, expected)
    given_ = [argument for call in (*calls.seen, *bound.seen) for argument in call]
    assert len(calls.seen) == len(bound.seen) == 2 and not any(isinstance(argument, np.ndarray) for argument in given_)


def test_what_a_library_says_of_arrays(product: Any, products: Any) -> None:
    agrees = products.library().function("ht_agrees")
    for name in arrays.ADDRESSED_TYPES:
        array = np.zeros((4, 6), name)[1:, ::2]
        assert agrees(id(array), tvm_ffi.from_dlpack(array)) == 1
        for other in (
            array[1:],
            array[:, 1:],
            array.T,
            array[:, :2],
            array.view("i1")[:, :3] if name == "uint8" else array[:2],
        ):
            assert agrees(id(other), tvm_ffi.from_dlpack(array)) == 0
    assert products.library().takes_addresses and product._addressed & BY_ADDRESS


@pytest.mark.parametrize("swapped", [">f4", "float64", "bool", "complex64"])
def test_other_types_are_refused_in_words(product: Any, linear: Any, swapped: str) -> None:
    x, w, y = (np.ones(shape, np.float32) for shape in ((2, 3, 5), (2, 4, 5), (2, 3, 4)))
    for index, name in enumerate(("x", "w", "out")):
        given_ = [x, w, y]
        given_[index] = given_[index].astype(swapped)
        with pytest.raises(TypeError, match=f"{name} has dtype"):
            product.run(*given_[:2], out=given_[2])
    with pytest.raises(TypeError, match="x has dtype"):
        linear(rows(2).astype(swapped))


def test_addresses_are_never_a_callers(product: Any, linear: Any) -> None:
    """A whole number is no tensor, whatever lies there."""
    x, w, y = (np.ones(shape, np.float32) for shape in ((2, 3, 5), (2, 4, 5), (2, 3, 4)))
    for wrong in ((id(x), w, y), (x, id(w), y), (x, w, id(y)), (id(x), id(w), id(y))):
        with pytest.raises(TypeError):
            product.run(*wrong[:2], out=wrong[2])
    for arguments in ((id(rows(2)), np.empty((2, 100), np.float32)), (rows(2), id(y))):
        with pytest.raises(TypeError):
            linear(arguments[0], out=arguments[1])


def test_arrays_that_may_not_be_written(product: Any, linear: Any) -> None:
    """As factors they are read where they are; as an output they are refused."""
    x, w, y = (np.ones(shape, np.float32) for shape in ((2, 3, 5), (2, 4, 5), (2, 3, 4)))
    for array in (x, w, y):
        array.flags.writeable = False
    calls = product._call = Calls(product._call)
    assert np.array_equal(product.run(x, w), np.full((2, 3, 4), 5)) and len(calls.seen) == 1
    with pytest.raises(ValueError, match="out is read-only"):
        product.run(x, w, out=y)
    out = np.empty((2, 100), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        linear(rows(2), out=out)


def test_strides_of_no_whole_elements(product: Any) -> None:
    packed = np.zeros((2, 3, 5), [("value", "f4"), ("mark", "u1")])["value"]
    assert packed.strides[-1] == 5
    w = np.ones((2, 4, 5), np.float32)
    with pytest.raises((BufferError, ValueError, TypeError)):
        product.run(packed, w)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 4), st.integers(0, 5), st.integers(0, 5), st.integers(0, 6)),
    st.lists(st.sampled_from([1, 2, -1, -3]), min_size=6, max_size=6),
    st.permutations([0, 1, 2]),
)
def test_both_ways_give_the_same(products: Any, extents: Any, steps: list[int], order: list[int]) -> None:
    """Views of any order and steps, also backwards and without elements."""
    product, (b, m, n, k) = products.op(products.ops[0]), extents
    draw = np.random.default_rng(0)

    def view(*shape: int, by: list[int]) -> Any:
        room = draw.standard_normal([3 * shape[axis] + 1 for axis in order], np.float32).transpose(np.argsort(order))
        return room[tuple(slice(None, None, step) for step in by)][tuple(slice(extent) for extent in shape)]

    x, w = view(b, m, k, by=steps[:3]), view(b, n, k, by=steps[3:])
    output = product.run(x, w)
    product._addressed = 0
    assert output.tobytes() == product.run(x, w).tobytes()


@pytest.mark.parametrize("other", ["HEAD_BYTES", "ARRAY_BYTES"])
def test_interpreters_that_lay_arrays_out_otherwise(built_pack: Any, weight: Any, other: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(arrays, other, 4096)
    with haotuner.load(built_pack.path, threads=1) as pack:
        linear = pack.op(DENSE).bind(weight)
        assert not pack.library().takes_addresses and linear.bound.addressed == 0
        assert np.allclose(linear(rows(3)), rows(3) @ weight.T, atol=1e-4)


def test_libraries_that_know_no_addresses_or_disagree() -> None:
    def missing(name: str) -> Any:
        raise PackInvalid(name)

    assert not arrays.takes_addresses(missing)
    assert not arrays.takes_addresses(lambda _: lambda address, tensor: 0)
    assert not arrays.takes_addresses(lambda _: lambda address, tensor: 1)  # also of an array that may not be written


TABLE = np.arange(44, dtype=np.float32).reshape(11, 4)


def gathered() -> Graph:
    """Rows of a table by index, less an input of the same shape: two inputs of two types."""
    nodes = Nodes(at=("int64", dimension("t")), x=("fp32", dimension("t"), 4))
    return nodes.g.finish(nodes("Sub", nodes("Gather", TABLE, "at"), "x"))


@pytest.fixture(scope="module")
def gather_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_pack(tmp_path_factory.mktemp("models") / "pack", {"gathered": gathered()})


@pytest.fixture
def model(gather_path: Path) -> Iterator[Any]:
    with haotuner.load(gather_path, threads=1) as opened:
        yield opened.model("gathered")


def request(count: int) -> dict[str, Any]:
    draw = np.random.default_rng(count)
    return {"at": draw.integers(0, 11, count), "x": draw.standard_normal((count, 4)).astype(np.float32)}


def expected(inputs: Any) -> Any:
    return TABLE[inputs["at"]] - inputs["x"]


def test_calls_of_shapes_seen_before_go_by_address(model: Any, monkeypatch: Any) -> None:
    bound, tensors = model.bound, list[int]()
    usual = bound.native.run

    def run(*arrays: Any) -> None:
        tensors.append(1)
        usual(*arrays)

    monkeypatch.setattr(bound.native, "run", run)
    for count in (3, 3, 5, 3, 5):
        inputs = request(count)
        (answer,) = model.run(inputs).values()
        assert np.array_equal(answer, expected(inputs))
    assert len(tensors) == 2, "the first call of each shape"


def odd_inputs() -> dict[str, dict[str, Any]]:
    """Requests of shapes that were seen before, each of which something is odd of."""
    usual = request(3)

    class Own(np.ndarray[Any, Any]):
        pass

    read_only = usual["x"].copy()
    read_only.flags.writeable = False
    return {
        "another order": {**usual, "x": np.asfortranarray(usual["x"])},
        "a view": {**usual, "x": np.repeat(usual["x"], 2, axis=1)[:, ::2]},
        "not aligned": {**usual, "x": np.frombuffer(b"x" + usual["x"].tobytes(), np.float32, offset=1).reshape(3, 4)},
        "read-only": {**usual, "x": read_only},
        "a subclass": {**usual, "x": usual["x"].view(Own)},
        "another type": {**usual, "x": usual["x"].astype(np.float64)},
        "another byte order": {**usual, "x": usual["x"].astype(">f4")},
        "another index type": {**usual, "at": usual["at"].astype(np.int32)},
        "a list": {**usual, "at": usual["at"].tolist()},
        "one more": {**usual, "z": usual["x"]},
        "one less": {"x": usual["x"]},
        "no index of a row": {**usual, "at": usual["at"] + 11},
    }


@pytest.mark.parametrize("name", odd_inputs())
def test_odd_calls_are_answered_alike_both_ways(model: Any, name: str) -> None:
    answers = list[Any]()
    for by_address in (True, False):
        model.bound.native._by_address = by_address
        model.run(request(3))
        try:
            answers.append(next(iter(model.run(odd_inputs()[name]).values())).tolist())
        except UsageError as error:
            answers.append(str(error))
    assert answers[0] == answers[1]
    assert isinstance(answers[0], list) == (name in ("another order", "a view", "not aligned", "read-only", "a subclass"))


def test_calls_at_once_go_by_address(model: Any) -> None:
    def served(count: int) -> bool:
        inputs = request(count)
        return all(np.array_equal(next(iter(model.run(inputs).values())), expected(inputs)) for _ in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(served, [4, 9] * 8))


def test_models_of_interpreters_that_lay_arrays_out_otherwise(gather_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(arrays, "HEAD_BYTES", 4096)
    with haotuner.load(gather_path, threads=1) as pack:
        model = pack.model("gathered")
        assert not model.bound.native._by_address
        for _ in range(2):
            assert np.array_equal(next(iter(model.run(request(3)).values())), expected(request(3)))
