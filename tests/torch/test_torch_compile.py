"""``torch.compile(model, backend="haotuner")``: what the pack holds is served from it, the rest goes to Inductor."""

from __future__ import annotations

import json
import logging
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn = torch.nn

import haotuner  # noqa: E402
from haotuner.pack.folder import MANIFEST  # noqa: E402
from haotuner.torch import compile_backend  # noqa: E402
from tests.runtime.packs import rewrite  # noqa: E402
from tests.torch.torch_packs import chain_pack  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return chain_pack(tmp_path_factory.mktemp("compile"))


@pytest.fixture
def inductor(monkeypatch) -> Iterator[list[Any]]:
    """Graphs that go to Inductor, which run as they are: its C++ compiler takes seconds a graph."""
    graphs: list[Any] = []

    def run(module: Any, inputs: Any, settings: Any) -> Any:
        graphs.append((module, dict(settings)))
        return module.forward

    monkeypatch.setattr(compile_backend, "_inductor", run)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield graphs
    torch._dynamo.reset()


def compiled(model: Any, path: Any, **options: Any) -> Any:
    return torch.compile(model, backend=compile_backend.backend, dynamic=True, options={"pack": str(path), **options})


@torch.inference_mode(False)
def products() -> Any:
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(inplace=True)).eval()


@torch.inference_mode(False)
def images() -> Any:
    return Images().eval()


