"""Several outputs of one program on the CPU: served whole and shared, without rows or columns, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.errors import UsageError
from haotuner.graph.interpret import interpret
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.verify.pack_check import verify
from tests.codegen.groups_beside import deep, joint, maps, mixed, norm
from tests.run_folder import toolchain
from tests.runtime.packs import document
from tests.runtime.test_generated import packed

GRAPHS = {"norm": norm(), "maps": maps(), "deep": deep(), "mixed": mixed()}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    ops, library = [packed(op) for name, graph in GRAPHS.items() for op in joint(graph, name)], folder / "several.so"
    pack_library(ops, "x86-64", toolchain(), library)
    write_pack(folder / "pack", library, document(ops, "x86-64"), lambda _: None)
    return folder / "pack"


@pytest.fixture(params=[1, 2])
def pack(path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with haotuner.load(path, threads=request.param) as opened:
        yield opened


def drawn(name: str, **sizes: int) -> dict[str, Any]:
    graph, rng = GRAPHS[name], np.random.default_rng(sum(sizes.values()))
    shapes = {tensor: [sizes[str(extent)] for extent in graph.types[tensor].shape] for tensor in graph.inputs}
    return {tensor: rng.standard_normal(shape).astype(np.float32) for tensor, shape in shapes.items()}


def close(outputs: Any, expected: dict[str, Any]) -> None:
    for output, value in zip(outputs, expected.values(), strict=True):
        assert output.shape == value.shape
        np.testing.assert_allclose(output, value, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", GRAPHS)
def test_outputs_come_in_the_file_s_order(pack: Any, name: str) -> None:
    op = pack.op(f"group_{name}")
    for m, n in ((1, 1), (3, 17), (41, 60), (5, 9)):
        inputs = drawn(name, m=m, n=n, k=4)
        expected = interpret(GRAPHS[name], inputs)
        close(op.run(**inputs), expected)
        outs = [numerics.Guarded(value.shape) for value in expected.values()]
        into = tuple(guarded.inner for guarded in outs)
        results = op.run(*(numerics.spaced(array, 3) for array in inputs.values()), out=into)
        assert all(result is other for result, other in zip(results, into, strict=True))
        close(results, expected)
        assert not any(guarded.touched() for guarded in outs)


def test_rows_of_nothing_have_sums_and_no_rows_have_none(pack: Any) -> None:
    for m, n in ((0, 5), (4, 0), (0, 0)):
        inputs = drawn("norm", m=m, n=n)
        close(pack.op("group_norm").run(**inputs), interpret(GRAPHS["norm"], inputs))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_nan_stays_in_its_row_of_every_output(pack: Any) -> None:
    inputs = drawn("norm", m=6, n=37)
    inputs["x"][2, 30], inputs["x"][4] = np.nan, -np.inf
    expected = interpret(GRAPHS["norm"], inputs)
    close(pack.op("group_norm").run(**inputs), expected)
    assert all(np.isnan(output[2]).any() and np.isfinite(output[:2]).all() for output in expected.values())


def test_read_only_operands_are_read(pack: Any) -> None:
    inputs = drawn("maps", m=5, n=9)
    for array in inputs.values():
        array.flags.writeable = False
    close(pack.op("group_maps").run(**inputs), interpret(GRAPHS["maps"], inputs))


def test_what_is_written_lies_apart(pack: Any) -> None:
    op, inputs = pack.op("group_maps"), drawn("maps", m=5, n=9)
    x, (e, h) = inputs["x"], (np.empty((5, 9), np.float32) for _ in range(2))
    for out, message in (
        ((e, e), "which is written, too"),
        ((x, h), "which is read meanwhile"),
        ((e, x), "which is read meanwhile"),
        ((e, np.empty((5, 8), np.float32)), "they must be equal"),
        ((e, np.lib.stride_tricks.as_strided(h, (5, 9), (4, 4))), "rows overlap"),
    ):
        with pytest.raises(ValueError, match=message):
            op.run(x, out=out)
    with pytest.raises(TypeError, match="float32"):
        op.run(x, out=(e, h.astype(np.float64)))
    for wrong in (e, (e,), (e, h, h)):
        with pytest.raises(UsageError, match="takes 2 tensors"):
            op.run(x, out=wrong)
    with pytest.raises(TypeError, match="takes x"):
        op.run(x, x)


@pytest.mark.long
def test_verify_looks_at_every_output(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify(path, most_flops=1e5) == []
    beside = numerics._beside

    def shifted(op: Any, inputs: Any) -> Any:
        return {name: (expected + 1.0, allowed) for name, (expected, allowed) in beside(op, inputs).items()}

    monkeypatch.setattr(numerics, "_beside", shifted)
    problems = verify(path, most_flops=1e5)
    assert problems and all(" threads=" in problem for problem in problems)
    (op, *_) = joint(GRAPHS["norm"], "norm")
    assert all(any(f" {operand.name}: " in problem for problem in problems) for operand in op.meaning.written[:-1])
