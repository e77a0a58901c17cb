"""Small models of three to seven operators over dynamic sizes, drawn from a seed, and requests of odd sizes for them.

An axis is a number, or a name that the request decides. Operators are drawn of those that a tensor's axes allow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Axis = int | str
SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 31, 33)
OPSET = 20
UNARY = ("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Erf", "Softplus", "HardSwish",
         "LeakyRelu", "Elu", "Mish", "Softsign", "Sin", "Gelu", "Selu", "HardSigmoid", "Atan", "Identity")  # fmt: skip
REDUCES = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceL1", "ReduceLogSumExp", "ReduceSumSquare")
WHOLE = ((TensorProto.INT64, 100.0), (TensorProto.INT32, 100.0), (TensorProto.INT8, 20.0), (TensorProto.INT16, 100.0))


@dataclass
class Net:
    """Nodes and weights so far; ``name`` and ``axes`` of the tensor that the next operator reads."""

    draw: random.Random
    axes: list[Axis]
    name: str = "x"
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    seen: list[tuple[str, list[Axis]]] = field(default_factory=list)

    def weight(self, values: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(values)
        return name

    def real(self, *shape: int) -> str:
        draws = np.random.default_rng(self.draw.randrange(2**32))
        return self.weight(draws.standard_normal(shape).astype(np.float32))

    def whole(self, *values: int) -> str:
        return self.weight(np.array(values, np.int64))

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [out], **attributes))
        return out

    def fixed(self, least: int = 1) -> list[int]:
        """Places of axes that are numbers of at least so much."""
        return [at for at, axis in enumerate(self.axes) if isinstance(axis, int) and axis >= least]

    def new(self) -> str:
        return f"d{len(self.nodes)}"


def _unary(net: Net) -> str:
    operator = net.draw.choice(UNARY)
    return net.add(operator, net.name)


def _exact(net: Net) -> str | None:
    """Expressions that a compiler of reals would shorten: rounding by a large number, sums in two parts, products with 0."""
    x, kind = net.name, net.draw.randrange(6)
    large = net.weight(np.float32(net.draw.choice((12582912.0, 8388608.0, 6291456.0, 98304.0))))
    if kind == 0:
        return net.add("Sub", net.add("Add", x, large), large)
    if kind == 1:
        scaled = net.add("Mul", x, net.weight(np.float32(4096)))
        return net.add("Mul", net.add("Sub", net.add("Add", scaled, large), large), net.weight(np.float32(2.0**-12)))
    if kind == 2:  # the part that a sum loses
        total = net.add("Add", x, large)
        return net.add("Sub", x, net.add("Sub", total, large))
    if kind == 3:
        return net.add("Add", net.add("Mul", x, net.weight(np.float32(0))), net.weight(np.float32(1)))
    if kind == 4:
        third = net.weight(np.float32(3))
        return net.add("Div", net.add("Mul", net.add("Div", x, third), third), net.weight(np.float32(7)))
    return net.add("Sub", net.add("Neg", net.add("Sub", large, x)), net.add("Neg", large))


def _binary(net: Net) -> str | None:
    operator, last = net.draw.choice(("Add", "Sub", "Mul", "Max", "Min", "Div", "PRelu")), net.axes[-1] if net.axes else 1
    alike = [name for name, axes in net.seen if axes == net.axes and name != net.name]
    if alike and operator != "PRelu" and operator != "Div" and net.draw.random() < 0.5:
        return net.add(operator, *net.draw.sample([net.name, net.draw.choice(alike)], 2))
    shape = (last,) if isinstance(last, int) and net.draw.random() < 0.5 else (1,)
    other = net.real(*shape)
    net.weights[other] = np.sign(net.weights[other]) * (np.abs(net.weights[other]) + np.float32(0.5))
    if not net.axes:
        return None
    return net.add(operator, net.name, other)


def _whole_numbers(net: Net) -> str | None:
    """Whole numbers of a type through arithmetic and back."""
    code, scale = net.draw.choice(WHOLE)
    kind, ends = helper.tensor_dtype_to_np_dtype(code), [net.weight(np.float32(end)) for end in (-1, 1)]
    y = net.add("Cast", net.add("Mul", net.add("Clip", net.name, *ends), net.weight(np.float32(scale))), to=code)
    for _ in range(net.draw.randint(1, 2)):
        operator = net.draw.choice(("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs"))
        if operator in ("Neg", "Abs"):
            y = net.add(operator, y)
            continue
        by = net.weight(np.array(net.draw.choice((-7, -3, -2, 2, 3, 5, 11)), kind))
        y = net.add(operator, y, by)
    return net.add("Cast", y, to=TensorProto.FLOAT)


def _transpose(net: Net) -> str | None:
    order = list(range(len(net.axes)))
    if not order:
        return None
    net.draw.shuffle(order)
    x, net.axes = net.name, [net.axes[at] for at in order]
    return net.add("Transpose", x, perm=order)


def _reshape(net: Net) -> str | None:
    rank = len(net.axes)
    if rank < 2:
        return None
    at = net.draw.randrange(rank - 1)
    rest, (first, second) = [axis for axis in net.axes[at + 2 :] if isinstance(axis, int)], net.axes[at : at + 2]
    if len(rest) < rank - at - 2:
        return None
    shape = [0] * at + [-1] + rest
    new: Axis = first * second if isinstance(first, int) and isinstance(second, int) else net.new()
    net.axes = [*net.axes[:at], new, *net.axes[at + 2 :]]
    return net.add("Reshape", net.name, net.whole(*shape))


def _reduce(net: Net) -> str | None:
    if not net.axes:
        return None
    operator, keep = net.draw.choice(REDUCES), net.draw.randint(0, 1)
    axes = sorted(net.draw.sample(range(len(net.axes)), net.draw.randint(1, min(2, len(net.axes)))))
    left = [1 if at in axes else axis for at, axis in enumerate(net.axes)]
    net.axes = left if keep else [axis for at, axis in enumerate(net.axes) if at not in axes]
    signed = [at - len(left) if net.draw.random() < 0.5 else at for at in axes]
    return net.add(operator, net.name, net.whole(*signed), keepdims=keep)


def _normal(net: Net) -> str | None:
    operator = net.draw.choice(("Softmax", "LogSoftmax", "CumSum", "LayerNormalization", "LpNormalization"))
    if not net.axes:
        return None
    axis = net.draw.randrange(len(net.axes))
    if operator == "CumSum":
        return net.add(operator, net.name, net.weight(np.int64(axis)), exclusive=net.draw.randint(0, 1),
                       reverse=net.draw.randint(0, 1))  # fmt: skip
    if operator == "LayerNormalization":
        last = net.axes[-1]
        if not isinstance(last, int) or last < 2:
            return None
        return net.add(operator, net.name, net.real(last), net.real(last), axis=-1)
    if operator == "LpNormalization":
        return net.add(operator, net.name, axis=axis, p=net.draw.randint(1, 2))
    return net.add(operator, net.name, axis=axis)


def _slice(net: Net) -> str | None:
    if not net.axes:
        return None
    at = net.draw.randrange(len(net.axes))
    axis = net.axes[at]
    start, end = net.draw.choice((0, 1, -3, -1, 2, -100)), net.draw.choice((2**31 - 1, -1, 4, 100, 3))
    step = net.draw.choice((1, 1, 1, 2, 3))
    if net.draw.random() < 0.25:
        start, end, step = -1, -(2**31), -net.draw.choice((1, 1, 2))
    net.axes = list(net.axes)
    net.axes[at] = len(range(axis)[start:end:step]) if isinstance(axis, int) and step > 0 else net.new()
    if isinstance(axis, int) and step < 0:
        net.axes[at] = len(range(axis)[::step])
    if net.axes[at] == 0:
        return None
    return net.add("Slice", net.name, net.whole(start), net.whole(end), net.whole(at), net.whole(step))


def _half(net: Net) -> str | None:
    """A slice whose bound is arithmetic on a size: a half, a share, or the middle."""
    if not net.axes:
        return None
    at = net.draw.randrange(len(net.axes))
    size = net.add("Gather", net.add("Shape", net.name), net.whole(at), axis=0)
    if net.draw.random() < 0.5:
        size = net.add(net.draw.choice(("Add", "Sub")), size, net.whole(net.draw.randint(0, 9)))
        bound = net.add("Div", size, net.whole(net.draw.randint(2, 4)))
    else:
        real = net.add(
            "Mul", net.add("Cast", size, to=1), net.weight(np.float32(net.draw.choice((0.7, 0.1, 0.3, 1.1, 0.6))))
        )
        bound = net.add("Cast", net.add(net.draw.choice(("Floor", "Ceil", "Round")), real), to=TensorProto.INT64)
    net.axes = list(net.axes)
    net.axes[at] = net.new()
    ends = (bound, net.whole(2**31 - 1)) if net.draw.random() < 0.5 else (net.whole(0), bound)
    return net.add("Slice", net.name, *ends, net.whole(at))


def _pad(net: Net) -> str | None:
    if not net.axes:
        return None
    at, mode = net.draw.randrange(len(net.axes)), net.draw.choice(("constant", "edge", "wrap"))
    before, after = (net.draw.randint(0, 2) if mode == "constant" else net.draw.randint(0, 1) for _ in range(2))
    pads = [0] * 2 * len(net.axes)
    pads[at], pads[at + len(net.axes)] = before, after
    axis = net.axes[at]
    net.axes = list(net.axes)
    net.axes[at] = axis + before + after if isinstance(axis, int) else net.new()
    return net.add("Pad", net.name, net.whole(*pads), net.weight(np.float32(1.5)), mode=mode)


def _joined(net: Net) -> str | None:
    if not net.axes:
        return None
    at, x, axes = net.draw.randrange(len(net.axes)), net.name, list(net.axes)
    other = net.add(net.draw.choice(UNARY), x)
    extent = axes[at]
    axes[at] = 2 * extent if isinstance(extent, int) else net.new()
    net.axes = axes
    return net.add("Concat", x, other, axis=at)


def _tile(net: Net) -> str | None:
    if not net.axes:
        return None
    times = [net.draw.choice((1, 1, 2, 3)) for _ in net.axes]
    net.axes = [axis if time == 1 else axis * time if isinstance(axis, int) else f"{net.new()}_{at}"
                for at, (axis, time) in enumerate(zip(net.axes, times, strict=True))]  # fmt: skip
    return net.add("Tile", net.name, net.whole(*times))


def _product(net: Net) -> str | None:
    if len(net.axes) < 2:
        return None
    last = net.axes[-1]
    if isinstance(last, int) and net.draw.random() < 0.7:
        width = net.draw.choice((1, 3, 4, 7, 16, 20))
        net.axes = [*net.axes[:-1], width]
        return net.add("MatMul", net.name, net.real(last, width))
    order = [*range(len(net.axes) - 2), len(net.axes) - 1, len(net.axes) - 2]
    turned = net.add("Transpose", net.name, perm=order)
    net.axes = [*net.axes[:-1], net.axes[-2]]
    return net.add("Mul", net.add("MatMul", net.name, turned), net.weight(np.float32(0.1)))


def _windows(net: Net) -> str | None:
    """A convolution, transposed or not, or a pool over what lies behind the second axis."""
    rank = len(net.axes) - 2
    channels = net.axes[1] if rank in (1, 2) else None
    if not isinstance(channels, int) or channels > 24:
        return None
    draw, operator = net.draw, net.draw.choice(("Conv", "Conv", "ConvTranspose", "ConvTranspose", "MaxPool", "AveragePool"))
    sizes, strides = [draw.randint(1, 3) for _ in range(rank)], [draw.randint(1, 3) for _ in range(rank)]
    dilations = [draw.randint(1, 2) for _ in range(rank)]
    common: dict[str, Any] = {"kernel_shape": sizes, "strides": strides}
    x, image = net.name, net.axes[2:]
    pads = [draw.randint(0, (size - 1) * step) for size, step in zip(sizes * 2, dilations * 2, strict=True)]
    if operator in ("MaxPool", "AveragePool"):  # a window larger than the image has an answer by ONNX Runtime alone
        wide = [size - 1 if stride > 1 else 0 for size, stride in zip(sizes * 2, strides * 2, strict=True)]
        pads = [max(least, min(pad, size - 1)) for pad, least, size in zip(pads, wide, sizes * 2, strict=True)]
    fits = zip(image, sizes, dilations, pads, pads[rank:], strict=False)
    if any(isinstance(extent, int) and extent + b + a < (size - 1) * step + 1 for extent, size, step, b, a in fits):
        return None
    net.axes = [*net.axes[:2], *(f"{net.new()}_{at}" for at in range(rank))]
    if operator in ("MaxPool", "AveragePool"):
        if draw.random() < 0.3:
            return net.add(operator, x, auto_pad=draw.choice(("SAME_UPPER", "SAME_LOWER")), **common)
        own = {"count_include_pad": draw.randint(0, 1)} if operator == "AveragePool" else {"dilations": dilations}
        return net.add(operator, x, pads=pads, ceil_mode=0, **common, **own)
    group = draw.choice([item for item in (1, 2, channels) if channels % item == 0])
    filters = group * draw.choice((1, 2, 3))
    common |= {"group": group, "dilations": dilations}
    net.axes[1] = filters
    if operator == "Conv":
        weight = net.real(filters, channels // group, *sizes)
        return net.add(operator, x, weight, net.real(filters), pads=pads, **common)
    weight = net.real(channels, filters // group, *sizes)
    more = [draw.randint(0, stride - 1) for stride in strides]
    # Neither pads that leave nothing of one element, nor SAME of windows below their strides, where judges differ.
    if draw.random() < 0.3 and all((s - 1) * d + 1 >= t for s, d, t in zip(sizes, dilations, strides, strict=True)):
        return net.add(operator, x, weight, net.real(filters), auto_pad=draw.choice(("SAME_UPPER", "SAME_LOWER")), **common)
    cuts = [min(pad, (size - 1) * step // 2) for pad, size, step in zip(pads, sizes * 2, dilations * 2, strict=True)]
    return net.add(operator, x, weight, net.real(filters), pads=cuts, output_padding=more, **common)


def _resize(net: Net) -> str | None:
    if len(net.axes) not in (3, 4):
        return None
    draw, rank = net.draw, len(net.axes) - 2
    mode = draw.choice(("nearest", "linear", "linear", "cubic"))
    position = draw.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    more = {"nearest_mode": draw.choice(("floor", "round_prefer_floor", "ceil"))} if mode == "nearest" else {}
    x, axes = net.name, list(range(2, 2 + rank))
    if rank == 1 and mode == "cubic" or position == "align_corners" and mode == "nearest":
        return None
    if draw.random() < 0.5:
        sizes = [draw.choice((1, 2, 3, 5, 8, 13)) for _ in axes]
        net.axes = [*net.axes[:2], *sizes]
        return net.add("Resize", x, "", "", net.whole(*sizes), mode=mode, axes=axes, coordinate_transformation_mode=position,
                       **more)  # fmt: skip
    scales = np.array([draw.choice((2.0, 3.0, 1.5, 0.5)) for _ in axes], np.float32)
    if min(scales) < 1 or position == "align_corners":
        scales[:] = 2.0  # 0.5 leaves nothing of one element; the ends of part of an element are those of ONNX's own cases
    net.axes = [*net.axes[:2], *(f"{net.new()}_{at}" for at in axes)]
    return net.add(
        "Resize", x, "", net.weight(scales), mode=mode, axes=axes, coordinate_transformation_mode=position, **more
    )


def _gather(net: Net) -> str | None:
    fixed = net.fixed(2)
    if not fixed:
        return None
    at = net.draw.choice(fixed)
    extent = int(net.axes[at])
    indices = [net.draw.randrange(-extent, extent) for _ in range(net.draw.randint(1, 5))]
    net.axes = [*net.axes[:at], len(indices), *net.axes[at + 1 :]]
    return net.add("Gather", net.name, net.whole(*indices), axis=at)


def _ordered(net: Net) -> str | None:
    """The first of an order along an axis, or their places."""
    fixed = net.fixed(2)
    if not fixed:
        return None
    at, out = net.draw.choice(fixed), f"t{len(net.nodes)}"
    count = net.draw.randint(1, int(net.axes[at]))
    net.nodes.append(helper.make_node("TopK", [net.name, net.whole(count)], [out, f"{out}_at"], axis=at,
                                      largest=net.draw.randint(0, 1)))  # fmt: skip
    x, net.axes = net.name, [*net.axes[:at], count, *net.axes[at + 1 :]]
    if net.draw.random() < 0.4:
        return net.add("GatherElements", x, f"{out}_at", axis=at)
    return out


def _chosen(net: Net) -> str | None:
    """Rows that a condition of the data chooses, of the first axis, or Where."""
    if net.draw.random() < 0.6 or len(net.axes) < 2:
        above = net.add("Greater", net.name, net.weight(np.float32(0.1)))
        return net.add("Where", above, net.name, net.weight(np.float32(-0.5)))
    sums = net.add("ReduceSum", net.name, net.whole(*range(1, len(net.axes))), keepdims=0)
    above, x = net.add("Less", sums, net.weight(np.float32(1e9))), net.name  # every row: the order stays without ties
    net.axes = [net.new(), *net.axes[1:]]
    return net.add("Compress", x, above, axis=0)


def _positions(net: Net) -> str | None:
    """What a size counts to, added to a tensor."""
    if not net.axes:
        return None
    size = net.add(
        "Squeeze", net.add("Gather", net.add("Shape", net.name), net.whole(len(net.axes) - 1), axis=0), net.whole(0)
    )
    counted = net.add("Range", net.weight(np.int64(0)), size, net.weight(np.int64(1)))
    return net.add("Add", net.name, net.add("Mul", net.add("Cast", counted, to=1), net.weight(np.float32(0.01))))


def _triangle(net: Net) -> str | None:
    if len(net.axes) < 2:
        return None
    return net.add("Trilu", net.name, net.weight(np.int64(net.draw.randint(-2, 2))), upper=net.draw.randint(0, 1))


def _branch(net: Net) -> str | None:
    """A condition of a size: both sides have the tensor's shape."""
    if not net.axes:
        return None
    size = net.add("Gather", net.add("Shape", net.name), net.whole(net.draw.randrange(len(net.axes))), axis=0)
    condition = net.add("Squeeze", net.add("Greater", size, net.whole(net.draw.choice((4, 8)))), net.whole(0))
    sides = []
    for side in ("then", "else"):
        out = f"{side}{len(net.nodes)}"
        node = helper.make_node(net.draw.choice(UNARY), [net.name], [out])
        sides.append(helper.make_graph([node], side, [], [helper.make_tensor_value_info(out, 1, None)]))
    return net.add("If", condition, then_branch=sides[0], else_branch=sides[1])


