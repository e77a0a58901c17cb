"""Modules through torch.export: graphs compute what modules do at sizes never exported, and files keep names."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.exported_program import read_exported
from haotuner.graph.interpret import interpret
from haotuner.partition.dim_ranges import demands, unmet

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of itself
nn = torch.nn
BATCH, SEQ = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("seq", min=1, max=512)


class Encoder(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.qkv = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, ids: Any, mask: Any) -> Any:
        h = self.norm(self.words(ids))
        batch, seq, _ = h.shape
        q, k, v = (projection(h).view(batch, seq, 2, 16).transpose(1, 2) for projection in self.qkv)
        bias = (1.0 - mask[:, None, None, :].to(h.dtype)) * -1e4
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        h = h + mixed.transpose(1, 2).reshape(batch, seq, 32)
        h = h + self.down(nn.functional.gelu(self.up(h)))
        weights = mask[..., None].to(h.dtype)
        return (h * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


class Net(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.each, self.last = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.first(x)))
        x = nn.functional.max_pool2d(nn.functional.hardswish(self.each(x)), 2)
        x = nn.functional.interpolate(nn.functional.avg_pool2d(x, 2, 1, 1), scale_factor=2)
        return torch.softmax(self.last(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)), -1), x[:, 1:, ::2]


def ids(batch: int, seq: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(batch + seq)
    mask = np.ones((batch, seq), np.int64)
    mask[0, seq // 2 + 1 :] = 0
    return torch.from_numpy(draw.integers(0, 50, (batch, seq))), torch.from_numpy(mask)


def exported(tmp_path: Path, kind: str) -> tuple[Any, Any, Any]:
    from haotuner.torch import export

    torch.manual_seed(0)
    if kind == "encoder":
        module = Encoder().eval()
        return module, export(module, ids(2, 7), ({0: BATCH, 1: SEQ}, {0: BATCH, 1: SEQ}), out=tmp_path / "m.pt2"), ids
    module = Net().eval()
    auto = torch.export.Dim.AUTO
    graph = export(module, (torch.ones(2, 3, 32, 40),), {"x": {0: BATCH, 2: auto, 3: auto}}, out=tmp_path / "m")
    return module, graph, lambda batch, side: (torch.randn(batch, 3, side + 9, 2 * side + 8),)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["encoder", "net"])
def test_a_graph_computes_what_the_module_does_at_any_size(kind, tmp_path):
    module, graph, inputs = exported(tmp_path, kind)
    assert set(graph.dimensions) == ({"batch", "seq"} if kind == "encoder" else {"batch", "x_2", "x_3"})
    again = read_exported(tmp_path / "m.pt2")
    for sizes in ((1, 1), (3, 5), (2, 19)):
        arguments = inputs(*sizes)
        with torch.no_grad():
            expected = module(*arguments)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for variant in (graph, again):
            outputs = interpret(
                variant, {name: value.numpy() for name, value in zip(variant.inputs, arguments, strict=True)}
            )
            for mine, theirs in zip(outputs.values(), expected, strict=True):
                np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_dimensions_may_only_be_named_and_inputs_be_given_by_name():
    from haotuner.torch import export

    words, mask = ids(2, 7)
    axes = {0: "people", 1: "words"}
    graph = export(Encoder(), (words,), {"ids": axes, "mask": axes}, kwargs={"mask": mask})
    assert set(graph.dimensions) == {"people", "words"} and graph.inputs == ("ids", "mask")


def test_dimensions_of_nested_inputs_and_of_inputs_in_another_order_are_named():
    from haotuner.torch import export

    class Cached(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, cache: Any, *more: Any, scale: Any = None, shift: Any = None) -> Any:
            return (x + cache["k"][0] + cache["k"][1] + more[0] * more[1]) * scale.sum() + shift.sum()

    def rows(count: int) -> Any:
        return torch.randn(count, 3)

    shapes = {"x": {0: "m"}, "cache": {"k": ({0: "m"}, {0: "m"})}, "more": ({0: "m"}, {0: "m"}), "scale": {0: "a"},
              "shift": {0: "b"}}  # fmt: skip
    arguments = (rows(4), {"k": (rows(4), rows(4))}, rows(4), rows(4))
    graph = export(Cached(), arguments, shapes, kwargs={"scale": rows(5), "shift": rows(6)})
    first = {name: str(graph.types[name].shape[0]) for name in graph.inputs}
    assert first == {"x": "m", "cache_k_0": "m", "cache_k_1": "m", "more_0": "m", "more_1": "m", "scale": "a", "shift": "b"}

    class Named(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, a: Any = None, b: Any = None) -> Any:
            return a.sum() + b.sum()

    graph = export(Named(), (), {"a": {0: "A"}, "b": {0: "B"}}, kwargs={"b": rows(3), "a": rows(4)})
    assert {name: str(graph.types[name].shape[0]) for name in graph.inputs} == {"a": "A", "b": "B"}


def test_a_tensor_returned_twice_has_two_names():
    from haotuner.torch import export

    class Twice(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            y = torch.sigmoid(x)
            return y, y * 2, y

    graph = export(Twice(), (torch.ones(3, 4),))
    assert len(set(graph.outputs)) == 3
    y, twice, again = interpret(graph, {"x": np.ones((3, 4), np.float32)}).values()
    assert np.array_equal(y, again) and np.array_equal(twice, 2 * y)


def test_every_operator_without_a_rule_is_listed():
    from haotuner.torch import export

    class Odd(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return torch.linalg.svd(x)[1] + torch.special.i0(x).sum(-1)

    with pytest.raises(UsageError, match="operators without a rule: .*i0"):
        export(Odd(), (torch.ones(3, 3),))


@pytest.mark.long
def test_sizes_for_which_a_module_does_something_else_are_refused(tmp_path):
    from haotuner.torch import export

    class Chooses(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            x = x * 2 if x.shape[1] > 10 else x
            return x + 5 if x.shape[1] % 4 == 0 else x

    graph = export(Chooses(), (torch.ones(2, 12, 8),), ({0: "batch", 1: "seq"},), out=tmp_path / "m.pt2")
    for variant in (graph, read_exported(tmp_path / "m.pt2")):
        refused = [seq for seq in range(1, 40) if unmet(demands(variant), {"batch": 1, "seq": seq})]
        assert refused == [seq for seq in range(1, 40) if seq <= 10 or seq % 4]
    assert not demands(export(Encoder(), ids(2, 7), ({0: "batch", 1: "seq"},) * 2))


def test_a_file_that_is_none_is_refused_in_words(tmp_path):
    (tmp_path / "m.pt2").write_bytes(b"PK nothing")
    with pytest.raises(UsageError, match="no program of torch.export"):
        read_exported(tmp_path / "m.pt2")


@pytest.mark.long
def test_samples_of_an_image_and_logarithms_near_1():
    from haotuner.torch import export

    class Warp(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, grid: Any) -> Any:
            bent = torch.atan2(grid, grid.flip(-1)) / 3
            sampled = nn.functional.grid_sample(x, bent, padding_mode="reflection", align_corners=False)
            return sampled, torch.log1p(grid * 1e-6) * 1e6, torch.expm1(grid * 1e-6) * 1e6

    auto = torch.export.Dim.AUTO
    graph = export(Warp(), (torch.randn(2, 3, 5, 7), torch.randn(2, 4, 6, 2)), ({2: auto, 3: auto}, {1: auto, 2: auto}))
    inputs = torch.randn(2, 3, 9, 4), torch.randn(2, 8, 3, 2)
    outputs = interpret(graph, {name: value.numpy() for name, value in zip(graph.inputs, inputs, strict=True)})
    for mine, theirs in zip(outputs.values(), Warp()(*inputs), strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=2e-5, atol=2e-5)


def test_bits_of_whole_numbers_are_not_taken_for_booleans():
    from haotuner.torch import export

    class Bits(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return (x & 6) | 1, x ^ 5, ~x, (x > 2) & (x < 9), ~(x > 2)

    graph = export(Bits(), (torch.arange(8),), ({0: torch.export.Dim.AUTO},))
    integers = torch.arange(-5, 12)
    for mine, theirs in zip(interpret(graph, {graph.inputs[0]: integers.numpy()}).values(), Bits()(integers), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


def test_elements_are_counted_in_bins_as_torch_counts_them():
    from haotuner.torch import export

    class Counts(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return torch.histc(x, 8, 0, 7), torch.histc(x, 5, -1, 2), torch.histc(x, 6), torch.histc(x, 3, 2, 2)

    graph = export(Counts(), (torch.arange(9.0),), ({0: torch.export.Dim.AUTO},))
    for values in (torch.arange(-2.0, 11.0), torch.randn(300) * 2, torch.full((4,), 3.0)):
        for mine, theirs in zip(interpret(graph, {graph.inputs[0]: values.numpy()}).values(), Counts()(values), strict=True):
            np.testing.assert_array_equal(mine, theirs.numpy())
    values = torch.tensor([0.0, float("nan"), 7.0, 7.5])  # torch refuses the NaN where the range is the data's
    outputs = interpret(graph, {graph.inputs[0]: values.numpy()})
    np.testing.assert_array_equal(next(iter(outputs.values())), torch.histc(values, 8, 0, 7).numpy())


def right_at(module: Any, make_input: Any, axes: Any, *sizes: tuple[int, ...]) -> None:
    """The graph of a module computes what the module does, at sizes that it was not exported with."""
    from haotuner.torch import export

    graph = export(module, (make_input(*sizes[0]),), (axes,))
    for size in sizes[1:]:
        input_tensor = make_input(*size)
        with torch.no_grad():
            expected = module(input_tensor)
        outputs = interpret(graph, {graph.inputs[0]: input_tensor.numpy()})
        for mine, theirs in zip(outputs.values(), expected if isinstance(expected, tuple) else (expected,), strict=True):
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_keep_their_length(kind):
    """torch itself fixes it to the example's, without a word where ``Dim.AUTO`` is asked for."""
    module = getattr(nn, kind)(6, 5, 2, bidirectional=True, batch_first=True).eval()

    class First(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.each = module

        def forward(self, x: Any) -> Any:
            return self.each(x)[0]

    right_at(First().eval(), lambda b, t: torch.randn(b, t, 6), {0: "batch", 1: "words"}, (2, 7), (1, 1), (3, 12))
    assert torch.ops.aten.lstm.input.py_kernels, "torch's own definition is put back"
    with torch.no_grad():
        assert torch.compile(First(), backend="eager")(torch.randn(2, 4, 6)).shape == (2, 4, 10)


class Spectrum(nn.Module):  # type: ignore[name-defined, misc]
    def forward(self, x: Any) -> Any:
        spectrum = torch.stft(x, 16, 5, window=torch.hann_window(16), return_complex=True)
        return spectrum.abs(), torch.view_as_real(spectrum / (spectrum.conj() + 3j)), spectrum.angle().cos()


class Filtered(nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 2))

    def forward(self, x: Any) -> Any:
        back = torch.fft.irfft(torch.fft.rfft(x, norm="ortho") * torch.view_as_complex(self.w), n=8, norm="ortho")
        odd = torch.fft.irfft(torch.fft.rfft(x, n=9), n=11)
        return back, odd, torch.fft.fft2(x.reshape(-1, 2, 4)).real, torch.fft.ifft(x * (1 + 2j) + 1).imag


