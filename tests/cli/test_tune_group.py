"""`haotuner tune --op group:FILE`: from an ONNX file to a pack that is explained, verified and served."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
import haotuner as library  # noqa: E402, after the skip
from haotuner.errors import UsageError  # noqa: E402
from haotuner.hw_profiles.find import find_device  # noqa: E402
from haotuner.microkernels.index import families_for  # noqa: E402
from haotuner.spec.limits import CELL_AXES, MAX_AXES  # noqa: E402
from haotuner.spec.traffic import arrivals_of  # noqa: E402
from haotuner.tuning.request import ops_of  # noqa: E402
from haotuner.tuning.strategies import STRATEGIES  # noqa: E402
from tests.cli.command import Answer, haotuner, tuned  # noqa: E402
from tests.runtime.test_group import files, node, saved  # noqa: E402

pytestmark = pytest.mark.long
CORES = min(2, len(os.sched_getaffinity(0)))
THREADS = ("--peers", "none", "--threads", "1,2" if CORES > 1 else "1")


def tune(folder: Path, cache: Path, *words: str) -> Answer:
    """``tune`` in a folder, until every op has times."""
    return tuned(partial(haotuner, cache=cache, cwd=folder), *words, budget_s=6)


def test_shapes_must_name_the_dimensions_of_the_file(tmp_path: Path) -> None:
    (op,) = ops_of(f"group:{files(tmp_path)[0]}")
    assert set(op.dynamic) == {"rows", "cols"}
    for shapes in ("m=1..8", "rows=1..8", "rows=1..8;cols=1..8;b=2"):
        with pytest.raises(UsageError, match="needs exactly"):
            arrivals_of(shapes).traffic(op)


def test_candidates_are_shown_of_every_output(tmp_path: Path, cache: Path) -> None:
    command = ("candidates", "--op", f"group:{files(tmp_path)[1]}", "--shapes", "m=1..16;n=1..64")
    document = haotuner(*command, "--json", cache=cache, cwd=tmp_path).json()
    assert [op["op"].rpartition("_")[0] for op in document["ops"]] == ["group_two_mean", "group_two_c"]
    assert document["kept"] == [name for op in document["ops"] for name in op["kept"]] and len(document["kept"]) > 1
    output = haotuner(*command, cache=cache, cwd=tmp_path).out
    assert all(f"{op['op']} on " in output for op in document["ops"])


@pytest.mark.slow
def test_a_file_becomes_a_pack(tmp_path: Path, cache: Path) -> None:
    file = files(tmp_path)[1]
    words = ("--op", f"group:{file}", "--shapes", "m=1..16;n=1..64", *THREADS)
    answer = tune(tmp_path, cache, *words, "--json")
    assert answer.code == 0, answer.err
    names = [op["name"] for op in answer.json()["ops"]]
    assert [name.rpartition("_")[0] for name in names] == ["group_two_mean", "group_two_c"]
    explained = haotuner("explain", "pack", "--op", names[0], "--shape", "m=3;n=40", "--json", cache=cache, cwd=tmp_path)
    assert explained.code == 0 and explained.json()["weights"] == "hot" and explained.json()["program"]["decisions"], (
        explained.err
    )
    several = haotuner("explain", "pack", "--op", f"group:{file}", "--shape", "m=3;n=40", cache=cache, cwd=tmp_path)
    assert several.code == 2 and "has several outputs" in several.err
    assert haotuner("verify", "pack", cache=cache, cwd=tmp_path).out == "pack: verified\n"
    with library.load(tmp_path / "pack", threads=CORES) as pack:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        mean, both = pack.op("group_two").run(x, x)
        np.testing.assert_allclose(mean, [2, 8])
        np.testing.assert_array_equal(both, np.concatenate([x, 2 * x], axis=1))


def strided(folder: Path) -> Path:
    """A convolution with a stride of 2 and a ReLU: with rows and columns of its results it has nine axes."""
    return saved(folder / "strided.onnx", [
        node("Conv", ["x", "k"], ["t"], strides=[2, 2], pads=[1] * 4), node("Relu", ["t"], ["y"]),
    ], {"x": ["b", 4, "h", "w"], "k": [8, 4, 3, 3]}, ["y"])  # fmt: skip


def test_a_convolution_with_a_stride_is_an_op(tmp_path: Path) -> None:
    (op,) = ops_of(f"group:{strided(tmp_path)}")
    assert CELL_AXES < len(op.every_axis) <= MAX_AXES


@pytest.mark.slow
def test_a_convolution_with_a_stride_is_served(tmp_path: Path, cache: Path) -> None:
    command = (
        "--op",
        f"group:{strided(tmp_path)}",
        "--shapes",
        "b=1..2;h=7..33;w=7..33",
        "--peers",
        "none",
        "--threads",
        "1",
    )
    answer = tune(tmp_path, cache, *command)
    assert answer.code == 0, answer.err
    draw = np.random.default_rng(0)
    with library.load(tmp_path / "pack", threads=1) as pack:
        op = pack.op("group_strided")
        for b, h, w in ((1, 7, 7), (2, 33, 20), (1, 8, 31), (3, 40, 12)):
            x, kernel = (draw.standard_normal(shape).astype(np.float32) for shape in ((b, 4, h, w), (8, 4, 3, 3)))
            padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
            windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
            expected = np.maximum(np.einsum("bcpquv,fcuv->bfpq", windows, kernel), 0)
            np.testing.assert_allclose(op.run(x, kernel), expected, rtol=1e-4, atol=1e-4)
            assert op.cell({"b": b, "h": h, "w": w}) >= 0


def gram(folder: Path) -> Path:
    """Products of all rows with each other, as those of a batch's heads: the only dynamic axis is twice in the output."""
    return saved(folder / "gram.onnx", [
        node("Transpose", ["q"], ["heads"], perm=[1, 0, 2]), node("Transpose", ["k"], ["keys"], perm=[1, 2, 0]),
        node("MatMul", ["heads", "keys"], ["y"]),
    ], {"q": ["s", 3, 16], "k": ["s", 3, 16]}, ["y"])  # fmt: skip


