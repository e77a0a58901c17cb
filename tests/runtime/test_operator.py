"""Ops of kinds without loops of their own: a toy row sum over two dynamic axes, from its tables to calls, traces and C."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_source import PackedAny, pack_data
from haotuner.errors import PackClosed, PackInvalid, UsageError
from haotuner.verify.pack_check import verify
from tests.runtime.conftest import DENSE
from tests.runtime.native_builds import ASAN, HERE, LIBRARY, c_pack, cc, run
from tests.runtime.packs import packed_op, put_manifest, rewrite
from tests.runtime.row_sum import BOUNDS, NAME, cell_of, kernel_source, mark_of, row_sum
from tests.runtime.test_life import in_threads


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of a dense op and of the toy, which is the second one."""
    folder = tmp_path_factory.mktemp("toy")
    ops: list[PackedAny] = [packed_op(DENSE, 4, 8, (1, 2)), row_sum()]
    return c_pack(folder / "pack", ops, sources=[kernel_source(folder)])


@pytest.fixture(params=[1, 2, 5])
def pack(path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with haotuner.load(path, threads=request.param) as opened:
        yield opened


def inputs(b: int, m: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(b * 100 + m)
    return draw.integers(-3, 4, (b, m, 5)).astype(np.float32), draw.integers(1, 4, m).astype(np.float32)


def wanted(x: Any, scale: Any) -> Any:
    b, m = x.shape[0], x.shape[1]
    return (x.sum(-1) + (mark_of(b, m) if b and m else 0)) * scale


SHAPES = [(b, m) for b in (1, 2, 3, 4, 7, 8, 9, 40) for m in (1, 2, 4, 5, 15, 16, 17, 33, 300)]


def test_every_shape_is_served_by_its_cell(pack):
    op = pack.op(NAME)
    for b, m in SHAPES:
        x, scale = inputs(b, m)
        assert op.cell({"b": b, "m": m}) == cell_of(b, m)
        y = op.run(x, scale)
        assert y.dtype == np.float32 and np.array_equal(y, wanted(x, scale)), (b, m)
        out = np.full((b + 2, m + 4), -1, np.float32)
        assert op.run(scale=scale, x=x, out=out[1:-1, 2:-2]) is not None
        assert np.array_equal(out[1:-1, 2:-2], y)
        out[1:-1, 2:-2] = -1
        assert (out == -1).all()
    for b, m in ((0, 3), (2, 0)):
        assert op.run(np.zeros((b, m, 5), np.float32), np.ones(m, np.float32)).shape == (b, m)


def test_cells_are_total(pack):
    op = pack.op(NAME)
    edges = {1, 2, 3, *(bound + d for bound in BOUNDS for d in (-1, 0, 1)), 1000, 2**31 - 1} - {0}
    for b, m in itertools.product(edges, edges):
        assert op.cell({"b": b, "m": m}) == cell_of(b, m)


def test_strides_and_leading_axes(pack):
    op = pack.op(NAME)
    x, scale = inputs(6, 3)
    expected = wanted(x, scale)
    wide = np.zeros((12, 7, 9), np.float32)
    wide[::2, 1:4, 2:7] = x
    assert np.array_equal(op.run(wide[::2, 1:4, 2:7], scale), expected)
    assert np.array_equal(op.run(x[::-1], scale), expected[::-1])
    assert np.array_equal(op.run(x.reshape(2, 3, 3, 5), scale), expected.reshape(2, 3, 3))
    assert np.array_equal(op.run(x[0], scale), wanted(x[:1], scale)[0])
    frozen = x.copy()
    frozen.setflags(write=False)
    assert np.array_equal(op.run(frozen, scale), expected)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda x, s, o: (x.astype(np.float64), s, o), TypeError, "x has dtype float64; expected float32"),
        (lambda x, s, o: (x, s.astype(np.int32), o), TypeError, "scale has dtype int32"),
        (lambda x, s, o: (x, s, o.astype(np.float64)), TypeError, "out has dtype float64"),
        (lambda x, s, o: (x[..., :4], s, o), ValueError, "x has last extent 4; expected 5"),
        (lambda x, s, o: (x, s[:2], o), ValueError, "scale has extent 2 on axis m, x has 3"),
        (lambda x, s, o: (x, s, o[:1]), ValueError, "out has extent 1 on axis b, x has 2"),
        (lambda x, s, o: (x, s[None], o), ValueError, "scale has rank 2; expected 1 axes"),
        (lambda x, s, o: (x.transpose(0, 2, 1).copy().transpose(0, 2, 1), s, o), ValueError, "x has inner stride"),
        (lambda x, s, o: (x, s, o.T.copy().T), ValueError, "out has inner stride"),
        (lambda x, s, o: (x, np.lib.stride_tricks.as_strided(s, (3,), (0,)), o), ValueError, "scale has inner stride 0"),
        (lambda x, s, o: (x, s, np.lib.stride_tricks.as_strided(o, (2, 3), (4, 4))), ValueError, "out: its rows overlap"),
        (lambda x, s, o: (x, s, x.reshape(-1)[1:7].reshape(2, 3)), ValueError, "out shares memory with x"),
        (lambda x, s, o: ([1.0], s, o), TypeError, "x is a list"),
        (lambda x, s, o: (x, None, o), TypeError, "scale is a NoneType"),
    ],
)
def test_what_is_refused(pack, change, kind, message):
    x, scale = inputs(2, 3)
    out = np.full((2, 3), -1, np.float32)
    arguments = change(x, scale, out)
    with pytest.raises(kind, match=message):
        pack.op(NAME).run(arguments[0], arguments[1], out=arguments[2])
    assert (out == -1).all()