class Mixed(nn.Module):  # type: ignore[name-defined, misc]
    """Along axes whose lengths a request decides: tokens and channels mixed, filters of a whole signal, back again."""

    def forward(self, x: Any) -> Any:
        half = torch.fft.rfft(x, dim=1, norm="ortho")
        back = torch.fft.irfft(half * (1 + 1j), n=x.shape[1], dim=1, norm="ortho")
        return torch.fft.fft2(x).real, back, torch.fft.ifft(x * (1 + 2j), dim=1).imag, torch.fft.irfft(half, dim=1)


class Turned(nn.Module):  # type: ignore[name-defined, misc]
    def forward(self, x: Any) -> Any:
        turns = torch.polar(
            torch.ones(x.shape[1], 4), torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.01])
        )
        return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:2], 4, 2)) * turns).flatten(2)


@pytest.mark.long
@pytest.mark.parametrize("kind", [Spectrum, Filtered, Mixed, Turned])
def test_complex_numbers_are_two_real_ones(kind):
    """And Fourier transforms are products; rotations of positions are written so, too."""
    torch.manual_seed(1)
    last = (8,) if kind is not Spectrum else ()
    right_at(kind().eval(), lambda *sizes: torch.randn(*sizes, *last), {0: "batch", 1: "words"}, (2, 27), (1, 13), (3, 52))


