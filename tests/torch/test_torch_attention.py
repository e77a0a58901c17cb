"""``nn.MultiheadAttention`` served from a pack: its results, masks and weights, types, copies, pickles and state."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import haotuner  # noqa: E402
import haotuner.torch as adapter  # noqa: E402
from tests.runtime.native_builds import c_pack  # noqa: E402
from tests.runtime.packs import packed_op  # noqa: E402
from tests.torch.test_torch import close  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
INTO, OUT = "dense_n24_k8", "dense_n8_k8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Any:
    return c_pack(tmp_path_factory.mktemp("attention") / "pack", [packed_op(name, 4, 8, (1, 2)) for name in (INTO, OUT)])


@pytest.fixture
def pack(folder) -> Iterator[Any]:
    with haotuner.load(folder, threads=1) as opened, torch.inference_mode():
        yield opened


def made(**words: Any) -> Any:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"a": torch.nn.MultiheadAttention(8, 2, **words)}).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def masks(queries: int, keys: int) -> list[dict[str, Any]]:
    padding = torch.zeros(3, keys, dtype=torch.bool)
    padding[1, -2:] = True
    causal = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    per_head = torch.randn(6, queries, keys)
    return [
        {}, {"key_padding_mask": padding}, {"attn_mask": causal}, {"attn_mask": per_head, "key_padding_mask": padding},
        {"attn_mask": causal, "is_causal": True}, {"attn_mask": torch.randn(queries, keys), "need_weights": False},
        {"average_attn_weights": False}, {"need_weights": False, "key_padding_mask": padding},
    ]  # fmt: skip


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_gives_what_it_gave(pack, bias, batch_first):
    model = made(bias=bias, batch_first=batch_first)
    plain = copy.deepcopy(model)["a"]
    assert adapter.swap(model, pack).replaced == ("a.in_proj_weight", "a.out_proj")
    x, other = torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    if not batch_first:
        x, other = x.transpose(0, 1), other.transpose(0, 1)
    calls = [((x, x, x), options) for options in masks(5, 5)] + [((x, other, other), options) for options in masks(5, 7)]
    calls += [((x[0], x[0], x[0]), {}), ((x[0], other[0], other[0]), {"need_weights": False})]
    for inputs, options in calls:
        (expected, weights), (output, ours) = plain(*inputs, **options), model["a"](*inputs, **options)
        assert output.shape == expected.shape and close(output, expected)
        assert (ours is None) == (weights is None) and (weights is None or close(ours, weights))
    with pytest.raises(RuntimeError, match="attn_mask"):
        model["a"](x, x, x, is_causal=True)


def test_copies_pickles_state_and_types(pack):
    model, x = made(batch_first=True), torch.randn(3, 5, 8)
    state, expected = copy.deepcopy(model.state_dict()), model["a"](x, x, x)[0]
    adapter.swap(model, pack)
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert close(copy.deepcopy(model)["a"](x, x, x)[0], expected)
    again = pickle.loads(pickle.dumps(model))
    assert type(again["a"]) is torch.nn.MultiheadAttention and close(again["a"](x, x, x)[0], expected)
    assert adapter.swap(again, pack).replaced == ("a.in_proj_weight", "a.out_proj")
    twin = copy.deepcopy(model)
    twin.load_state_dict({key: 2 * value for key, value in state.items()})
    assert not close(twin["a"](x, x, x)[0], expected) and close(model["a"](x, x, x)[0], expected)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*a\.other"):
        model.load_state_dict({**state, "a.other": torch.zeros(1)})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model["a"](x, x, x)[0].dtype is torch.bfloat16
    assert model.bfloat16()["a"](x.bfloat16(), x.bfloat16(), x.bfloat16())[0].dtype is torch.bfloat16


def test_attention_used_twice_is_one_and_what_is_left_says_why(pack):
    shared = torch.nn.MultiheadAttention(8, 2)
    odd = {
        "narrow": torch.nn.MultiheadAttention(8, 2, kdim=4),
        "low": torch.nn.MultiheadAttention(8, 2).half(),
        "added": torch.nn.MultiheadAttention(8, 2, add_bias_kv=True),
    }
    model = torch.nn.ModuleDict({"a": shared, "b": shared, **odd}).eval()
    assert adapter.ops_of(model) == {
        **{"dense:n=24,k=8": 1, "dense:n=8,k=8": 1},
        **{"dense:n=24,k=8,dtype=fp16": 1, "dense:n=8,k=8,dtype=fp16": 1},
    }
    done = adapter.swap(model, pack)
    assert model["a"] is model["b"] and {"a.in_proj_weight", "b.in_proj_weight", "a.out_proj"} <= set(done.replaced)
    assert "tune it with --op dense:n=24,k=8,dtype=fp16" in done.left["low.in_proj_weight"]
    assert "added key" in done.left["added.in_proj_weight"]
    assert "another width" in done.left["narrow.in_proj_weight"]


def test_ops_of_an_encoder_with_an_example(pack):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 24, batch_first=True).eval()
    specs = adapter.ops_of(layer, torch.randn(2, 5, 8))
    assert set(specs) == {"dense:n=24,k=8", "dense:n=8,k=8", "dense:n=8,k=24"}