def test_operands_in_order_or_by_name_once_each(pack):
    op, (x, scale) = pack.op(NAME), inputs(2, 3)
    wrong: Any
    for wrong in ((), (x,), (x, scale, x)):
        with pytest.raises(TypeError, match="takes x, scale"):
            op.run(*wrong)
    with pytest.raises(TypeError, match="takes x, scale"):
        op.run(x, x=x)
    with pytest.raises(TypeError, match="takes x, scale"):
        op.run(x, weight=scale)
    with pytest.raises(UsageError, match="no op 'row_sum'"):
        pack.op("row_sum")


def test_torch_tensors(pack):
    torch = pytest.importorskip("torch")
    x, scale = inputs(4, 9)
    y = pack.op(NAME).run(torch.from_numpy(x), torch.from_numpy(scale))
    assert isinstance(y, torch.Tensor) and np.array_equal(y.numpy(), wanted(x, scale))
    with pytest.raises(ValueError, match="requires grad"):
        pack.op(NAME).run(torch.from_numpy(x).requires_grad_(), torch.from_numpy(scale))


def test_counts_and_captured_shapes(path, tmp_path):
    with haotuner.load(path, threads=5) as pack:
        op, dense = pack.op(NAME), pack.op(DENSE).bind(np.ones((100, 37), np.float32))
        before = pack.stats()[NAME]
        with haotuner.capture(pack) as seen:
            for b, m, times in ((1, 2, 3), (3, 300, 2), (5000, 1, 1), (9, 7, 1)):
                for _ in range(times):
                    op.run(*inputs(b, m))
        counts = seen.counts()[NAME]
        assert sum(counts.values()) == 7 and counts[1, 2] == 3 and counts[3, 300] == 2 and counts[9, 7] == 1
        ((b, m),) = set(counts) - {(1, 2), (3, 300), (9, 7)}
        assert m == 1 and b <= 5000 <= b * (1 + 1 / 64)
        after = pack.stats()[NAME]
        assert {key: after[key] - before[key] for key in after} == {"calls": 7, "fallbacks": 7, "out_of_range": 4}
        lines = seen.write(tmp_path / "trace.csv").read_text().splitlines()
        assert lines[0] == "op,b,m,weight" and f"{NAME},1,2,3" in lines
        with haotuner.capture(pack) as seen:
            op.run(*inputs(1, 2))
            dense(np.ones((4, 37), np.float32))
        with pytest.raises(UsageError, match="different axes.*jsonl"):
            seen.write(tmp_path / "both.csv")
        rows = [json.loads(line) for line in seen.write(tmp_path / "both.jsonl").read_text().splitlines()]
        assert rows == [{"op": DENSE, "m": 4, "weight": 1}, {"op": NAME, "b": 1, "m": 2, "weight": 1}]


def test_more_shapes_than_are_told_apart_are_bounded(path):
    with haotuner.load(path, threads=1) as pack, haotuner.capture(pack) as seen:
        op = pack.op(NAME)
        for b in range(1, 90):
            for m in range(1, 90):
                op.run(np.zeros((b, m, 5), np.float32), np.zeros(m, np.float32))
        counts = seen.counts()[NAME]
    assert 4000 < len(counts) <= 5376 and all(1 <= b < 90 and 1 <= m < 90 for b, m in counts)


def test_many_threads(path):
    with haotuner.load(path, threads=2) as pack:
        op = pack.op(NAME)

        def work(index: int) -> None:
            for turn in range(200):
                x, scale = inputs(1 + (index + turn) % 9, 1 + turn % 40)
                assert np.array_equal(op.run(x, scale), wanted(x, scale))

        in_threads(6, work)
    with pytest.raises(PackClosed):
        op.run(*inputs(1, 1))


def test_a_kind_nobody_knows_is_served_but_not_verified(path):
    (problem,) = {problem.partition(":")[2] for problem in verify(path)}
    assert "knows no kind 'row_sum'" in problem