def test_the_largest_so_far_and_what_is_only_asserted():
    class Checked(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            torch._check_tensor_all(x < 100)
            return *torch.cummax(x.round(), dim=1), *torch.cummin(x.long(), dim=0)

    right_at(Checked(), lambda b, t: torch.randn(b, t, 5), {0: "batch", 1: "words"}, (2, 7), (1, 3), (4, 30))


def test_a_file_names_no_class_of_the_outputs(tmp_path):
    """As transformers' own, which a process that has not imported that library cannot load."""
    from haotuner.torch import export

    class Answer(dict[str, Any]):
        """What a library returns."""

    def taken_apart(answer: Answer) -> tuple[list[Any], list[str]]:
        return list(answer.values()), list(answer)

    name = "test_torch_export.Answer"
    torch.utils._pytree.register_pytree_node(
        Answer, taken_apart, lambda values, keys: Answer(zip(keys, values, strict=True)), serialized_type_name=name,
        to_dumpable_context=list, from_dumpable_context=list,
    )  # fmt: skip

    class Answering(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return Answer(last=x * 2, nothing=None, several=[x + 1])

    module = Answering()
    graph = export(module, (torch.zeros(2, 3),), ({0: "batch"},), out=tmp_path / "m.pt2")
    with zipfile.ZipFile(tmp_path / "m.pt2") as archive:
        assert not any(name.encode() in archive.read(member) for member in archive.namelist())
    outputs = interpret(read_exported(tmp_path / "m.pt2"), {graph.inputs[0]: np.ones((4, 3), np.float32)})
    assert [float(output.max()) for output in outputs.values()] == [2.0, 2.0]
    assert isinstance(module(torch.zeros(2, 3)), Answer)  # the module is as it was


def test_distances_of_rows():
    class Apart(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return torch.cdist(x, x[:, :2] * 2), torch.cdist(x, x, p=1.0), torch.cdist(x, x, p=float("inf"))

    right_at(Apart(), lambda b, t: torch.randn(b, t, 5), {0: "batch", 1: "words"}, (2, 7), (1, 3), (3, 30))


def test_numbers_are_placed_between_bounds_under_masks_and_in_bags():
    class Placed(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList([nn.EmbeddingBag(9, 4, mode=mode, padding_idx=0) for mode in ("sum", "mean")])
            self.register_buffer("bounds", torch.tensor([-1.0, 0.0, 0.0, 0.5]))

        def forward(self, x: Any) -> Any:
            own = torch.sort(x, -1)[0]
            ids = torch.bucketize(x, self.bounds)
            rows, columns = torch.triu_indices(3, 4, 1)
            return (
                ids, torch.bucketize(x, self.bounds, right=True), torch.searchsorted(own, x - 0.1),
                x.masked_scatter(x > 0, own * 2), *(bag(ids) for bag in self.bags), x[:, columns] * rows,
            )  # fmt: skip

    torch.manual_seed(3)
    right_at(Placed(), lambda b, t: torch.randn(b, t).round(decimals=1), {0: "batch", 1: "words"}, (2, 7), (1, 4), (3, 30))


def test_random_numbers_of_a_size_are_drawn_by_the_pack():
    from haotuner.torch import export

    class Noise(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x + torch.randn(x.shape), torch.rand(x.shape[0], 3)

    graph = export(Noise(), (torch.zeros(40, 9),), ({0: "batch"},))
    outputs = interpret(graph, {graph.inputs[0]: np.zeros((4000, 9), np.float32)})
    normal, flat = outputs.values()
    assert abs(normal.mean()) < 0.05 and abs(normal.std() - 1) < 0.05
    assert flat.shape == (4000, 3) and flat.min() >= 0 and flat.max() < 1 and abs(flat.mean() - 0.5) < 0.05


def test_complex_numbers_where_none_can_be_are_refused_in_words():
    from haotuner.torch import export

    class Out(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return torch.fft.rfft(x)

    class Odd(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return torch.fft.rfft(x).tanh().abs()

    x = torch.randn(2, 8)
    with pytest.raises(UsageError, match=r"output .*: complex numbers; return torch.view_as_real"):
        export(Out(), (x,))
    with pytest.raises(UsageError, match=r"tanh.default of complex numbers has no rule"):
        export(Odd(), (x,))