def test_an_axis_that_is_twice_in_the_output_is_searched_by_cells(tmp_path: Path) -> None:
    (op,) = ops_of(f"group:{gram(tmp_path)}")
    assert op.dynamic == ("s",)
    families, cpu = families_for(op, "cpu"), find_device("cpu", measure=False)
    names = [strategy.name for strategy in STRATEGIES if strategy.suits(op, families, cpu)]
    assert names == ["cells"]


@pytest.mark.slow
@pytest.mark.parametrize("measured", [False, True], ids=["expected", "measured"])
def test_an_axis_that_is_twice_in_the_output_is_served(measured: bool, tmp_path: Path, cache: Path) -> None:
    command = ("--op", f"group:{gram(tmp_path)}", "--shapes", "s=16..64", *THREADS)
    if measured:
        answer = tune(tmp_path, cache, *command)
    else:
        answer = haotuner("tune", *command, "--zero-measure", cache=cache, cwd=tmp_path)
    assert answer.code == (0 if measured else 3), answer.err  # 3: a pack that nothing was measured for
    draw = np.random.default_rng(0)
    warned = nullcontext() if measured else pytest.warns(UserWarning, match="nothing was measured")
    with warned, library.load(tmp_path / "pack", threads=CORES) as pack:
        for size in (1, 16, 37, 64, 150):
            q, k = (draw.standard_normal((size, 3, 16)).astype(np.float32) for _ in range(2))
            expected = np.einsum("shd,thd->hst", q, k)
            np.testing.assert_allclose(pack.op("group_gram").run(q, k), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_outputs_of_the_same_rows_are_one_op(tmp_path: Path, cache: Path) -> None:
    file = saved(tmp_path / "norm.onnx", [
        node("Add", ["x", "r"], ["total"]), node("ReduceMax", ["total", "axes"], ["most"], keepdims=1),
        node("Sub", ["total", "most"], ["y"]), node("Transpose", ["y"], ["turned"], perm=[1, 0]),
    ], {"x": ["m", "n"], "r": ["m", "n"]}, ["most", "turned", "y", "total"], axes=np.array([1]))  # fmt: skip
    words = ("--op", f"group:{file}", "--shapes", "m=1..16;n=1..64", *THREADS)
    answer = tune(tmp_path, cache, *words, "--json")
    assert answer.code == 0, answer.err
    joint, turned = answer.json()["ops"]
    assert joint["measured"] and turned["measured"]
    explained = haotuner(
        "explain", "pack", "--op", joint["name"], "--shape", "m=3;n=40", "--json", cache=cache, cwd=tmp_path
    )
    assert explained.code == 0 and "once a row" in explained.json()["program"]["decisions"]["written beside it"], (
        explained.err
    )
    assert haotuner("verify", "pack", cache=cache, cwd=tmp_path).out == "pack: verified\n"
    with library.load(tmp_path / "pack", threads=CORES) as pack:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        most, turned, y, total = pack.op("group_norm").run(x, x)
        np.testing.assert_array_equal(total, 2 * x)
        np.testing.assert_array_equal(most, [[4], [10]])
        np.testing.assert_array_equal(y, [[-4, -2, 0]] * 2)
        np.testing.assert_array_equal(turned, y.T)
