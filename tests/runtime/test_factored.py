"""Few long rows: a folded axis cut among threads, partial results joined in the axis's order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.backend import CpuBackend
from haotuner.backends.cpu.pack_op import PackedSliced, SlicedEntry, SlicedKernel, SlicedPlan
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.backends.cpu.packing import _joining
from haotuner.codegen.kinds import graph_of
from haotuner.codegen.rfactor import joined
from haotuner.microkernels.cpu.generated import CpuGenerated, joins_of
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.limits import PARTIAL_FLOATS
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.run_folder import toolchain
from tests.runtime.packs import document

FOLDED = {
    "reduce_sum:": {"n": "sum"},
    "reduce_sum:over=first": {"m": "sum"},
    "reduce_mean:": {"n": "mean"},
    "reduce_max:": {"n": "max"},
    "reduce_min:over=first": {"m": "min"},
    "reduce_prod:": {"n": "prod"},
}
THREADS = 4
SIZES = ((1, 1), (1, 4099), (3, 517), (2, 8), (5, 40), (700, 300), (1, PARTIAL_FLOATS), (PARTIAL_FLOATS, 33))


def packed(spec: str, share: str = "") -> PackedSliced:
    op = Op.parse(spec)
    family = CpuGenerated(op.meaning)
    kernel = family._kernel(4, 2, 0 if op.option("over") == "last" else 1, 0, family._option_params(op.all_options()))
    tile, joins = family.tile(kernel), joins_of(family, op)
    kernels = [SlicedKernel(name=kernel.name, tile={**tile.extent, **tile.step}, kernel=kernel, joins=joins)]
    (folded,) = joins
    entries = [SlicedEntry(kernel=0, axis=share or folded)]
    plans = [SlicedPlan(threads=THREADS, grid={op.dynamic[0]: (8,)}, entries=entries)]
    return PackedSliced.of(op, dict.fromkeys(op.dynamic, (1, 40)), kernels, plans)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("factored")
    ops, library = [packed(spec) for spec in FOLDED], folder / "factored.so"
    pack_library(ops, "x86-64", toolchain(), library)
    write_pack(folder / "pack", library, document(ops, "x86-64"), lambda _: None)
    return folder / "pack"


def drawn(op: Op, m: int, n: int) -> dict[str, Any]:
    return numerics.draw(op, Shape.of({axis: {"m": m, "n": n}[axis] for axis in op.axes}), np.random.default_rng([m, n]))


@pytest.mark.parametrize("spec", list(FOLDED))
def test_parts_are_joined_right_and_to_the_same_bits_on_any_threads(path, spec):
    op = Op.parse(spec)
    assert joined(graph_of(op.meaning, op.all_options())) == FOLDED[spec]
    outputs: dict[tuple[int, int], list[Any]] = {}
    for threads in (1, 2, THREADS):
        with haotuner.load(path, threads=threads) as pack:
            for m, n in SIZES:
                arrays = drawn(op, m, n)
                out = numerics.Guarded(op.operand_shape(op.meaning.output, Shape.of(m=m, n=n)))
                pack.op(op.name).run(numerics.spaced(arrays["x"], 3), out=out.inner)
                assert numerics.check(op, arrays, out.inner).wrong == 0, (m, n, threads)
                assert not out.touched()
                outputs.setdefault((m, n), []).append(out.inner.copy())
    for results in outputs.values():
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


def test_a_nan_anywhere_and_infinities_reach_the_result(path):
    with haotuner.load(path, threads=2) as pack:
        for column in (0, 2000, 4098):
            x = np.ones((1, 4099), np.float32)
            x[0, column] = np.nan
            for name in ("reduce_sum", "reduce_max", "reduce_mean", "reduce_prod"):
                assert np.isnan(pack.op(name).run(x)).all(), (name, column)
        x = np.full((1, 4099), -np.inf, np.float32)
        assert pack.op("reduce_max").run(x)[0] == -np.inf
        several = np.random.default_rng(0).standard_normal((2, 3, 8, 5), dtype=np.float32)
        assert np.array_equal(pack.op("reduce_max").run(several), several.max(-1))
        out = np.empty((2, 3, 8), np.float32)
        assert pack.op("reduce_max").run(several, out=out) is out and np.array_equal(out, several.max(-1))
        assert pack.op("reduce_sum").run(x)[0] == -np.inf


def test_which_folds_may_be_cut():
    for spec in ("softmax:", "layer_norm:", "rms_norm:", "max_pool:kernel=3", "transpose:", "gelu:"):
        op = Op.parse(spec)
        assert joined(graph_of(op.meaning, op.all_options())) == {}, spec
    backend, op = CpuBackend(), Op.parse("reduce_sum:")
    assert backend.ways(op, 2, one_order=False) == ("m", "n", "serial")
    assert backend.ways(op, 2, one_order=True) == ("m", "serial") and backend.ways(op, 1, one_order=False) == ("serial",)


def test_one_row_of_a_cell_of_many_has_its_terms_shared(path, tmp_path):
    op = packed("reduce_sum:", "m")
    pack_library([op], "x86-64", toolchain(), tmp_path / "rows.so")
    write_pack(tmp_path / "rows", tmp_path / "rows.so", document([op], "x86-64"), lambda _: None)
    x = np.random.default_rng(0).standard_normal((3, 70_000), dtype=np.float32)
    with haotuner.load(tmp_path / "rows", threads=2) as rows, haotuner.load(path, threads=2) as terms:
        served, other = rows.op("reduce_sum"), terms.op("reduce_sum")
        np.testing.assert_array_equal(served.run(x[:1]), other.run(x[:1]))
        assert numerics.check(Op.parse("reduce_sum:"), {"x": x}, served.run(x)).wrong == 0
        assert (served.run(x[:1, :5000]) != other.run(x[:1, :5000])).any(), "too few terms to share: summed in one"


def test_a_row_keeps_its_bits_in_any_batch_where_no_plan_cuts_a_fold(path, tmp_path):
    op = packed("reduce_sum:", "m")
    parts = packed("reduce_sum:")
    assert _joining(parts.kernels, parts.plans) == list(parts.kernels), "a plan in parts joins them"
    kernels = _joining(op.kernels, op.plans)
    assert [kernel.joins for kernel in kernels] == [{}]
    op = replace(op, kernels=kernels)
    pack_library([op], "x86-64", toolchain(), tmp_path / "order.so")
    write_pack(tmp_path / "order", tmp_path / "order.so", document([op], "x86-64"), lambda _: None)
    x = np.random.default_rng(0).standard_normal((9, 70_000), dtype=np.float32)
    outputs = []
    for threads in (1, 2):
        with haotuner.load(tmp_path / "order", threads=threads) as pack:
            served = pack.op("reduce_sum")
            outputs += [
                np.concatenate([served.run(x[first : first + rows]) for first in range(0, 9, rows)]) for rows in (1, 3, 9)
            ]
    for other in outputs[1:]:
        np.testing.assert_array_equal(other, outputs[0])
