"""Calls of layers in a graph of ``torch.compile``: linears and convolutions with a packable weight, and what follows them.

The graph is dynamo's: functions of torch over placeholders, the parameters among them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from haotuner.torch.convolution import DTYPES, dtype_word, prefers_last
from haotuner.torch.folding import Fold, with_step
from haotuner.torch.layers import specs_of, why_left

F = torch.nn.functional
_LINEAR = (torch._C._nn.linear,)
_PRODUCTS = (operator.matmul, torch.matmul, torch.mm)
_CONVOLUTIONS: Mapping[Any, tuple[type[torch.nn.Module], tuple[str, ...]]] = {
    torch.conv1d: (torch.nn.Conv1d, ("stride", "padding", "dilation", "groups")),
    torch.conv2d: (torch.nn.Conv2d, ("stride", "padding", "dilation", "groups")),
    torch.conv_transpose1d: (torch.nn.ConvTranspose1d, ("stride", "padding", "output_padding", "groups", "dilation")),
    torch.conv_transpose2d: (torch.nn.ConvTranspose2d, ("stride", "padding", "output_padding", "groups", "dilation")),
}
_DEFAULTS = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}
_STEPS: Mapping[Any, str] = {
    F.relu: "relu", torch.relu: "relu", "relu": "relu", F.relu6: "relu6", F.silu: "silu",
    torch.sigmoid: "sigmoid", "sigmoid": "sigmoid", torch.tanh: "tanh", "tanh": "tanh",
    F.hardswish: "hardswish", F.hardsigmoid: "hardsigmoid", F.mish: "mish",
}  # fmt: skip
_GELU = {"none": "gelu", "tanh": "gelutanh"}


@dataclass(frozen=True, slots=True)
class Norm:
    """A batch norm in eval mode behind a convolution: its node, placeholders of its numbers, and its epsilon."""

    node: torch.fx.Node
    gain: int | None  # positions among the graph's inputs
    offset: int | None
    mean: int
    variance: int
    eps: float
    eps_input: int | None  # of an epsilon that torch passes as an input; None of a constant


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A call of a layer with a packable weight: its nodes, the positions of its tensors, and the ops that can serve it.

    ``ops``: pairs of an op spec and whether its images have channels last, those of most modules first.
    """

    node: torch.fx.Node
    x: torch.fx.Node
    weight: int
    bias: int | None
    fused: Sequence[tuple[str, bool]]  # with the norm and the activation behind it
    plain: Sequence[tuple[str, bool]]  # without the activation
    activation: torch.fx.Node | None
    norm: Norm | None
    sides: int = 0  # axes of an image; 0 of a linear
    groups: int | None = None  # of a transposed convolution
    shape: Mapping[str, Any] = field(default_factory=dict)  # extents of the op's axes, symbols among them

    def inputs(self) -> tuple[int, ...]:
        """Positions of every tensor that the packed weight is made of."""
        norm = self.norm
        more = () if norm is None else (norm.gain, norm.offset, norm.mean, norm.variance)
        return tuple(position for position in (self.weight, self.bias, *more) if position is not None)

    def eps(self, args: Sequence[Any]) -> float:
        """The norm's epsilon in a call; 0 without a norm."""
        norm = self.norm
        if norm is None:
            return 0.0
        return norm.eps if norm.eps_input is None else float(args[norm.eps_input].item())

    def folded(self, args: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias of the call with the norm in them, as the pack takes them."""
        weight, bias = args[self.weight].detach(), None if self.bias is None else args[self.bias].detach()
        if self.norm is None:
            return weight.contiguous(), bias
        numbers = _norm_module(self.norm, args, self.eps(args))
        made_weight, row = Fold(numbers).folded(weight, bias, self.groups)
        return made_weight.to(weight.dtype).contiguous(), row


def _norm_module(norm: Norm, args: Sequence[Any], eps: float) -> Any:
    module = torch.nn.BatchNorm2d(args[norm.mean].shape[0], eps=eps, device="meta").eval()
    for name, position in (("weight", norm.gain), ("bias", norm.offset)):
        module._parameters[name] = None if position is None else args[position].detach()
    for name, position in (("running_mean", norm.mean), ("running_var", norm.variance)):
        module._buffers[name] = args[position].detach()
    return module


class Graph:
    """A copy of dynamo's graph of a model, with the inputs that it is compiled for; dynamo still reads its own graph."""

    def __init__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        self.module, self.inputs = _copied(module), inputs
        inputs_ = self.module.graph.find_nodes(op="placeholder")
        self._positions = {node: position for position, node in enumerate(inputs_)}
        self.replaced: dict[torch.fx.Node, torch.fx.Node] = {}  # results of torch's calls by those of a pack's ops
        self.left: dict[str, str] = {}  # name of a call -> reason that it stays torch's

    def add_input(self, name: str) -> torch.fx.Node:
        """A further input, behind all others."""
        nodes = self.module.graph
        before = nodes.find_nodes(op="placeholder")[-1]
        with nodes.inserting_after(before):
            node = nodes.placeholder(name)
        node._dynamo_source = None  # torch asks each input for its source; this has none
        return node

    def position(self, node: Any) -> int | None:
        """Position of a parameter or buffer of the model among the inputs; None of another node."""
        position = self._positions.get(node)
        if position is None:
            return None
        tensor = self.inputs[position]
        static = (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type")
        packable = isinstance(tensor, torch.Tensor) and (isinstance(tensor, torch.nn.Parameter) or bool(static))
        return position if packable else None

    def calls(self) -> Iterator[LayerCall]:
        """The calls of layers that a pack could serve; ``left`` says why others stay torch's."""
        if any(node.target is torch.amp.autocast_mode._enter_autocast for node in self.module.graph.nodes):
            self.left["every layer"] = "autocast begins inside the model"
            return
        for node in list(self.module.graph.nodes):
            if node.op == "call_function" and (call := self._call(node)) is not None:
                yield call

    def _call(self, node: torch.fx.Node) -> LayerCall | None:
        if node.target in _LINEAR:
            x, weight, bias = _arguments(node, "input", "weight", "bias")
            return self._linear(node, x, weight, bias, layer_of=_linear_layer)
        if node.target is torch.addmm and set(node.kwargs) <= {"input", "mat1", "mat2"}:
            bias, x, weight = _arguments(node, "input", "mat1", "mat2")
            return self._linear(node, x, weight, bias, layer_of=None)
        if node.target in _PRODUCTS and len(node.args) == 2 and not node.kwargs:
            x, weight = node.args
            return self._linear(node, x, weight, None, layer_of=None)
        if node.target in _CONVOLUTIONS:
            return self._convolution(node)
        return None

    def _linear(
        self, node: torch.fx.Node, x: Any, weight: Any, bias: Any, layer_of: Callable[..., Any] | None
    ) -> LayerCall | None:
        tensors = self._tensors(node, x, weight, bias)
        if tensors is None:
            return None
        at, offset = tensors
        tensor = self.inputs[at]
        if tensor.dim() != 2 or (offset is not None and self.inputs[offset].dim() != 1):
            return None
        if layer_of is None:  # stored (in, out)
            k, n = tensor.shape
            specs = [f"dense:n={n},k={k},weight=kn{dtype_word(_Weight(tensor))}"]
        else:
            layer = layer_of(tensor)
            if why := why_left(torch.nn.Identity(), layer, "cpu"):
                self.left[node.name] = why
                return None
            specs = specs_of(layer, False)
        rows = x.meta["example_value"].shape[:-1]
        activation, step = _activation(node)
        plain = [(spec, False) for spec in specs]
        fused = [(with_step(spec, step, bias=offset is not None), False) for spec in specs if step]
        return LayerCall(node, x, at, offset, fused, plain, activation, None, shape={"m": math.prod(rows)})

    def _convolution(self, node: torch.fx.Node) -> LayerCall | None:
        kind, options = _CONVOLUTIONS[node.target]
        x, weight, bias, *more = _arguments(node, "input", "weight", "bias", *options)
        tensors = self._tensors(node, x, weight, bias)
        settings = {name: _DEFAULTS[name] if value is None else value for name, value in zip(options, more, strict=True)}
        if tensors is None or any(isinstance(value, torch.fx.Node) for value in settings.values()):
            return None
        at, offset = tensors
        layer = _convolution_layer(kind, self.inputs[at], settings)
        if why := why_left(torch.nn.Identity(), layer, "cpu"):
            self.left[node.name] = why
            return None
        norm = self._norm(node)
        activation, step = _activation(node if norm is None else norm.node)
        last = prefers_last(layer)
        specs = list(zip(specs_of(layer, False), (last, not last), strict=True))
        fused = [(with_step(spec, step, bias=offset is not None or norm is not None), order)
                 for spec, order in specs if step]  # fmt: skip
        sides = len(layer.kernel_size)
        image = x.meta["example_value"].shape
        shape = {"b": math.prod(image[: -sides - 1]), **dict(zip(("h", "w")[-sides:], image[-sides:], strict=True))}
        return LayerCall(
            node, x, at, offset, fused, specs, activation, norm, sides,
            layer.groups if layer.transposed else None, shape,
        )  # fmt: skip

    def _tensors(self, node: torch.fx.Node, x: Any, weight: Any, bias: Any) -> tuple[int, int | None] | None:
        """Positions of weight and bias that are the model's own; None where the call is served by torch."""
        at = self.position(weight)
        if at is None or not isinstance(x, torch.fx.Node):
            return None
        tensor, image = self.inputs[at], x.meta.get("example_value")
        offset = None if bias is None else self.position(bias)
        if bias is not None and offset is None:
            self.left[node.name] = "its bias is computed"
        elif tensor.is_inference():
            self.left[node.name] = "its weight was made under torch.inference_mode(), where torch counts no changes"
        elif tensor.device.type != "cpu":
            self.left[node.name] = f"its weight lives on {tensor.device}: the backend serves CPUs"
        elif tensor.dtype not in DTYPES:
            self.left[node.name] = f"its weight is {str(tensor.dtype).removeprefix('torch.')}"
        elif not isinstance(image, torch.Tensor) or image.dtype is not tensor.dtype or image.dim() < 1:
            self.left[node.name] = "its input has another type than its weight"
        else:
            return at, offset
        return None

    def _norm(self, node: torch.fx.Node) -> Norm | None:
        """The batch norm that alone reads a convolution's result, where all of its numbers are the model's."""
        after = _only_user(node)
        if after is None or after.target is not F.batch_norm:
            return None
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        x, mean, variance, gain, offset, training, _, eps = _arguments(after, *names)
        positions = [None if item is None else self.position(item) for item in (gain, offset)]
        mean_at, variance_at = self.position(mean), self.position(variance)
        missing = any(item is not None and at is None for item, at in zip((gain, offset), positions, strict=True))
        if x is not node or training or mean_at is None or variance_at is None or missing:
            return None
        number, at = self._number(1e-5 if eps is None else eps)
        if number is None:
            return None
        return Norm(after, positions[0], positions[1], mean_at, variance_at, number, at)

    def _number(self, value: Any) -> tuple[float | None, int | None]:
        """A constant; of ``item()`` of an input the number that the input has now, and the input's position."""
        if isinstance(value, float | int):
            return float(value), None
        if isinstance(value, torch.fx.Node) and value.op == "call_method" and value.target == "item":
            at = self._positions.get(value.args[0])
            if at is not None:
                return float(self.inputs[at].item()), at
        return None, None


def rewrite(graph: Graph, call: LayerCall, overload: Any, *, has_row: bool, last: bool, fused: bool) -> None:
    """Replace a call, and what its op computes behind it, by a registered op, whose packed weight is a new input.

    ``has_row``: whether the op reads a bias, another new input. ``last``: its images have channels last.
    """
    nodes = graph.module.graph
    more = [graph.add_input(f"{call.node.name}_{name}") for name in ("packed", "row")[: 1 + has_row]]
    end = call.node if call.norm is None else call.norm.node
    end = call.activation if fused and call.activation is not None else end
    with nodes.inserting_before(end):
        image = graph.replaced.get(call.x, call.x)
        if last:
            image = nodes.call_function(torch.movedim, (image, -1 - call.sides, -1))
        result = nodes.call_function(overload, (image, *more))
        if last:
            result = nodes.call_function(torch.movedim, (result, -1, -1 - call.sides))
    end.replace_all_uses_with(result)
    graph.replaced[end] = result
    norm_node = None if call.norm is None else call.norm.node
    for node in (call.activation if fused else None, norm_node, call.node):
        if node is None:
            continue
        numbers = [argument for argument in node.all_input_nodes if argument.target == "item"]
        nodes.erase_node(node)
        for number in numbers:
            if not number.users:
                nodes.erase_node(number)


def _copied(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph module over a copy of the graph, with what torch notes on both beside the graph itself."""
    nodes, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    result = nodes.graph_copy(module.graph, copies, return_output_node=True)
    nodes.output(result[0])
    for node, copy in copies.items():
        if hasattr(node, "_dynamo_source"):
            copy._dynamo_source = node._dynamo_source
    copied = torch.fx.GraphModule(module, nodes)
    copied.meta.update(module.meta)
    for name in ("_param_name_to_source", "_source_to_user_stacks"):
        if hasattr(module, name):
            setattr(copied, name, getattr(module, name))
    return copied


@dataclass(frozen=True, slots=True)
class _Weight:
    weight: torch.Tensor


def _arguments(node: torch.fx.Node, *names: str) -> list[Any]:
    """Arguments of a call by the names of its parameters; None for those that are left out."""
    by_name = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return [by_name.get(name) for name in names]


def _only_user(node: torch.fx.Node) -> torch.fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _activation(node: torch.fx.Node) -> tuple[torch.fx.Node | None, str]:
    """The activation that alone reads a result, and its epilogue step; None and an empty text where there is none."""
    after = _only_user(node)
    if after is None or not after.args or after.args[0] is not node or after.op not in ("call_function", "call_method"):
        return None, ""
    if after.target is torch._C._nn.gelu:
        step = _GELU.get(str(after.kwargs.get("approximate", "none")), "")
    else:
        step = _STEPS.get(after.target, "")
    return (after, step) if step else (None, "")


def _linear_layer(weight: torch.Tensor) -> torch.nn.Linear:
    """A module with this weight, which says the op that serves it."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer._parameters["weight"] = _parameter(weight)
    return layer


def _convolution_layer(kind: type[Any], weight: torch.Tensor, settings: Mapping[str, Any]) -> Any:
    groups, transposed = settings["groups"], issubclass(kind, torch.nn.modules.conv._ConvTransposeNd)
    first, second = weight.shape[0], weight.shape[1] * groups
    channels, features = (first, second) if transposed else (second, first)
    layer = kind(channels, features, tuple(weight.shape[2:]), bias=False, device="meta", **settings)
    layer._parameters["weight"] = _parameter(weight)
    return layer


def _parameter(weight: torch.Tensor) -> torch.nn.Parameter:
    return weight if type(weight) is torch.nn.Parameter else torch.nn.Parameter(weight.detach(), requires_grad=False)
