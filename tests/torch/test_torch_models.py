"""Torch models around served layers: encoders with masks, casts, copies, saved and loaded state, what is left and why."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner  # noqa: E402
import haotuner.torch as adapter  # noqa: E402
from tests.runtime.conftest import DENSE  # noqa: E402
from tests.runtime.native_builds import c_pack  # noqa: E402
from tests.runtime.packs import packed_op  # noqa: E402
from tests.torch.test_torch import Net, close  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
WIDE, NARROW = "dense_n24_k8", "dense_n8_k24"  # the two linears of an encoder layer of width 8


@pytest.fixture(scope="module")
def encoder_pack(tmp_path_factory) -> Any:
    return c_pack(tmp_path_factory.mktemp("encoder") / "pack", [packed_op(name, 4, 8, (1, 2)) for name in (WIDE, NARROW)])


@pytest.fixture
def pack(built_pack) -> Iterator[Any]:
    with haotuner.load(built_pack.path, threads=1) as opened:
        yield opened


MASKS = ("none", "left", "scattered", "causal", "both")
CASES = list(itertools.product((False, True), (False, True), ("relu", "gelu"), MASKS))


@pytest.mark.long
@pytest.mark.parametrize(("norm_first", "batch_first", "activation", "masks"), CASES)
@pytest.mark.parametrize("last_norm", [False, True])
def test_encoders_give_what_they_gave(encoder_pack, norm_first, batch_first, activation, masks, last_norm):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 24, activation=activation, batch_first=batch_first, norm_first=norm_first)
    norm = torch.nn.LayerNorm(8) if last_norm else None
    model = torch.nn.TransformerEncoder(layer, 2, norm=norm).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
    options: dict[str, Any] = {}
    if masks in ("left", "both"):
        options["src_key_padding_mask"] = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]], dtype=torch.bool)
    if masks == "scattered":
        options["src_key_padding_mask"] = torch.tensor([[0, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)
    if masks in ("causal", "both"):
        options["mask"] = torch.nn.Transformer.generate_square_subsequent_mask(5)
    with torch.inference_mode(), haotuner.load(encoder_pack, threads=1) as pack:
        expected = model(x, **options)
        assert len(adapter.swap(model, pack).replaced) == 6  # the input projections have the size of linear1
        output = model(x, **options)
        assert output.shape == expected.shape and close(output, expected)
        assert close(copy.deepcopy(model)(x, **options), expected)
        assert pack.stats()[WIDE]["calls"] >= 2


def test_results_have_the_type_that_torch_gives(pack):
    torch.manual_seed(1)
    net = Net().eval()
    served = copy.deepcopy(net)
    adapter.swap(served, pack)
    x = torch.randn(5, 37)
    with torch.inference_mode():
        for kind in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=kind):
                for tensor in (x, x.to(kind)):
                    expected, output = net(tensor), served(tensor)
                    assert expected.dtype == output.dtype == kind
                    assert torch.allclose(expected.float(), output.float(), atol=0.1, rtol=0.05)
                assert served.first(x).dtype == kind
            low, high = copy.deepcopy(net).to(kind), copy.deepcopy(served).to(kind)
            expected, output = low(x.to(kind)), high(x.to(kind))
            assert expected.dtype == output.dtype == kind and torch.allclose(
                expected.float(), output.float(), atol=0.1, rtol=0.05
            )
            assert high.first.weight.dtype == high.first.bias.dtype == kind
            with pytest.raises(TypeError, match="x has dtype torch.float32"):
                high.first(x)
            assert close(high.float().first(x), low.float().first(x))  # weights stay rounded, as torch leaves them
        assert served.double().first(x.double()).dtype == torch.float64
        assert close(served.to("cpu").float()(x), net(x))


def test_a_served_layer_stays_on_the_cpu(pack):
    net = Net().eval()
    adapter.swap(net, pack)
    with pytest.raises(ValueError, match="asked to move to meta.*then swap"):
        net.to("meta")


def test_deep_copies_share_the_weight_and_are_served(pack):
    net = Net().eval()
    x = torch.randn(4, 37)
    with torch.inference_mode():
        expected = net(x)
        adapter.swap(net, pack)
        twin = copy.deepcopy(net)
        assert isinstance(twin.first, adapter.PackedLinear) and twin.first is twin.tied and twin.first is not net.first
        assert twin.first.packed.data_ptr() == net.first.packed.data_ptr()
        assert close(twin(x), expected)
        net.first.load_state_dict({"weight": torch.zeros(100, 37), "bias": torch.ones(100)})
        assert (net.first(x) == 1).all() and close(twin(x), expected)
    pack.close()
    with pytest.raises(haotuner.errors.PackClosed), torch.inference_mode():
        twin.first(x)


def test_pickled_and_saved_models_are_plain_ones(pack, tmp_path):
    net = Net().eval()
    x = torch.randn(4, 37)
    with torch.inference_mode():
        expected = net(x)
        adapter.swap(net, pack)
        stream = io.BytesIO()
        torch.save(net, stream)
        stream.seek(0)
        for back in (pickle.loads(pickle.dumps(net)), torch.load(stream, weights_only=False)):
            assert type(back.first) is torch.nn.Linear and back.first is back.tied and not back.training
            assert torch.equal(back.first.weight, net.first.weight) and close(back(x), expected)
            assert set(adapter.swap_linears(back, pack)) == {"first", "blocks.0", "tied", "plain"}
            assert close(back(x), expected)


def test_state_goes_round(pack):
    net, other = Net().eval(), Net().eval()
    x = torch.randn(6, 37)
    plain = {key: value.clone() for key, value in net.state_dict().items()}
    adapter.swap(net, pack)
    state = net.state_dict()
    assert list(state) == list(plain) and all(torch.equal(state[key], plain[key]) for key in plain)
    adapter.swap(other, pack)
    with torch.inference_mode():
        assert not close(other(x), net(x))
        assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
        assert torch.equal(other(x), net(x))
        fresh = Net().eval()
        fresh.load_state_dict(state, strict=True)
        assert close(fresh(x), net(x))
        for key, value in (("first.weight", torch.zeros(3, 3)), ("first.bias", torch.zeros(2))):
            with pytest.raises(RuntimeError, match=f"size mismatch for {key}"):
                other.load_state_dict({**state, key: value})
        with pytest.raises(RuntimeError, match="Missing key.*plain.weight"):
            other.load_state_dict({key: value for key, value in state.items() if key != "plain.weight"})
        with pytest.raises(RuntimeError, match="Unexpected key.*plain.bias"):
            other.load_state_dict({**state, "plain.bias": torch.zeros(100)})
        other.load_state_dict({"plain.weight": torch.zeros(100, 37)}, strict=False)
        assert not other.plain(x).any() and torch.equal(other.first(x), net.first(x))
        half = {key: value.bfloat16() for key, value in state.items()}
        other.load_state_dict(half)
        assert torch.equal(other.first.weight, plain["first.weight"].bfloat16().float())


def test_loaded_state_shows_in_compiled_models(built_pack):
    with haotuner.load(built_pack.path, threads=1) as pack, adapter.register(pack) as handle, torch.inference_mode():
        net = torch.nn.Sequential(torch.nn.Linear(37, 100)).eval()
        adapter.swap(net, pack, handle)
        compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
        x = torch.randn(4, 37)
        assert close(compiled(x), net(x))
        net.load_state_dict({"0.weight": torch.zeros(100, 37), "0.bias": torch.full((100,), 2.0)})
        assert (compiled(x) == 2).all() and (net(x) == 2).all()


def test_what_was_left_and_why(pack):
    class Odd(torch.nn.Linear):  # type: ignore[misc]
        pass

    model = torch.nn.ModuleDict(
        {
            "taken": torch.nn.Linear(37, 100),
            "size": torch.nn.Linear(37, 41),
            "odd": Odd(37, 100),
            "low": torch.nn.Linear(37, 100).bfloat16(),
            "far": torch.nn.Linear(37, 100, device="meta"),
            "hooked": torch.nn.Linear(37, 100),
            "lazy": torch.nn.LazyLinear(100),
            "conv": torch.nn.Conv1d(4, 4, 3),
            "attention": torch.nn.MultiheadAttention(8, 2),
            "words": torch.nn.Embedding(5, 5),
            "norm": torch.nn.LayerNorm(5),
            "normed": torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(37, 100)),
        }
    )
    model["hooked"].register_forward_hook(lambda *_: None)
    before = {name: module for name, module in model.named_modules() if name}
    done = adapter.swap(model, pack)
    assert done.replaced == ("taken",)
    reasons = {
        "size": "not in the pack: tune it with --op dense:n=41,k=37",
        "odd": "Odd is not served",
        "low": "bfloat16",
        "far": "lives on meta",
        "hooked": "hooks",
        "lazy": "its weight has no size yet",
        "conv": "not in the pack: tune it with --op conv1d:c=4,f=4,s=3",
        "attention.in_proj_weight": "not in the pack: tune it with --op dense:n=24,k=8",
        "attention.out_proj": "output projection",
        "normed": "weight is parametrized",
    }
    assert set(done.left) == set(reasons)
    assert [(name, done.left[name]) for name, words in reasons.items() if words not in done.left[name]] == []
    assert all(model.get_submodule(name) is module for name, module in before.items() if name != "taken")
    text = str(done)
    assert text.splitlines()[0] == "1 of 11 layers with a weight are served from the pack"
    assert "left (1): not in the pack: tune it with --op dense:n=41,k=37: size" in text.splitlines()
    assert text.splitlines()[-1].startswith("served weights are packed copies: a change, in place or by load_state_dict")
    assert not done.unread and "served weights" not in str(adapter.swap(model, pack))


class Branching(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = torch.nn.Linear(37, 100), torch.nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.act(self.layer(x)) if x.sum() > 0 else self.layer(x)


def test_a_forward_with_branches_is_read(pack):
    net = torch.nn.Sequential(Branching()).eval()
    with torch.inference_mode():
        xs = torch.rand(3, 37), -torch.rand(3, 37)
        expected_outputs = [net(x) for x in xs]
        done = adapter.swap(net, pack)
        assert done.replaced == ("0.layer",) and not done.unread
        assert all(close(net(x), expected) for x, expected in zip(xs, expected_outputs, strict=True))


def test_ops_that_a_model_needs():
    net = Net().eval()
    assert adapter.ops_of(net) == {"dense:n=100,k=37": 4, "dense:n=37,k=100": 2}
    assert adapter.ops_of(net, torch.randn(3, 37)) == {"dense:n=37,k=100": 3, "dense:n=100,k=37": 4}
    assert not net.first._forward_pre_hooks
    from haotuner.spec.op import Op

    assert Op.parse(next(iter(adapter.ops_of(net)))).name == DENSE
    with pytest.raises(RuntimeError):
        adapter.ops_of(net, torch.randn(3, 38))
    assert not net.first._forward_pre_hooks
    assert adapter.ops_of(torch.nn.Conv1d(4, 4, 3)) == {}


def test_tied_weights_stay_tied_and_what_is_not_is_said(encoder_pack):
    net = torch.nn.ModuleDict({"words": torch.nn.Embedding(24, 8), "a": torch.nn.Linear(8, 24, bias=False)})
    net["b"], net["c"] = torch.nn.Linear(8, 24, bias=False), torch.nn.Linear(8, 24, bias=False)
    net["c"].weight, net["b"].weight = net["words"].weight, net["a"].weight
    keys, x = list(net.state_dict()), torch.randn(3, 8)
    with torch.inference_mode(), haotuner.load(encoder_pack, threads=1) as pack:
        done = adapter.swap(net.eval(), pack)
        assert done.tied == {"c": "words.weight"} and "tied: c shares words.weight" in str(done)
        assert net["a"] is net["b"] and net["c"] is not net["a"] and list(net.state_dict()) == keys
        net.load_state_dict({key: value * 2 for key, value in net.state_dict().items()})
        assert close(net["c"](x), torch.nn.functional.linear(x, net["words"].weight))


def test_encoders_under_autocast_have_the_types_of_torch_s_plain_path(encoder_pack):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 24, batch_first=True)
    net, x = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(3, 5, 8)
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.inference_mode(), haotuner.load(encoder_pack, threads=1) as pack, torch.autocast("cpu", torch.bfloat16):
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            expected = net(x).dtype
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
        assert adapter.swap(net, pack).replaced and net(x).dtype is expected
