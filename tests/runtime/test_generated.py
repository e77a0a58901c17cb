"""Generated kernels in a pack: served whole and shared, on views, empty requests and sizes beyond the tuned range."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_op import PackedSliced, SlicedEntry, SlicedKernel, SlicedPlan
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.run_folder import toolchain
from tests.runtime.packs import document

SPECS = (
    "softmax:",
    "layer_norm:affine=scale_bias,eps=1e-12",
    "add_layer_norm:n=24",
    "bias_gelu:",
    "reduce_max:over=first",
    "transpose:order=heads",
    "max_pool:kernel=3,stride=2.1,pad=1",
    "avg_pool:",
    "resize:mode=linear",
    "instance_norm:affine=scale_bias,activation=relu",
    "group_norm:d=2,affine=scale_bias",
)
BOUNDS = (3, 40)


def packed(spec: str | Op) -> PackedSliced:
    """A cell for few and one for many of the first dynamic axis: scalar code by one thread, lanes by several."""
    op = Op.parse(spec) if isinstance(spec, str) else spec
    family = CpuGenerated(op.meaning)
    options, rank = family._option_params(op.all_options()), len(op.meaning.output.axes(op.all_options()))
    microkernels = [family._kernel(1, 1, rank, 0, options), family._kernel(4, 2, rank, 0, options)]
    kernels = [
        SlicedKernel(name=k.name, tile=dict(family.tile(k).extent), kernel=k, in_place=family.in_place(k))
        for k in microkernels
    ]
    share = next((axis for axis in op.parallel if axis in op.dynamic), None)
    entries = [SlicedEntry(kernel=0), SlicedEntry(kernel=1, axis=share)]
    plans = [SlicedPlan(threads=count, grid={op.dynamic[0]: BOUNDS}, entries=entries) for count in (1, 2)]
    return PackedSliced.of(op, dict.fromkeys(op.dynamic, (1, 40)), kernels, plans)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    ops, library = [packed(spec) for spec in SPECS], folder / "generated.so"
    pack_library(ops, "x86-64", toolchain(), library)
    write_pack(folder / "pack", library, document(ops, "x86-64"), lambda _: None)
    return folder / "pack"


@pytest.fixture(params=[1, 2])
def pack(path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with haotuner.load(path, threads=request.param) as opened:
        yield opened


@pytest.mark.parametrize("spec", SPECS)
def test_a_pack_serves_what_the_kind_says(pack: Any, spec: str) -> None:
    op, rng = Op.parse(spec), np.random.default_rng(0)
    served = pack.op(op.name)
    for first, last in product((1, 2, 5) if len(op.axes) > 2 else (1, 2, 5, 41), (1, 3, 17, 60)):
        shape = Shape.of({axis: last if axis == op.dynamic[-1] else first for axis in op.dynamic})
        inputs = numerics.draw(op, shape, rng, whole=False)
        verdict = numerics.check(op, inputs, served.run(*inputs.values()), whole=False)
        assert verdict.wrong == 0, (shape, str(verdict))
        views = {name: numerics.spaced(values, 3) for name, values in inputs.items()}
        guarded = numerics.Guarded(op.operand_shape(op.meaning.output, shape))
        served.run(**views, out=guarded.inner)
        assert numerics.check(op, inputs, guarded.inner, whole=False).wrong == 0 and not guarded.touched()


def test_empty_requests_are_answered(pack: Any) -> None:
    assert pack.op("softmax").run(np.zeros((0, 5), np.float32)).shape == (0, 5)
    assert pack.op("softmax").run(np.zeros((5, 0), np.float32)).shape == (5, 0)
    assert (pack.op("reduce_max_first").run(np.zeros((0, 3), np.float32)) == -np.inf).all()
    small = np.zeros((2, 3, 1, 1), np.float32)
    assert pack.op("avg_pool").run(small).shape == (2, 3, 0, 0), "the window is larger than the image"


def test_wrong_operands_are_refused(pack: Any) -> None:
    x = np.zeros((2, 3, 8, 8), np.float32)
    with pytest.raises(ValueError, match=r"avg_pool: out must be of the shape \(2, 3, 4, 4\), got \(2, 3, 5, 4\)"):
        pack.op("avg_pool").run(x, out=np.zeros((2, 3, 5, 4), np.float32))
    rows = np.zeros((4, 8), np.float32)
    with pytest.raises((TypeError, ValueError), match="softmax"):
        pack.op("softmax").run(rows.astype(np.float64))
    with pytest.raises(TypeError, match="takes x, scale, bias"):
        pack.op("layer_norm_scalebias_1em12").run(rows)


def test_torch_has_them_as_ops_with_fakes(path: Path) -> None:
    torch = pytest.importorskip("torch")
    import haotuner.torch as adapter

    with torch.inference_mode(), haotuner.load(path, threads=1) as pack, adapter.register(pack):
        ops, x = torch.ops.haotuner, torch.randn(3, 4, 12)
        assert torch.allclose(ops.softmax(x), x.softmax(-1), atol=1e-6)
        scale, bias, out = torch.randn(12), torch.randn(12), torch.empty(3, 4, 12)
        ops.layer_norm_scalebias_1em12.out(x, scale, bias, out=out)
        assert torch.allclose(out, torch.nn.functional.layer_norm(x, (12,), scale, bias, 1e-12), atol=1e-5)
        assert torch.equal(ops.reduce_max_first(x[0]), x[0].amax(0))
        image = torch.randn(2, 3, 8, 9)
        assert torch.allclose(ops.avg_pool(image), torch.nn.functional.avg_pool2d(image, 2), atol=1e-6)
        turned = x.transpose(1, 2)
        assert torch.allclose(ops.softmax(turned), turned.softmax(-1), atol=1e-6)
        compiled = torch.compile(lambda t: ops.softmax(t) + 1, backend="aot_eager", dynamic=True, fullgraph=True)
        for rows in (5, 9):
            y = torch.randn(rows, 7)
            assert torch.allclose(compiled(y), y.softmax(-1) + 1, atol=1e-6)
    with haotuner.load(path, threads=1) as pack, adapter.register(pack), pytest.raises(ValueError, match="requires grad"):
        torch.ops.haotuner.softmax(torch.randn(2, 3, requires_grad=True))
