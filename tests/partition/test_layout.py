"""Where images have their channels: the layouts that the program chooses, and that nothing else changes by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from haotuner.graph.error_bounds import TOLERANCE, tolerance_of
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.ops.dtypes import DTYPES
from haotuner.partition.costs import CORE, Prices, Rates
from haotuner.partition.greedy_fusion import Loops, Step
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.layout import LAYOUTS, Layouts
from haotuner.partition.loop_counts import STRIDED, STRIDED_FAR
from haotuner.partition.products import Product
from haotuner.spec.op import Op
from haotuner.verify.model_check import drawn_inputs

SIZES = {"b": 2, "h": 40, "w": 36}
SLOW_FIRST = replace(
    CORE, one_tap_first=0.1, many_taps_last=1.0
)  # pixels' products are ten times as fast with channels last
SLOW_LAST = replace(CORE, one_tap_first=1.0, many_taps_last=0.1)


class Net(GraphBuilder):
    """Layers with weights of a seed, as importing writes them."""

    def weight(self, *shape: int) -> str:
        """A constant."""
        return self.constant(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) / 4)

    def convolution(self, x: str, features: int, taps: int = 1, stride: int = 1, groups: int = 1) -> str:
        """A convolution that keeps the image's sides, and its bias."""
        b, channels, *sides = self.types[x].shape
        rank, own, letters = len(sides), channels // groups, "pq"[: len(sides)]
        if taps > 1:
            pads = (0, 0, *[taps // 2] * rank)
            x = self.add("pad", x, before=pads, after=pads, mode="constant", value=0.0)
        window = "uv"[:rank] if max(taps, stride) > 1 else ""
        if window:
            axes = tuple(range(2, 2 + rank))
            x = self.add("window", x, axes=axes, sizes=(taps,) * rank, strides=(stride,) * rank, dilations=(1,) * rank)
        size = (taps,) * rank if window else ()
        if groups == 1:
            y = self.add(
                "contract", x, self.weight(features, own, *size), labels=f"bc{letters}{window},fc{window}->bf{letters}"
            )
        else:
            x = self.add("reshape", x, shape=(b, groups, own, *self.types[x].shape[2:]))
            weight = self.weight(groups, features // groups, own, *size)
            y = self.add("contract", x, weight, labels=f"bgc{letters}{window},gfc{window}->bgf{letters}")
            y = self.add("reshape", y, shape=(b, features, *self.types[y].shape[3:]))
        return self.map("add", y, self.weight(features, *[1] * rank))

    def image(self, channels: int = 8) -> str:
        """The input of a net."""
        return self.input("x", (dimension("b"), channels, dimension("h"), dimension("w")))


def bottleneck() -> Graph:
    """Pixels' products around a 3x3 window for each channel, the channels weighed, what came in added."""
    g = Net()
    x = g.convolution(g.image(), 32, taps=3, stride=2)
    y = g.map("max", g.convolution(x, 64), 0.0)
    y = g.map("tanh", g.convolution(y, 64, taps=3, groups=64))
    mean = g.map("mul", g.add("reduce", y, how="sum", axes=(2, 3), keepdims=True), 0.01)
    y = g.map("mul", y, g.map("sigmoid", g.convolution(mean, 64)))
    return g.finish(g.map("add", g.convolution(y, 32), x))


def parted() -> Graph:
    """All that may stand between convolutions: pooling, parts side by side, nearer pixels, a flat end beside an image."""
    g = Net()
    x = g.map("erf", g.convolution(g.image(), 16))
    low = g.add("pad", x, before=(0, 0, 1, 0), after=(0, 0, 0, 1), mode="edge")
    pooled = g.add("window", low, axes=(2, 3), sizes=(2, 2), strides=(1, 1), dilations=(1, 1))
    pooled = g.add("reduce", pooled, how="max", axes=(4, 5), keepdims=False)
    some = g.add("slice", x, axes=(1,), starts=(4,), stops=(12,), steps=(1,))
    both = g.add("concat", pooled, some, axis=1)
    near = g.add("gather", both, g.constant(np.array([0, 0, 1, 3, 2])), axis=3)
    y = g.convolution(near, 16, taps=3, groups=2)
    flat = g.add("reduce", y, how="sum", axes=(2, 3), keepdims=False)
    end = g.add("contract", flat, g.weight(16, 4), labels="bk,kn->bn")
    rows = g.add("transpose", g.add("reshape", y, shape=(SIZES["b"], 16, SIZES["h"] * 5)), order=(0, 2, 1))
    return g.finish(end, g.map("add", g.convolution(y, 16), 1.0), rows)


def waves() -> Graph:
    """Images of one side, and a plain tensor of three axes that is none."""
    g = Net()
    x = g.input("x", (dimension("b"), 8, dimension("w")))
    y = g.convolution(g.map("tanh", g.convolution(x, 16, taps=3)), 16, taps=5, groups=4)
    rows = g.add("transpose", y, order=(0, 2, 1))
    return g.finish(y, g.add("contract", rows, g.weight(16, 8), labels="btk,kn->btn"))


def folded() -> Graph:
    """Channels that become batches, groups that are summed, groups that become channels of a flat image."""
    g, b, w = Net(), dimension("b"), dimension("w")
    x = g.convolution(g.input("x", (b, 8, w)), 16)
    masks = g.map("sigmoid", g.add("reshape", x, shape=(b, 2, 8, w)))
    apart = g.convolution(g.add("reshape", masks, shape=(2 * b, 8, w)), 32)
    joined = g.convolution(g.add("reduce", masks, how="sum", axes=(1,), keepdims=False), 4)
    return g.finish(apart, joined, g.convolution(masks, 4, taps=3))


def tied() -> Graph:
    """What lies between products makes what one of them reads, and waits for it: what both ends need need not be stored."""
    g = Net()
    x = g.map("sin", g.convolution(g.image(), 16))
    y = g.map("sin", g.convolution(g.map("mul", x, x), 16))
    return g.finish(g.convolution(g.map("add", y, x), 8))


def spectra() -> Graph:
    """Filters over a signal, whose results are read filter by filter and place by place."""
    g, b, w = Net(), dimension("b"), dimension("w")
    signal = g.add("reshape", g.input("x", (b, w)), shape=(b, 1, w))
    parts = [g.convolution(signal, 24, taps=9, stride=3) for _ in range(2)]
    rows = [
        g.add("transpose", g.add("reshape", part, shape=(b, 1, *g.types[part].shape[1:])), order=(0, 1, 3, 2))
        for part in parts
    ]
    power = g.map("add", g.map("mul", rows[0], rows[0]), g.map("mul", rows[1], rows[1]))
    return g.finish(g.add("contract", power, g.weight(24, 8), labels="bapf,fn->bapn"))


def resampled() -> Graph:
    """Filters over a signal whose results are put one behind the other."""
    g, b, w = Net(), dimension("b"), dimension("w")
    y = g.convolution(g.add("reshape", g.input("x", (b, w)), shape=(b, 1, w)), 20, taps=9, stride=4)
    rows = g.add("transpose", y, order=(0, 2, 1))
    return g.finish(g.map("max", g.add("reshape", rows, shape=(b, 20 * g.types[y].shape[2])), 0.0))


def of_bytes(taps: int) -> Graph:
    """Sums of bytes, as importing writes them, between two roundings."""
    g = Net()
    x = g.image(96)
    for _ in range(3):
        whole = g.add("cast", g.map("min", g.map("max", g.map("round", x), -128.0), 127.0), dtype="int8")
        wide = g.add("cast", whole, dtype="int32")
        weight = g.constant(np.random.default_rng(taps).integers(-9, 9, (96, 96, *[taps] * 2 * (taps > 1))).astype(np.int32))
        window = "uv" if taps > 1 else ""
        if window:
            wide = g.add("pad", wide, before=(0, 0, 1, 1), after=(0, 0, 1, 1), mode="constant", value=0.0)
            wide = g.add("window", wide, axes=(2, 3), sizes=(3, 3), strides=(1, 1), dilations=(1, 1))
        sums = g.add("contract", wide, weight, labels=f"bcpq{window},fc{window}->bfpq")
        x = g.map("mul", g.add("cast", sums, dtype="fp32"), 0.01)
    return g.finish(x)


@pytest.mark.parametrize("taps", [1, 3])
def test_products_of_bytes_have_their_channels_last_on_cores(taps):
    steps = planned(of_bytes(taps)).steps
    assert all(("dense" if taps == 1 else "nhwc") in name for name in ops(steps)) and len(ops(steps)) == 3
    equal = replace(CORE, bytes_first=1.0)
    assert all("nhwc" not in name and name.startswith("conv2d") for name in ops(planned(of_bytes(taps), equal).steps))


def test_models_that_round_to_bytes_may_be_a_byte_away():
    plain, bytewise = bottleneck(), of_bytes(1)
    assert tolerance_of(plain, drawn_inputs(plain, SIZES)) == TOLERANCE
    assert 1 / 127 < tolerance_of(bytewise, drawn_inputs(bytewise, SIZES)) <= 0.25


@pytest.mark.parametrize(("dtype", "computes"), [("bf16", True), ("fp16", True), ("bf16", False)])
def test_models_that_compute_in_16_bits_may_be_some_units_away(dtype, computes):
    g = Net()
    half = g.add("cast", g.image(96), dtype=dtype)
    computed = g.map("exp", half) if computes else half
    graph = g.finish(g.add("cast", computed, dtype="fp32"))
    allowed = tolerance_of(graph, drawn_inputs(graph, SIZES))
    assert allowed == (4 * DTYPES[dtype].eps if computes else TOLERANCE) < 0.05


def test_a_byte_that_counts_for_much_may_be_one_away():
    g = Net()
    step = g.add("cast", g.map("min", g.map("max", g.map("round", g.image(96)), -128.0), 127.0), dtype="int8")
    graph = g.finish(g.add("cast", step, dtype="fp32"))  # normal numbers as a few whole ones
    assert 1 / 6 < tolerance_of(graph, drawn_inputs(graph, SIZES)) <= 0.25


def planned(graph: Graph, rates: Rates = CORE, layout: str = "cheapest") -> IlpPartitioner:
    """The plan of a graph by these rates."""
    return LAYOUTS[layout](IlpPartitioner(graph, Prices([SIZES], rates)))


def ops(steps: tuple[Step, ...]) -> list[str]:
    return [step.op.name for step in steps if isinstance(step, Product)]


def turns(plan: IlpPartitioner) -> int:
    """Groups that turn an image and do nothing else."""
    return sum([n.primitive for n in step.graph.nodes] == ["transpose"] for step in plan.steps if isinstance(step, Loops))


def test_a_chain_of_pixels_products_keeps_its_channels_last(golden):
    plan = planned(bottleneck(), SLOW_FIRST)
    names = ops(plan.steps)
    assert sum(name.startswith("dense") for name in names) == 3, "products of pixels are dense layers"
    assert any("nhwc" in name and "groups64" in name for name in names), "what lies between them stays in their layout"
    assert turns(plan) <= 2, "one before the chain, one behind it"
    golden(
        "".join(
            f"{type(step).__name__} {step.op.name if isinstance(step, Product) else ''}".rstrip() + "\n"
            for step in plan.steps
        )
    )


def test_windows_of_many_taps_keep_their_channels_first():
    g = Net()
    x = g.map("max", g.convolution(g.image(), 32, taps=3), 0.0)
    y = g.map("tanh", g.convolution(x, 32, taps=7, groups=32))
    graph = g.finish(g.map("add", g.convolution(y, 32, taps=3), x))
    first = IlpPartitioner(graph, Prices([SIZES], SLOW_LAST))
    assert LAYOUTS["cheapest"](first) is first
    assert not any("nhwc" in name for name in ops(first.steps))


def test_the_layouts_are_those_that_trying_all_finds():
    layouts = Layouts(IlpPartitioner(bottleneck(), Prices([SIZES], replace(CORE, one_tap_first=0.6))))

    def cost(lasts: Sequence[bool]) -> float:
        """Of all units in these layouts, turned where they are wanted."""
        places = list(enumerate(lasts))
        if any(at not in layouts.candidates for at in places):
            return float("inf")
        units = [layouts.candidates[at] for at in places]
        produced = {name for unit in units for name in unit.outputs}
        required = {*layouts.graph.outputs, *(name for unit in units for name in unit.reads)}
        us = [candidate.us for candidate in units] + [
            candidate.us for candidate in layouts.turns(required) if candidate.output not in produced
        ]
        return sum(us)

    every = [cost(some) for some in product((False, True), repeat=len(layouts.units))]
    assert cost([is_last for index in range(len(layouts.units)) for is_last in layouts.chosen[index]]) == pytest.approx(
        min(every)
    )
    assert min(every) < 0.9 * every[0]


@pytest.mark.parametrize("net", [spectra, resampled])
def test_what_turns_the_results_of_filters_is_taken_into_their_layout(net):
    """A signal has one channel: it lies the same wherever channels are."""
    plan = planned(net())
    assert all("nwc" in name for name in ops(plan.steps) if name.startswith("conv"))
    left = [node.primitive for step in plan.steps if isinstance(step, Loops) for node in step.graph.nodes]
    assert "map" in left and "transpose" not in left


def test_a_kernel_that_reads_across_is_dearer():
    g = GraphBuilder()
    x = g.input("x", (dimension("b"), 512, dimension("w")))
    y = g.input("y", (dimension("b"), dimension("w"), 512))
    turned, plain = g.finish(g.map("max", g.add("transpose", x, order=(0, 2, 1)), 0.0)), g.finish(g.map("max", y, 0.0))
    us = [Prices([SIZES], CORE).loops_us(graph) for graph in (turned, plain)]
    assert us[0] > 1.3 * us[1]
    sums = g.finish(g.add("reduce", y, how="sum", axes=(2,), keepdims=False))
    expected_us = [
        Prices([SIZES], replace(CORE, loops_ns={**CORE.loops_ns, STRIDED: ns, STRIDED_FAR: ns})).loops_us(sums)
        for ns in (0.0, 100.0)
    ]
    assert expected_us[0] == expected_us[1], "a row that is summed is read as it lies"


@pytest.mark.parametrize("layout", ["cheapest", "last"])
@pytest.mark.parametrize("net", [bottleneck, parted, waves, folded, tied, spectra, resampled])
def test_answers_and_their_layouts_do_not_change(net, layout):
    graph = net()
    plan = planned(graph, SLOW_FIRST, layout)
    assert any("nhwc" in name or "nwc" in name or "dense" in name for name in ops(plan.steps))
    own = plan.graph
    assert (own.inputs, own.outputs) == (graph.inputs, graph.outputs)
    assert [str(own.types[name]) for name in own.outputs] == [str(graph.types[name]) for name in graph.outputs]
    shape = [SIZES.get(str(extent), extent) for extent in graph.types["x"].shape]
    inputs = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    for result, expected in zip(interpret(own, inputs).values(), interpret(graph, inputs).values(), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("taps", [3, 5])
def test_a_depthwise_tile_of_few_rows_or_columns_costs_more_for_each_result(taps):
    op = Op.parse(f"conv2d:c=96,f=96,r={taps},s={taps},pad={taps // 2},groups=96")
    last = Op.parse(f"conv2d:c=96,f=96,r={taps},s={taps},pad={taps // 2},groups=96,layout=nhwc")
    by_rows = [CORE.tile_factor(op, {"b": 1, "h": rows, "w": 96}) for rows in (1, 2, 4, 8, 16)]
    assert by_rows == sorted(by_rows, reverse=True) and by_rows[-2:] == [1.0, 1.0] and by_rows[0] == 4.0
    assert CORE.tile_factor(op, {"b": 1, "h": 40, "w": 17}) > 1.5 * CORE.tile_factor(op, {"b": 1, "h": 40, "w": 32})
    assert CORE.tile_factor(op, {"b": 1, "h": 7, "w": 7}) == 1.0  # lanes are channels, which fill them
    assert CORE.tile_factor(op, {"b": 1, "h": 0, "w": 96}) == CORE.tile_factor(last, {"b": 1, "h": 1, "w": 96}) == 1.0
    assert replace(CORE, waiting_rows=0.0).tile_factor(op, {"b": 1, "h": 1, "w": 96}) == 1.0


def test_depthwise_windows_without_a_direct_kernel_cost_ten_times_as_much_with_channels_first() -> None:
    long, short = "conv1d:c=48,f=48,s=31,pad=15.15,groups=48", "conv1d:c=48,f=48,s=9,pad=4.4,groups=48"
    for sizes, fill in (({"b": 1, "w": 64}, 1.0), ({"b": 1, "w": 8}, 0.5)):
        assert CORE.tile_factor(Op.parse(long), sizes) == pytest.approx(10.0 / fill)
        assert CORE.tile_factor(Op.parse(short), sizes) == pytest.approx(4.0 / fill)  # a signal is one row
        assert CORE.tile_factor(Op.parse(f"{long},layout=nwc"), sizes) == 1.0
    dilated = Op.parse("conv2d:c=48,f=48,r=3,s=3,pad=2.2.2.2,dilation=2.2,groups=48")
    assert CORE.tile_factor(dilated, {"b": 1, "h": 40, "w": 40}) == 10.0
    assert CORE.tile_factor(Op.parse("conv1d:c=48,f=48,s=31,pad=15.15"), {"b": 1, "w": 64}) == 1.0


@pytest.mark.parametrize(("features", "share"), [(8, 2.0), (16, 1.0), (20, 24 / 20), (24, 1.0), (70, 72 / 70), (96, 1.0)])
def test_features_that_fill_no_vector_cost_more_with_channels_last_alone(features, share):
    layer, sizes = f"conv2d:c=24,f={features},r=1,s=3,pad=0.1.0.1", {"b": 1, "h": 40, "w": 40}
    assert CORE.tile_factor(Op.parse(f"{layer},layout=nhwc"), sizes) == pytest.approx(share)
    assert CORE.tile_factor(Op.parse(layer), sizes) == 1.0


@pytest.mark.parametrize(("n", "factor"), [(1, 16.0), (4, 4.0), (16, 1.0), (24, 1.0)])
def test_products_of_fewer_columns_than_lanes_compute_a_whole_vector(n: int, factor: float) -> None:
    op, bytes_ = Op.parse(f"dense:n={n},k=2"), Op.parse(f"dense:n={n},k=2,dtype=int8")
    assert CORE.tile_factor(op, {"m": 1000}) == factor
    assert CORE.tile_factor(bytes_, {"m": 1000}) == replace(CORE, waiting_rows=0.0).tile_factor(op, {"m": 1}) == 1.0


def test_elements_apart_cost_direct_convolutions_more_but_for_pairs() -> None:
    sizes = {"b": 1, "h": 80, "w": 96}
    near, apart = "conv2d:c=1,f=8,r=7,s=7,pad=3.3.3.3", "conv2d:c=1,f=8,r=7,s=7,stride=1.3,pad=3.3.3.3"
    assert CORE.tile_factor(Op.parse(apart), sizes) > 5 * CORE.tile_factor(Op.parse(near), sizes)
    pairs = "conv2d:c=16,f=16,r=3,s=3,stride=2.2,pad=1.1.1.1,groups=16"
    assert CORE.tile_factor(Op.parse(pairs), sizes) < 2.0
