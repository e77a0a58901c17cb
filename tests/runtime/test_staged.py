"""Few long rows of softmax and norms, cut among threads although their folds are read again: stages, joined in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_op import PackedSliced, SlicedEntry, SlicedKernel, SlicedPlan
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.codegen.multi_stage import StagePlan
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.device import Device
from haotuner.spec.limits import PARTIAL_FLOATS
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.codegen.groups_beside import joint, norm
from tests.run_folder import toolchain
from tests.runtime.native_builds import ASAN, HERE, LIBRARY, cc
from tests.runtime.packs import document
from tests.runtime.test_generated_doors import Call, served

pytestmark = pytest.mark.long

SPECS = {  # how many stages, and the numbers that a part leaves of a row
    "softmax:": (3, 2),
    "log_softmax:": (3, 2),
    "layer_norm:affine=scale_bias,eps=1e-12": (3, 2),
    "rms_norm:affine=scale": (2, 1),
    "add_layer_norm:": (3, 2),
    joint(norm(), "staged")[0].name: (3, 3),  # five outputs
}
THREADS = 3
PARTS = 2 * THREADS
SIZES = ((1, 1), (1, 4099), (3, 517), (2, 8), (1, 48), (3, 5), (700, 33), (PARTIAL_FLOATS // PARTS // 2 + 1, 9))


def packed(spec: str) -> PackedSliced:
    """A cell in stages, with a kernel of whole rows beside."""
    op = Op.parse(spec)
    family = CpuGenerated(op.meaning)
    device = Device(id="d", name="d", kind="cpu", arch="x86-64", compute_units=1, wave_width=4, registers_per_thread=16)
    whole = family._kernel(4, 2, 2, 0, family._option_params(op.all_options()))
    along, staged = family.staged(op, device, THREADS)
    kernels = [
        SlicedKernel(
            name=k.name, tile=dict(family.tile(k).extent), kernel=k, in_place=family.in_place(k), stages=family.stages(k)
        )
        for k in (whole, staged[0])
    ]
    plans = [SlicedPlan(threads=THREADS, grid={"m": (8,)}, entries=[SlicedEntry(kernel=1, axis=along)])]
    return PackedSliced.of(op, dict.fromkeys(op.dynamic, (1, 40)), kernels, plans)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged")
    ops, library = [packed(spec) for spec in SPECS], folder / "staged.so"
    pack_library(ops, "x86-64", toolchain(), library)
    write_pack(folder / "pack", library, document(ops, "x86-64"), lambda _: None)
    return folder / "pack"


@pytest.fixture(params=[1, 2, THREADS])
def pack(path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with haotuner.load(path, threads=request.param) as opened:
        yield opened


def drawn(op: Op, m: int, n: int) -> dict[str, Any]:
    return numerics.draw(op, Shape.of(m=m, n=n), np.random.default_rng([m, n]))


@pytest.mark.parametrize("spec", list(SPECS))
def test_stages_are_right_for_every_size_and_for_rows_without_room(pack: Any, spec: str) -> None:
    op = Op.parse(spec)
    for m, n in SIZES:
        arrays = drawn(op, m, n)
        outs = {
            operand.name: numerics.Guarded(op.operand_shape(operand, Shape.of(m=m, n=n))) for operand in op.meaning.written
        }
        into = tuple(outs[operand.name].inner for operand in pack.op_entry(op.name).in_file_order)
        spaced = {name: numerics.spaced(array, 3) for name, array in arrays.items()}
        pack.op(op.name).run(**spaced, out=into if len(into) > 1 else into[0])
        assert (
            CallCase(op, Shape.of(m=m, n=n), arrays).verdict({name: guarded.inner for name, guarded in outs.items()}).wrong
            == 0
        ), (m, n)
        assert not any(guarded.touched() for guarded in outs.values()), (m, n)


@pytest.mark.parametrize("spec", list(SPECS))
def test_the_bits_are_the_plan_s_whoever_computes_them(path: Path, spec: str) -> None:
    op, outputs = Op.parse(spec), []
    arrays = drawn(op, 2, 5003)
    for threads in (1, 2, THREADS):
        with haotuner.load(path, threads=threads) as opened:
            result = opened.op(op.name).run(**arrays)
            outputs.append(np.concatenate([output.ravel() for output in result]) if isinstance(result, tuple) else result)
    for other in outputs[1:]:
        np.testing.assert_array_equal(other, outputs[0])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_nan_reaches_its_row_and_rows_of_infinities_are_as_numpy_has_them(pack: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 1003), dtype=np.float32)
    x[0, 700], x[1] = np.nan, -np.inf
    y = pack.op("softmax").run(x)
    assert np.isnan(y[:2]).all() and abs(float(y[2].sum()) - 1) < 1e-5
    x[1, 5] = 0.0
    y = pack.op("softmax").run(x)
    assert y[1, 5] == 1.0 and float(y[1].sum()) == 1.0
    x[2, 1002] = np.inf
    assert np.isnan(pack.op("rms_norm_scale").run(x, np.ones(1003, np.float32))[2, 1002])


def test_in_place_and_empty_requests(pack: Any) -> None:
    x = np.random.default_rng(0).standard_normal((2, 1003), dtype=np.float32)
    expected = pack.op("softmax").run(x)
    pack.op("softmax").run(x, out=x)
    np.testing.assert_array_equal(x, expected)
    assert pack.op("softmax").run(np.zeros((0, 5), np.float32)).shape == (0, 5)
    assert pack.op("softmax").run(np.zeros((2, 0), np.float32)).shape == (2, 0)


def test_from_c(path: Path, tmp_path: Path) -> None:
    program = cc([HERE / "generated.c", *LIBRARY], tmp_path / "program", *ASAN)
    for threads in (1, 2, THREADS):
        calls: list[Call] = []
        for spec in SPECS:
            op = Op.parse(spec)
            for m, n in SIZES[:6]:
                calls.append(Call(tmp_path / f"{threads}-{len(calls)}", op, drawn(op, m, n), Shape.of(m=m, n=n)))
        assert served(program, path, threads, [call.line for call in calls]) == ["ok"] * len(calls)
        for call in calls:
            call.judge()


def test_stages_are_a_condition_on_the_graph() -> None:
    device = Device(id="d", name="d", kind="cpu", arch="x86-64", compute_units=2, wave_width=4, registers_per_thread=16)
    for spec, (calls, left) in SPECS.items():
        op = Op.parse(spec)
        family = CpuGenerated(op.meaning)
        along, kernels = family.staged(op, device, 2)
        assert along == "n" and all("4 parts of a row" in family.decisions(kernel)["computation"] for kernel in kernels)
        assert family.stages(kernels[0]) == StagePlan(along="n", calls=calls, partials=left, parts=4)
        moved = family.bytes_by_level(kernels[0], {"m": 1, "n": 4096}, device)
        assert moved["registers"] > moved["least"]
    for spec in ("reduce_sum:", "gelu:", "transpose:", "max_pool:kernel=3"):
        assert CpuGenerated(Op.parse(spec).meaning).staged(Op.parse(spec), device, 2) == ("", []), spec