_STEPS: tuple[Callable[[Net], str | None], ...] = (
    _unary, _exact, _binary, _whole_numbers, _transpose, _reshape, _reduce, _normal, _slice, _half, _pad, _joined, _tile,
    _product, _windows, _windows, _resize, _gather, _ordered, _chosen, _positions, _triangle, _branch,
)  # fmt: skip
_STARTS: tuple[tuple[Axis, ...], ...] = (
    ("n",), ("n", 6), ("b", "n", 4), ("b", 3, "n"), ("b", 4, "h", "w"), ("n", "m"), ("b", 2, 5, "n"), ("b", 6, "n", "n2"),
    (3, "n"), ("b", 4, 6, 5),
)  # fmt: skip


def drawn(seed: int) -> tuple[Any, list[str], tuple[Axis, ...]]:
    """A model of the input x with one output y, the words of its operators, and the axes of x."""
    draw = random.Random(seed)
    start = draw.choice(_STARTS)
    net, steps = Net(draw, list(start)), draw.randint(3, 7)
    while steps:
        step, nodes, axes = draw.choice(_STEPS), len(net.nodes), net.axes
        net.seen.append((net.name, list(axes)))
        out = step(net)
        if out is None or len(net.axes) > 5 or _large(net.axes):
            del net.nodes[nodes:]
            net.axes = axes
            continue
        net.name, steps = out, steps - 1
        net.words.append(step.__name__.strip("_"))
    net.nodes.append(helper.make_node("Identity", [net.name], ["y"]))
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(start))]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    weights = [numpy_helper.from_array(value, name) for name, value in net.weights.items()]
    graph = helper.make_graph(net.nodes, f"drawn{seed}", ends, outs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return onnx.load_from_string(model.SerializeToString()), net.words, start


def _large(axes: Sequence[Axis]) -> bool:
    return int(np.prod([axis if isinstance(axis, int) else 1 for axis in axes])) > 4000


def requests(start: Sequence[Axis], seed: int, count: int) -> list[Any]:
    """Values of x at odd sizes, the first of the smallest; now and then with numbers that are none, or none exactly."""
    draw, results = np.random.default_rng(seed), []
    for number in range(count):
        sizes = {axis: int(draw.choice(SIZES if number else (1, 2))) for axis in start if isinstance(axis, str)}
        x: Any = draw.standard_normal([axis if isinstance(axis, int) else sizes[axis] for axis in start]).astype(np.float32)
        if number == count - 1 and x.size:
            x = np.round(4 * x) / 4  # halves and ties
        results.append(x)
    return results
