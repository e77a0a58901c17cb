"""Attention in a pack: served whole and shared, on views, empty requests, sizes beyond the tuned range, and in torch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner import judge
from haotuner.backends.cpu.pack_sliced import PackedSliced, SlicedEntry, SlicedKernel, SlicedPlan
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.backends.toolchain import Toolchain
from haotuner.generate.online_schedule import DEPTH, ROWS, OnlineSchedule
from haotuner.microkernels.cpu.online import CpuOnline
from haotuner.ops.attention import ATTENTION
from haotuner.pack.write import write_pack
from haotuner.words.op import Op
from haotuner.words.shape import Shape
from tests.serving.packs import document

SPECS = ("attention:d=24", "attention:d=8,causal=end,mask=keys")
SCHEDULES = (
    OnlineSchedule(lanes=4, along=DEPTH, rows=1, block=2, keys=8, out_rows=1),
    OnlineSchedule(lanes=4, along=ROWS, rows=2, block=3, keys=8, out_rows=4),
)


def packed(spec: str) -> PackedSliced:
    """A cell for few and one for many queries."""
    op, family = Op.parse(spec), CpuOnline(ATTENTION)
    made = [family.kernel_of(schedule, op) for schedule in SCHEDULES]
    kernels = [SlicedKernel(name=k.name, tile=dict(family.tile(k).extent), kernel=k) for k in made]
    entries = [SlicedEntry(kernel=0, axis="b"), SlicedEntry(kernel=1, axis=op.parallel[-1])]
    plans = [SlicedPlan(threads=count, grid={"t": (3, 40)}, entries=entries) for count in (1, 2)]
    return PackedSliced.of(op, dict.fromkeys(op.dynamic, (1, 40)), kernels, plans)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    ops, library = [packed(spec) for spec in SPECS], folder / "attention.so"
    pack_library(ops, "x86-64", Toolchain.find(), library)
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
    for b, (t, s) in product((1, 3), ((1, 1), (2, 70), (17, 9), (60, 33))):
        shape = Shape.of(b=b, t=t, s=s)
        inputs = judge.draw(op, shape, rng)
        assert judge.check(op, inputs, served.run(*inputs.values())).wrong == 0, shape
        views = {name: judge.spaced(values, 3) for name, values in inputs.items()}
        guarded = judge.Guarded(op.operand_shape(op.meaning.output, shape))
        served.run(**views, out=guarded.inner)
        assert judge.check(op, inputs, guarded.inner).wrong == 0 and not guarded.touched(), shape


def test_odd_numbers_are_answered_as_numpy_answers_them(pack: Any) -> None:
    served, rng = pack.op("attention_d24"), np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, 24), dtype=np.float32) for n in (5, 9, 9))
    assert (served.run(q, k[:, :0], v[:, :0]) == 0).all(), "a sum over no keys"
    assert served.run(q[:, :0], k, v).shape == (2, 0, 24)
    q[0, 1, 2], k[1, 3, 4] = np.nan, np.nan
    found = served.run(q, k, v)
    assert np.isnan(found[0, 1]).all() and np.isnan(found[1]).all() and not np.isnan(found[0, [0, 2, 3, 4]]).any()
    q[:] = 100.0  # scores of some thousands: exp of them would overflow
    k[:] = rng.standard_normal(k.shape)
    assert np.isfinite(served.run(q, k, v)).all()
    masked = pack.op("attention_d8_causalend_maskkeys")
    q, k, v = (rng.standard_normal((1, 6, 8), dtype=np.float32) for _ in range(3))
    mask = np.zeros((1, 6), np.float32)
    mask[:, :4] = -np.inf
    found = masked.run(q, k, v, mask)
    assert np.isnan(found[:, :4]).all() and np.isfinite(found[:, 4:]).all(), "queries that see nothing have NaN"


def test_torch_has_it_as_an_op(path: Path) -> None:
    torch = pytest.importorskip("torch")
    import haotuner.torch as adapter

    with torch.inference_mode(), haotuner.load(path, threads=1) as pack, adapter.register(pack):
        q, k, v = (torch.randn(2, 3, n, 24) for n in (11, 20, 20))
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        assert torch.allclose(torch.ops.haotuner.attention_d24(q, k, v), want, atol=1e-5)
