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
    shapes = {one: [sizes[str(extent)] for extent in graph.types[one].shape] for one in graph.inputs}
    return {one: rng.standard_normal(shape).astype(np.float32) for one, shape in shapes.items()}


def close(found: Any, want: dict[str, Any]) -> None:
    for one, value in zip(found, want.values(), strict=True):
        assert one.shape == value.shape
        np.testing.assert_allclose(one, value, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", GRAPHS)
def test_outputs_come_in_the_file_s_order(pack: Any, name: str) -> None:
    op = pack.op(f"group_{name}")
    for m, n in ((1, 1), (3, 17), (41, 60), (5, 9)):
        given = drawn(name, m=m, n=n, k=4)
        want = interpret(GRAPHS[name], given)
        close(op.run(**given), want)
        outs = [numerics.Guarded(value.shape) for value in want.values()]
        into = tuple(one.inner for one in outs)
        results = op.run(*(numerics.spaced(one, 3) for one in given.values()), out=into)
        assert all(one is other for one, other in zip(results, into, strict=True))
        close(results, want)
        assert not any(one.touched() for one in outs)


def test_rows_of_nothing_have_sums_and_no_rows_have_none(pack: Any) -> None:
    for m, n in ((0, 5), (4, 0), (0, 0)):
        given = drawn("norm", m=m, n=n)
        close(pack.op("group_norm").run(**given), interpret(GRAPHS["norm"], given))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_nan_stays_in_its_row_of_every_output(pack: Any) -> None:
    given = drawn("norm", m=6, n=37)
    given["x"][2, 30], given["x"][4] = np.nan, -np.inf
    want = interpret(GRAPHS["norm"], given)
    close(pack.op("group_norm").run(**given), want)
    assert all(np.isnan(one[2]).any() and np.isfinite(one[:2]).all() for one in want.values())


def test_read_only_operands_are_read(pack: Any) -> None:
    given = drawn("maps", m=5, n=9)
    for one in given.values():
        one.flags.writeable = False
    close(pack.op("group_maps").run(**given), interpret(GRAPHS["maps"], given))


def test_what_is_written_lies_apart(pack: Any) -> None:
    op, given = pack.op("group_maps"), drawn("maps", m=5, n=9)
    x, (e, h) = given["x"], (np.empty((5, 9), np.float32) for _ in range(2))
    for out, said in (
        ((e, e), "which is written, too"),
        ((x, h), "which is read meanwhile"),
        ((e, x), "which is read meanwhile"),
        ((e, np.empty((5, 8), np.float32)), "they must be equal"),
        ((e, np.lib.stride_tricks.as_strided(h, (5, 9), (4, 4))), "rows overlap"),
    ):
        with pytest.raises(ValueError, match=said):
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
        return {name: (want + 1.0, allowed) for name, (want, allowed) in beside(op, inputs).items()}

    monkeypatch.setattr(numerics, "_beside", shifted)
    found = verify(path, most_flops=1e5)
    assert found and all(" threads=" in one for one in found)
    (op, *_) = joint(GRAPHS["norm"], "norm")
    assert all(any(f" {one.name}: " in said for said in found) for one in op.meaning.written[:-1])