def test_the_library_and_the_manifest_hold_the_same_ops_in_the_same_order(path, tmp_path):
    """Counters, captures and plans go by place: whoever writes another order, even with the right hashes, is refused."""
    pack = Path(shutil.copytree(path, tmp_path / "pack"))
    ops = json.loads((pack / "manifest.json").read_text())["ops"]
    changed: list[tuple[Any, str]] = [
        (ops[::-1], "another op"),
        (ops[:1], "more ops"),
        ([ops[0], ops[1] | {"threads": [2, 1]}], "another op, plan"),
        ([ops[0], ops[1] | {"kernels": ops[1]["kernels"][::-1]}], "another op, plan or kernel"),
        ([ops[0], ops[1] | {"threads": [1]}], "another op, plan"),
    ]
    for wrong, message in changed:
        rewrite(pack, ops=wrong)
        with pytest.raises(PackInvalid, match=message):
            haotuner.load(pack)
    rewrite(pack, ops=ops)
    haotuner.load(pack).close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "Row sum"}, "plain name"),
        ({"kind": "dense"}, "not named after|unknown|dense"),
        ({"name": "other_k5"}, "not named after its kind"),
        ({"name": "row_sum\u001b"}, "control"),
        ({"axes": []}, "must be axes of the op"),
        ({"axes": [{"name": "b", "first": 0, "last": 3}]}, "first is 0"),
        ({"axes": [{"name": "b", "first": 4, "last": 3}]}, "over last_b"),
        ({"axes": [{"name": "b"}]}, "'first' is missing"),
        ({"axes": [{"name": "b", "first": 1, "last": 3}] * 2}, "must be axes of the op|once each"),
        ({"axes": [{"name": f"a{i}", "first": 1, "last": 3} for i in range(25)]}, "at most 24"),
        ({"operands": []}, "output"),
        ({"operands": [{"name": "y", "role": "reads", "dims": ["b"], "dtype": "fp32"}]}, "role 'reads'"),
        ({"operands": [{"name": "y", "role": "output", "dims": ["b"], "dtype": "fp7"}]}, "dtype 'fp7'"),
        ({"operands": [{"name": "y", "role": "output", "dims": ["q"], "dtype": "fp32"}]}, "must be axes"),
        ({"operands": [{"name": "y", "role": "output", "dims": ["b"], "dtype": "fp32"}]}, "every axis belongs"),
        ({"kernels": []}, "kernels must be named"),
        ({"kernels": [{"name": "a", "tile": {"b": 0}}]}, "b is 0"),
        ({"kernels": [{"name": "a", "tile": {}}] * 2}, "once each"),
        ({"threads": [257]}, "threads"),
        ({"threads": [1, 1]}, "each count once"),
        ({"facts": []}, "facts must be an object"),
    ],
)
def test_every_field_of_an_op_is_checked(path, tmp_path, change, message):
    pack = Path(shutil.copytree(path, tmp_path / "pack"))
    ops = json.loads((pack / "manifest.json").read_text())["ops"]
    rewrite(pack, ops=[ops[0], ops[1] | change])
    with pytest.raises(PackInvalid, match=message):
        haotuner.load(pack)


def test_any_changed_bit_of_the_manifest_is_found(path, tmp_path):
    pack = Path(shutil.copytree(path, tmp_path / "pack"))
    raw = (pack / "manifest.json").read_bytes()
    draw = np.random.default_rng(0)
    for _ in range(400):
        offset, bit = int(draw.integers(len(raw))), int(draw.integers(8))
        (pack / "manifest.json").write_bytes(raw[:offset] + bytes([raw[offset] ^ 1 << bit]) + raw[offset + 1 :])
        with pytest.raises(PackInvalid):
            haotuner.load(pack)
    (pack / "manifest.json").write_bytes(raw)
    seal = (pack / "manifest.sha256").read_bytes()
    for offset in range(len(seal)):
        (pack / "manifest.sha256").write_bytes(seal[:offset] + bytes([seal[offset] ^ 1]) + seal[offset + 1 :])
        with pytest.raises(PackInvalid, match="manifest.sha256"):
            haotuner.load(pack)
    (pack / "manifest.sha256").unlink()
    with pytest.raises(PackInvalid, match="manifest.sha256 is missing"):
        haotuner.load(pack)
    put_manifest(pack, raw)
    haotuner.load(pack).close()


def test_tables_that_are_none_are_refused():
    from dataclasses import replace

    good = row_sum()
    plan = good.plans[0]
    for wrong in (
        replace(plan, grid={"b": 3}),
        replace(plan, grid={"b": 3, "k": (1, 2, 3)}),
        replace(plan, grid={"b": 3, "m": (4, 1, 16)}),
        replace(plan, grid={}),
        replace(plan, entries=[replace(plan.entries[0], axis="k"), *plan.entries[1:]]),
        replace(plan, entries=[replace(plan.entries[0], kernel=9), *plan.entries[1:]]),
    ):
        with pytest.raises(ValueError, match="row_sum"):
            pack_data([replace(good, plans=[wrong])])


def test_from_c(path, tmp_path):
    """The C library runs an op that binds no weight; sanitizers watch."""
    program = cc([HERE / "operator.c", *LIBRARY], tmp_path / "operator", *ASAN)
    assert run([program, path, NAME], LD_PRELOAD="").stdout.strip() == "right"