class Images(nn.Module):  # type: ignore[misc, name-defined]
    """A convolution, a batch norm and a ReLU, and what no pack holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.act = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        return self.act(self.norm(self.first(x))).mean((2, 3)).cumsum(0)


def close(a: Any, b: Any) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-5, atol=1e-5))


@torch.inference_mode()
def test_answers_are_those_of_the_eager_ops_bit_for_bit(path, inductor):
    model = products()
    served = compiled(model, path)
    with haotuner.load(path, threads=torch.get_num_threads()) as pack, haotuner.torch.register(pack) as registered:
        packed = [registered.pack_weight(op, model[at].weight) for op, at in zip(NAMES, (0, 2), strict=True)]
        for m in (2, 3, 5, 17, 64):
            x = torch.randn(m, 16)
            expected = x
            for op, weight, at in zip(NAMES, packed, (0, 2), strict=True):
                expected = getattr(torch.ops.haotuner, op)(expected, weight, model[at].bias)
            assert torch.equal(served(x), expected)
    assert not inductor, "nothing was left for Inductor"


NAMES = ("dense_n24_k16_bias_relu", "dense_n24_k24_bias_relu")


@torch.inference_mode()
def test_a_convolution_with_its_norm_is_served_and_the_rest_goes_to_inductor(path, inductor):
    model = images()
    served = compiled(model, path)
    for b, h, w in ((2, 7, 9), (3, 12, 5), (4, 30, 31)):
        x = torch.randn(b, 8, h, w)
        assert close(served(x), model(x))
    ((module, _),) = inductor
    names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert any("conv2d_c8_f8_r3_s3_pad1_bias_relu" in name for name in names)
    assert not any("batch_norm" in name or name.endswith("relu") for name in names)
    model.norm.running_mean.add_(1)
    model.norm.eps = 0.1
    assert close(served(x), model(x))


@torch.inference_mode()
def test_no_size_is_compiled_again(path, inductor):
    served = compiled(products(), path)
    served(torch.randn(7, 16))
    for m in range(2, 202):
        assert served(torch.randn(m, 16)).shape == (m, 24)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@torch.inference_mode()
def test_changed_weights_and_other_models_of_the_class_are_served(path, inductor):
    model, x = products(), torch.randn(5, 16)
    served = compiled(model, path)
    assert close(served(x), model(x))
    with torch.inference_mode(False), torch.no_grad():
        model[0].weight.mul_(-1)
        assert close(served(x), model(x))
        model[2].bias.data = torch.ones(24)
        assert close(served(x), model(x))
        model.load_state_dict(products().state_dict())
        assert close(served(x), model(x))
        other = products()
        both = compiled(other, path)
    for _ in range(2):  # in turns
        assert close(both(x), other(x)) and close(served(x), model(x))
    assert not inductor


def test_weights_go_with_their_model(path, inductor):
    weights = compile_backend._opened(str(path.resolve()), compile_backend._identity(path), torch.get_num_threads())
    before, model = len(weights), products()
    with torch.inference_mode():
        compiled(model, path)(torch.randn(3, 16))
    assert len(weights) == before + 2
    del model
    torch._dynamo.reset()
    import gc

    gc.collect()
    assert len(weights) == before


def test_gradients_and_autocast_go_to_inductor_whole(path, inductor, caplog):
    model, x = products(), torch.randn(4, 16)
    served = compiled(model, path)
    served(x).sum().backward()
    assert model[0].weight.grad is not None and "torch.inference_mode()" in caplog.text
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert served(x).dtype is torch.bfloat16 and "autocast" in caplog.text
    assert len(inductor) == 2
    with torch.no_grad():
        assert close(served(x), model(x))
    assert len(inductor) == 2


@torch.inference_mode()
def test_layers_that_the_pack_does_not_hold_go_to_inductor(path, inductor, caplog):
    with torch.inference_mode(False):
        model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 9)).eval()
        other = nn.Sequential(nn.Linear(4, 3)).eval()
    x = torch.randn(4, 16)
    assert close(compiled(model, path)(x), model(x))
    assert len(inductor) == 1 and "1 of 2 layer calls" in caplog.text and "--op dense:n=9,k=24" in caplog.text
    assert close(compiled(other, path)(x[:, :4]), other(x[:, :4]))
    assert len(inductor) == 2


@torch.inference_mode()
@pytest.mark.parametrize("fault, words", [
    ("absent", "haotuner tune"),
    ("damaged", "restore the pack|was changed"),
    ("other", "x86-64-v9"),
])  # fmt: skip
def test_a_pack_that_cannot_be_served_is_named_and_inductor_serves(tmp_path, path, inductor, caplog, fault, words):
    pack = tmp_path / "pack"
    if fault != "absent":
        shutil.copytree(path, pack)
    if fault == "damaged":
        (pack / MANIFEST).write_text("{")
    if fault == "other":
        rewrite(pack, device={"id": "other", "arch": "x86-64-v9", "kind": "cpu", "name": "other"})
    model, x = products(), torch.randn(4, 16)
    assert close(compiled(model, pack)(x), model(x))
    assert len(inductor) == 1 and "Inductor serves the model" in caplog.text and str(pack) in caplog.text


@torch.inference_mode()
def test_a_pack_that_was_made_elsewhere_is_served_and_named(tmp_path, path, inductor, caplog):
    pack = shutil.copytree(path, tmp_path / "pack")
    device = json.loads((pack / MANIFEST).read_text())["device"]
    rewrite(pack, device={**device, "name": "another CPU"})
    model, x = products(), torch.randn(4, 16)
    assert close(compiled(model, pack)(x), model(x))
    assert not inductor and "it was made for another CPU" in caplog.text


@torch.inference_mode()
@pytest.mark.parametrize(
    "options, words", [({"tune": "soon"}, 'write "zero"'), ({"tune": "0s"}, "write"), ({"pack": 3}, "name the folder")]
)
def test_options_without_a_meaning_are_refused(path, inductor, options, words):
    served = torch.compile(products(), backend=compile_backend.backend, options=options)
    with pytest.raises(Exception, match=words):
        served(torch.randn(4, 16))


@torch.inference_mode()
def test_other_options_are_those_of_inductor(path, inductor):
    model, x = images(), torch.randn(2, 8, 6, 6)
    compiled(model, path, max_autotune=False)(x)
    assert inductor[0][1] == {"max_autotune": False}


@torch.inference_mode()
def test_weights_that_count_no_changes_go_to_inductor(path, inductor, caplog):
    model, x = nn.Sequential(nn.Linear(16, 24), nn.ReLU()).eval(), torch.randn(4, 16)
    assert close(compiled(model, path)(x), model(x))
    assert len(inductor) == 1 and "made under torch.inference_mode()" in caplog.text


@torch.inference_mode()
def test_without_a_pack_and_without_tuning_inductor_serves(inductor, caplog):
    model, x = products(), torch.randn(4, 16)
    served = torch.compile(model, backend=compile_backend.backend, options={"tune": None})
    assert close(served(x), model(x)) and len(inductor) == 1 and "tune=None" in caplog.text


@torch.inference_mode()
def test_a_pack_by_prediction_is_in_the_cache_folder(tmp_path, path, inductor, monkeypatch, caplog):
    from haotuner.torch import cached_pack

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    traces: list[Any] = []

    def tune(out: Path, trace: Any, *_: Any) -> None:
        traces.append(trace)
        shutil.copytree(path, out)

    monkeypatch.setattr(cached_pack, "_tune", tune)
    caplog.set_level(logging.WARNING)
    model, x = products(), torch.randn(4, 16)
    for _ in range(2):
        torch._dynamo.reset()
        served = torch.compile(model, backend=compile_backend.backend, dynamic=True)
        assert close(served(x), model(x))
    (trace,) = traces
    assert sorted(trace) == ["dense:n=24,k=16,epilogue=bias+relu", "dense:n=24,k=24,epilogue=bias+relu"]
    assert {shape["m"] for shape in trace["dense:n=24,k=16,epilogue=bias+relu"]} >= {1, 2048}
    assert caplog.text.count("tuning 2 ops from predictions") == 1 and str(tmp_path) in caplog.text


def test_the_entry_point_names_the_backend():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["torch_dynamo_backends"] == {"haotuner": "haotuner.torch.compile_backend:backend"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@torch.inference_mode()
def test_inductor_compiles_what_is_left(path):
    torch._dynamo.reset()
    model = images()
    served = compiled(model, path)
    for b, h, w in ((2, 7, 9), (3, 12, 5), (4, 30, 31)):
        x = torch.randn(b, 8, h, w)
        assert close(served(x), model(x))
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_pack_is_tuned_by_prediction_in_a_process_of_its_own(tmp_path, inductor, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, x = nn.Sequential(nn.Linear(40, 24), nn.ReLU()).eval(), torch.randn(4, 40)
    with torch.inference_mode():
        served = torch.compile(model, backend=compile_backend.backend, dynamic=True, options={"tune": "zero"})
        assert close(served(x), model(x))
    assert not inductor, "the pack of predictions serves it"
    assert len([folder for folder in (tmp_path / "haotuner" / "torch").iterdir() if (folder / MANIFEST).exists()]) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@torch.inference_mode()
def test_exported_programs_and_ahead_of_time_packages_keep_the_ops(path, tmp_path):
    model, x = products(), torch.randn(6, 16)
    with haotuner.load(path, threads=1) as pack, haotuner.torch.register(pack) as registered:
        served = products()
        served.load_state_dict(model.state_dict())
        haotuner.torch.swap(served, pack, registered=registered)
        expected = served(x)
        program = torch.export.export(served, (x,), dynamic_shapes=({0: torch.export.Dim("m", min=2, max=512)},))
        assert NAMES[0] in str(program.graph)
        file = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "net.pt2"))
        ahead = torch._inductor.aoti_load_package(file)
        for m in (6, 2, 77):
            x = torch.randn(m, 16)
            expected = served(x)
            assert torch.equal(program.module()(x), expected) and torch.equal(ahead(x), expected)


@pytest.fixture(scope="module")
def other_forms(tmp_path_factory) -> Path:
    """A pack of a convolution of channels last, and of a product whose weight is stored (in, out)."""
    from haotuner.backends.cpu.pack_source import PackedAny, pack_library
    from haotuner.pack.write import write_pack
    from tests.run_folder import toolchain
    from tests.runtime.conv_packs import packed_conv
    from tests.runtime.packs import LANES, best_level, document, packed_op

    folder: Path = tmp_path_factory.mktemp("forms")
    level = best_level()
    lanes = LANES[level]
    ops: list[PackedAny] = [
        packed_op("dense_n24_k16_kn", lanes, 2 * lanes, (1,)),
        packed_conv("conv2d:c=8,f=8,r=3,s=3,pad=1,layout=nhwc", lanes, (1,)),
    ]
    pack_library(ops, level, toolchain(), folder / "pack.so")
    write_pack(folder / "pack", folder / "pack.so", document(ops, level), lambda _: None)
    return folder / "pack"


@torch.inference_mode()
def test_channels_last_and_weights_stored_the_other_way(other_forms, inductor):
    with torch.inference_mode(False):
        image = nn.Conv2d(8, 8, 3, padding=1).to(memory_format=torch.channels_last).eval()
        weight, bias = nn.Parameter(torch.randn(16, 24)), nn.Parameter(torch.randn(24))
    served = compiled(image, other_forms)
    for b, h, w in ((2, 5, 6), (3, 9, 4)):
        x = torch.randn(b, 8, h, w).to(memory_format=torch.channels_last)
        assert close(served(x), image(x)) and served(x).stride() == image(x).stride()
    assert any("conv2d_c8_f8" in str(node.target) for node in inductor[0][0].graph.nodes)

    class Product(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = weight, bias

        def forward(self, x: Any) -> Any:
            return torch.addmm(self.bias, x, self.weight) + x @ self.weight

    model, x = Product(), torch.randn(5, 16)
    assert close(compiled(model, other_forms)(x), model(x))
    assert sum("dense_n24_k16" in str(node.target) for node in inductor[1][0].graph.nodes) == 2
