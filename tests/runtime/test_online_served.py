"""Attention in a pack: served whole and shared, on views, empty requests, sizes beyond the tuned range, and in torch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.graph.interpret import interpret
from haotuner.pack.write import write_pack
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.partition.test_orchestrate import attention
from tests.run_folder import toolchain
from tests.runtime.model_packs import model_pack
from tests.runtime.online_packs import online_op
from tests.runtime.packs import document

SPECS = ("attention:d=24", "attention:d=8,causal=end,mask=keys", "attention:d=8,heads=apart")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    ops, library = [online_op(spec) for spec in SPECS], folder / "attention.so"
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
    for b, (t, s) in product((1, 3), ((1, 1), (2, 70), (17, 9), (60, 33))):
        shape = Shape.of({axis: {"b": b, "h": 2, "t": t, "s": s}[axis] for axis in op.dynamic})
        inputs = numerics.draw(op, shape, rng)
        assert numerics.check(op, inputs, served.run(*inputs.values())).wrong == 0, shape
        views = {name: numerics.spaced(values, 3) for name, values in inputs.items()}
        guarded = numerics.Guarded(op.operand_shape(op.meaning.output, shape))
        served.run(**views, out=guarded.inner)
        assert numerics.check(op, inputs, guarded.inner).wrong == 0 and not guarded.touched(), shape


def test_odd_numbers_are_answered_as_numpy_answers_them(pack: Any) -> None:
    served, rng = pack.op("attention_d24"), np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, 24), dtype=np.float32) for n in (5, 9, 9))
    assert (served.run(q, k[:, :0], v[:, :0]) == 0).all(), "a sum over no keys"
    assert served.run(q[:, :0], k, v).shape == (2, 0, 24)
    q[0, 1, 2], k[1, 3, 4] = np.nan, np.nan
    output = served.run(q, k, v)
    assert np.isnan(output[0, 1]).all() and np.isnan(output[1]).all() and not np.isnan(output[0, [0, 2, 3, 4]]).any()
    q[:] = 100.0  # scores of some thousands: exp of them would overflow
    k[:] = rng.standard_normal(k.shape)
    assert np.isfinite(served.run(q, k, v)).all()
    masked = pack.op("attention_d8_causalend_maskkeys")
    q, k, v = (rng.standard_normal((1, 6, 8), dtype=np.float32) for _ in range(3))
    mask = np.zeros((1, 6), np.float32)
    mask[:, :4] = -np.inf
    output = masked.run(q, k, v, mask)
    assert np.isnan(output[:, :4]).all() and np.isfinite(output[:, 4:]).all(), "queries that see nothing have NaN"


def test_heads_are_taken_where_they_lie(pack: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, 3, 8), dtype=np.float32).transpose(0, 2, 1, 3) for n in (5, 9, 9))
    out = np.zeros((2, 5, 3, 8), np.float32)
    pack.op("attention_d8_headsapart").run(q, k, v, out=out.transpose(0, 2, 1, 3))
    op = Op.parse("attention:d=8,heads=apart")
    assert numerics.check(op, {"q": q, "k": k, "v": v}, out.transpose(0, 2, 1, 3)).wrong == 0


def test_a_model_has_attention_as_one_step_that_stores_no_scores(tmp_path: Path) -> None:
    graph = attention()
    with haotuner.load(model_pack(tmp_path / "pack", {"m": graph}), threads=2) as opened:
        model, rng = opened.model("m"), np.random.default_rng(0)
        assert [step["op"] for step in model.schedule.steps if step["do"] == "online"] == [
            "attention_d16_maskkeys_headsapart"
        ]
        assert not any(step["do"] == "loops" for step in model.schedule.steps)
        for b, t in ((1, 1), (2, 7), (3, 61)):
            x, mask = rng.standard_normal((b, t, 32), dtype=np.float32), np.zeros((b, 1, 1, t), np.float32)
            mask[:, :, :, t // 2 + 1 :] = -np.inf
            inputs = {"x": x, "mask": mask}
            (expected,) = interpret(graph, inputs).values()
            assert np.allclose(next(iter(model.run(inputs).values())), expected, rtol=1e-4, atol=1e-4)
        ends = [model.memory_bytes(batch=1, seq=size) for size in (1000, 2000, 4000)]
        assert ends[2] - ends[1] <= 2.01 * (ends[1] - ends[0]), "memory is linear in the tokens"


def test_torch_has_it_as_an_op(path: Path) -> None:
    torch = pytest.importorskip("torch")
    import haotuner.torch as adapter

    with torch.inference_mode(), haotuner.load(path, threads=1) as pack, adapter.register(pack):
        q, k, v = (torch.randn(2, 3, n, 24) for n in (11, 20, 20))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        assert torch.allclose(torch.ops.haotuner.attention_d24(q, k, v), expected, atol=1e-5)
