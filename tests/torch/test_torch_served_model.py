"""A whole model of a pack as a module."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import haotuner  # noqa: E402
from haotuner.errors import UsageError  # noqa: E402
from haotuner.graph.extents import dimension  # noqa: E402
from haotuner.graph.graph import GraphBuilder  # noqa: E402
from haotuner.torch import ServedModel  # noqa: E402
from tests.runtime.model_packs import model_pack  # noqa: E402


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Any:
    both, alone, b = GraphBuilder(), GraphBuilder(), dimension("batch")
    x, more = both.input("x", (b, 3)), both.input("more", (b,), "int64")
    line = alone.input("x", (b,))
    graphs = {"both": both.finish(both.map("mul", x, 2.0), both.map("add", more, 1)),
              "alone": alone.finish(alone.map("max", line, 0.0))}  # fmt: skip
    return haotuner.load(model_pack(tmp_path_factory.mktemp("served") / "pack", graphs), threads=1)


def test_a_whole_model_is_a_module(pack):
    x, more = torch.randn(4, 3), torch.arange(4)
    for outputs in (ServedModel(pack, "both")(x, more), torch.nn.Sequential(ServedModel(pack, "both"))[0](x, more=more)):
        torch.testing.assert_close(outputs, (x * 2, more + 1), rtol=0, atol=0)
    assert torch.equal(ServedModel(pack, "alone")(x[:, 0]), x[:, 0].contiguous().relu())
    assert not list(ServedModel(pack, "both").parameters())


def test_tensors_of_bf16_go_in_and_come_out(tmp_path):
    pytest.importorskip("ml_dtypes")
    g = GraphBuilder()
    graph = g.finish(g.map("neg", g.input("x", (dimension("batch"), 3), "bf16")))
    x = torch.randn(4, 3).bfloat16()
    with haotuner.load(model_pack(tmp_path / "pack", {"turned": graph}), threads=1) as opened:
        assert torch.equal(ServedModel(opened, "turned")(x), -x)


def test_copies_share_the_pack(pack):
    module, x, more = ServedModel(pack, "both").eval(), torch.randn(2, 3), torch.arange(2)
    module.register_forward_hook(lambda _, inputs, outputs: outputs[0])
    for twin in (copy.deepcopy(module), copy.copy(module), copy.deepcopy(torch.nn.Sequential(module))[0]):
        assert torch.equal(twin(x, more), x * 2) and not twin.training
    with pytest.raises(TypeError, match="cannot be pickled; pickle the pack's path"):
        pickle.dumps(module)
    with pytest.raises(UsageError, match="export the model that the pack was tuned from"):
        torch.func.vmap(module)(x[:, None], more[:, None])


def test_what_a_module_cannot_take_is_said(pack):
    module, x, more = ServedModel(pack, "both"), torch.randn(2, 3), torch.arange(2)
    with pytest.raises(UsageError, match="more is missing"):
        module(x)
    with pytest.raises(UsageError, match="once each"):
        module(x, more, x=x)
    with pytest.raises(UsageError, match="must be an array of float32"):
        module(x.double(), more)
    with pytest.raises(ValueError, match="requires grad"):
        module(x.requires_grad_(), more)
    assert np.shape(module(x.detach(), more)[0]) == (2, 3)
