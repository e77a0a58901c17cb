"""Few queries against many keys on CPUs: threads fold parts of the keys, which are joined with rescaling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_op import PackedSliced, SlicedEntry, SlicedKernel, SlicedPlan
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.microkernels.cpu.online_softmax import CpuOnline
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.device import Device
from haotuner.spec.limits import PARTIAL_FLOATS
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.run_folder import toolchain
from tests.runtime.native_builds import ASAN, HERE, LIBRARY, cc
from tests.runtime.packs import document
from tests.runtime.test_generated_doors import Call, served

pytestmark = pytest.mark.long

SPECS = ("attention:d=12", "attention:d=8,causal=end", "attention:d=8,mask=full", "attention:d=16,heads=apart")
DEVICE = Device(id="d", name="d", kind="cpu", arch="x86-64", compute_units=3, wave_width=4, registers_per_thread=16)
THREADS = 3
SIZES = ((1, 1, 1), (1, 1, 4099), (2, 1, 300), (1, 3, 517), (3, 2, 64), (2, 5, 7), (70, 2, 65))  # batch, queries, keys


def packed(spec: str) -> PackedSliced:
    """A cell whose keys are cut, with a kernel of whole rows beside."""
    op = Op.parse(spec)
    family = CpuOnline(op.meaning)
    along, kernels = family.staged(op, DEVICE, THREADS)
    assert along == "s"
    sliced = [
        SlicedKernel(name=k.name, tile=dict(family.tile(k).extent), kernel=k, stages=family.stages(k))
        for k in (next(family.points(op, DEVICE)), kernels[0])
    ]
    plans = [SlicedPlan(threads=THREADS, grid={"t": (8,)}, entries=[SlicedEntry(kernel=1, axis=along)])]
    return PackedSliced.of(op, dict.fromkeys(op.dynamic, (1, 40)), sliced, plans)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    ops, library = [packed(spec) for spec in SPECS], folder / "keys.so"
    pack_library(ops, "x86-64", toolchain(), library)
    write_pack(folder / "pack", library, document(ops, "x86-64"), lambda _: None)
    return folder / "pack"


def shapes(op: Op) -> Iterator[Shape]:
    for batch, queries, keys in SIZES:
        own = {"b": batch, "t": queries, "s": keys}
        yield Shape.of({axis: own.get(axis, 3) for axis in op.dynamic})


@pytest.mark.parametrize("spec", SPECS)
def test_parts_are_right_and_to_the_same_bits_on_any_threads(path: Path, spec: str) -> None:
    op, outputs = Op.parse(spec), dict[Shape, list[Any]]()
    for threads in (1, 2, THREADS):
        with haotuner.load(path, threads=threads) as pack:
            for seed, shape in enumerate(shapes(op)):
                inputs = numerics.draw(op, shape, np.random.default_rng(seed))
                out = numerics.Guarded(op.operand_shape(op.meaning.output, shape))
                views = {name: numerics.spaced(value, 3) for name, value in inputs.items()}
                pack.op(op.name).run(**views, out=out.inner)
                assert numerics.check(op, inputs, out.inner).wrong == 0 and not out.touched(), (shape, threads)
                outputs.setdefault(shape, []).append(out.inner.copy())
    for first, *others in outputs.values():
        for other in others:
            np.testing.assert_array_equal(other, first)
    assert max(shape["b"] * shape["t"] for shape in outputs) * 6 * 14 > PARTIAL_FLOATS, "one of them has no room"


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_nan_reaches_its_row_and_keys_that_are_masked_out_count_for_nothing(path: Path) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 8), dtype=np.float32) for n in (2, 900, 900))
    mask = np.zeros((1, 2, 900), np.float32)
    mask[0, :, 300:600] = -np.inf
    op = Op.parse(SPECS[2])
    for threads in (1, THREADS):
        with haotuner.load(path, threads=threads) as pack:
            served_op = pack.op(op.name)
            arrays = dict(zip((operand.name for operand in op.meaning.inputs), (q, k, v, mask), strict=True))
            few = {
                name: np.delete(array, slice(300, 600), axis=-1 if name == "mask" else 1) for name, array in arrays.items()
            }
            few["q"] = q
            np.testing.assert_allclose(served_op.run(**arrays), served_op.run(**few), rtol=2e-5, atol=2e-6)
            arrays["q"] = q.copy()
            arrays["q"][0, 1, 3] = np.nan
            y = served_op.run(**arrays)
            assert np.isnan(y[0, 1]).all() and np.isfinite(y[0, 0]).all()
            arrays |= {"q": q, "mask": np.where(np.arange(2)[:, None] == 1, np.float32(-np.inf), mask)}
            assert numerics.check(op, arrays, served_op.run(**arrays)).wrong == 0, "a query that sees no key"


def test_from_c(path: Path, tmp_path: Path) -> None:
    program = cc([HERE / "generated.c", *LIBRARY], tmp_path / "program", *ASAN)
    for threads in (1, THREADS):
        calls: list[Call] = []
        for op in map(Op.parse, SPECS):
            for shape in list(shapes(op))[:6]:
                where = tmp_path / f"{threads}-{len(calls)}"
                calls.append(Call(where, op, numerics.draw(op, shape, np.random.default_rng(0)), shape))
        assert served(program, path, threads, [call.line for call in calls]) == ["ok"] * len(calls)
        for call in calls:
            call.judge()


def test_policies_decide_on_parts_where_workers_may_share_keys() -> None:
    from dataclasses import replace

    op = Op.parse(SPECS[0])
    family = CpuOnline(op.meaning)
    alone = family.space(op, DEVICE)
    space = replace(alone, workers=THREADS)
    part_counts = {space.schedule(point).parts for point in space.points}
    assert part_counts == {1, 2 * THREADS} and {alone.schedule(point).parts for point in alone.points} == {1}
    kernel = next(family.kernel_of(schedule, op) for schedule in map(space.schedule, space.points) if schedule.parts > 1)
    assert "workers share s in 6 parts" in family.decisions(kernel)["parallel"]
    moved = family.bytes_by_level(kernel, {"b": 1, "t": 1, "s": 500}, DEVICE)
    assert moved["registers"] > moved["least"] > 2 * 500 * 12 * 4
