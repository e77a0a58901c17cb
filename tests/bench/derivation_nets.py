"""Published layers and networks that derivation is measured on, with random weights: as ONNX, as torch, and their requests.

Shapes are those of OLLIE's artefact (arXiv 2208.02025) where it has the case, and of the networks' papers else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SLOPE = 0.25  # of a PReLU at negative numbers
HALF_WIDTH, DILATION, WIDTH = 32, 4, 64  # of a band: neighbours on a side, their distance, features of a head
Feeds = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution or a transposed one: the weight's shape as ONNX has it, attributes, and the function behind it."""

    operator: str
    weight: tuple[int, int, int, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    function: str = ""

    @property
    def ends(self) -> tuple[int, int]:
        """Channels and features."""
        first, second = self.weight[:2]
        return (second, first) if self.operator == "Conv" else (first, second)


@dataclass(frozen=True, slots=True)
class Case:
    """Layers one behind the other; none: the dilated band.

    ``requests``: sizes of n, h and w (of a band: of q_0 heads and q_1 rows); ``published``: ratios.
    """

    layers: tuple[Layer, ...]
    requests: tuple[Mapping[str, int], ...]
    published: str = "-"

    @property
    def shapes(self) -> str:
        """The range of all requests as ``--shapes`` has it."""
        spans = {name: [request[name] for request in self.requests] for name in self.requests[0]}
        ends = {name: (min(sizes), max(sizes)) for name, sizes in spans.items()}
        return ";".join(f"{name}={low}" if low == high else f"{name}={low}..{high}" for name, (low, high) in ends.items())


def conv(channels: int, features: int, window: int, function: str = "", dilation: int = 1) -> Layer:
    """A convolution whose results have the image's size."""
    attributes = {"pads": [dilation * (window // 2)] * 4, "dilations": [dilation] * 2}
    return Layer("Conv", (features, channels, window, window), attributes, function)


def transposed(channels: int, features: int, window: int, stride: int, pad: int, function: str = "") -> Layer:
    """A transposed convolution."""
    return Layer(
        "ConvTranspose", (channels, features, window, window), {"pads": [pad] * 4, "strides": [stride] * 2}, function
    )


def _at(batch: int, height: int) -> dict[str, int]:
    return {"n": batch, "h": height, "w": height}


def _generator(features: Sequence[int], first: int, window: int) -> tuple[Layer, ...]:
    """A generator of images: from a point, each layer twice as large as the one before."""
    layers = [transposed(first, features[0], window, 1, 0, "relu")]
    for channels, count in zip(features, features[1:], strict=False):
        layers.append(transposed(channels, count, 4, 2, 1, "tanh" if count == features[-1] else "relu"))
    return tuple(layers)


CASES: Mapping[str, Case] = {
    "ResNet 3x3, 512 channels, 7x7": Case((conv(512, 512, 3),), (_at(1, 7),), "2.6 (A100)"),
    "ResNet 3x3, five sizes": Case((conv(512, 512, 3),), (_at(1, 7), _at(4, 7), _at(1, 14), _at(16, 14), _at(1, 56))),
    "SRCNN 5x5, one feature": Case((conv(32, 1, 5),), (_at(1, 224),), "1.6 (A100, batch 16)"),
    "FSRCNN 5x5, one channel": Case((conv(1, 56, 5),), (_at(1, 32),)),
    "FSRCNN 9x9 transposed": Case((transposed(56, 1, 9, 3, 4),), (_at(1, 32),)),
    "InfoGAN 4x4 transposed": Case((transposed(256, 448, 4, 2, 1),), (_at(16, 2),), "5.1 (A100)"),
    "DCGAN 4x4 transposed": Case((transposed(512, 256, 4, 2, 1),), (_at(1, 4),)),
    "CSRNet 3x3, dilation 2": Case((conv(512, 512, 3, "", 2),), (_at(1, 14),)),
    "Longformer's band, dilation 4": Case((), ({"q_0": 8, "q_1": 2048},), "4.5 (A100)"),
    "InfoGAN": Case(_generator([448, 256, 128, 64, 3], 228, 2), (_at(1, 1), _at(16, 1)), "up to 2.7 (A100, best of 7 nets)"),
    "DCGAN": Case(_generator([512, 256, 128, 64, 3], 100, 4), (_at(1, 1), _at(16, 1))),
    "FSRCNN": Case((conv(1, 56, 5, "prelu"), conv(56, 12, 1, "prelu"), *[conv(12, 12, 3, "prelu")] * 4,
                    conv(12, 56, 1, "prelu"), transposed(56, 1, 9, 3, 4)), (_at(1, 32), _at(1, 96))),
    "SRCNN": Case((conv(1, 64, 9, "relu"), conv(64, 32, 1, "relu"), conv(32, 1, 5)), (_at(1, 32), _at(1, 128))),
    "CSRNet, back end": Case((*[conv(512, 512, 3, "relu", 2)] * 3, conv(512, 256, 3, "relu", 2),
                              conv(256, 128, 3, "relu", 2), conv(128, 64, 3, "relu", 2), conv(64, 1, 1)), (_at(1, 14),)),
}  # fmt: skip


def weights(case: Case) -> list[tuple[Any, Any]]:
    """Weight and bias of each layer, drawn; results stay near 1."""
    draw = np.random.default_rng(0)
    result = []
    for layer in case.layers:
        channels, features = layer.ends
        scale = 1.0 / np.sqrt(channels * layer.weight[2] * layer.weight[3])
        weight = draw.normal(scale=scale, size=layer.weight).astype(np.float32)
        result.append((weight, draw.normal(scale=0.1, size=features).astype(np.float32)))
    return result


def written(case: Case, folder: Path, name: str) -> Path:
    """The case as a file: ONNX with named dimensions, of a band what torch exports."""
    if not case.layers:
        return _band_file(folder / f"{name}.pt2")
    nodes, initializers, tensor = list[Any](), list[Any](), "x"
    for at, (layer, arrays) in enumerate(zip(case.layers, weights(case), strict=True)):
        names = [f"weight{at}", f"bias{at}"]
        initializers += [numpy_helper.from_array(array, word) for array, word in zip(arrays, names, strict=True)]
        ends = [f"conv{at}", f"y{at}"]
        nodes.append(helper.make_node(layer.operator, [tensor, *names], ends[:1], **layer.attributes))
        if layer.function == "prelu":
            slope = np.full((layer.ends[1], 1, 1), SLOPE, np.float32)
            initializers.append(numpy_helper.from_array(slope, f"slope{at}"))
            nodes.append(helper.make_node("PRelu", [ends[0], f"slope{at}"], ends[1:]))
        elif layer.function:
            nodes.append(helper.make_node(layer.function.capitalize(), ends[:1], ends[1:]))
        tensor = ends[1] if layer.function else ends[0]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", case.layers[0].ends[0], "h", "w"])
    result = helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "net", [image], [result], initializers)
    path = folder / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _band(torch: Any) -> Any:
    """A module: a band of Q K^T of which each row has the products with its dilated neighbours."""

    class Band(torch.nn.Module):  # type: ignore[misc]
        def forward(self, q: Any, k: Any) -> Any:
            reach = HALF_WIDTH * DILATION
            around = torch.nn.functional.pad(k, (0, 0, reach, reach)).unfold(1, 2 * reach + 1, 1)[..., ::DILATION]
            return torch.einsum("bid,bidw->biw", q, around)

    return Band()


def _band_file(path: Path) -> Path:
    import torch

    heads, rows = torch.export.Dim("b", min=2, max=64), torch.export.Dim("s", min=512, max=8192)
    example = [torch.zeros(8, 1024, WIDTH) for _ in range(2)]
    dims = {name: {0: heads, 1: rows} for name in ("q", "k")}
    torch.export.save(torch.export.export(_band(torch), tuple(example), dynamic_shapes=dims), path)
    return path


def feeds(case: Case, request: Mapping[str, int]) -> dict[str, Any]:
    """Inputs of a request."""
    draw = np.random.default_rng(1)
    if not case.layers:
        return {name: draw.normal(size=(request["q_0"], request["q_1"], WIDTH)).astype(np.float32) for name in ("q", "k")}
    shape = (request["n"], case.layers[0].ends[0], request["h"], request["w"])
    return {"x": draw.normal(size=shape).astype(np.float32)}


def torch_calls(case: Case, inputs: Feeds) -> dict[str, Callable[[], Any]]:
    """Calls of torch on one thread, with oneDNN's kernels and without; each gives a tensor."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    functions = {"": lambda y: y, "relu": torch.relu, "tanh": torch.tanh, "prelu": lambda y: functional.leaky_relu(y, SLOPE)}
    parameters = [tuple(map(torch.from_numpy, pair)) for pair in weights(case)]

    def net() -> Any:
        with torch.inference_mode():
            if not case.layers:
                return _band(torch)(*tensors.values())
            y = tensors["x"]
            for layer, (weight, bias) in zip(case.layers, parameters, strict=True):
                pad, a = layer.attributes["pads"][0], layer.attributes
                if layer.operator == "Conv":
                    y = functional.conv2d(y, weight, bias, padding=pad, dilation=a.get("dilations", [1, 1]))
                else:
                    y = functional.conv_transpose2d(y, weight, bias, stride=a["strides"], padding=pad)
                y = functions[layer.function](y)
            return y

    def without() -> Any:
        with torch.backends.mkldnn.flags(enabled=False):
            return net()

    return {"oneDNN in torch": net} | ({"torch alone": without} if case.layers else {})


def library_calls(file: Path, inputs: Feeds) -> dict[str, Callable[[], Any]]:
    """Calls of ONNX Runtime and OpenVINO on one thread; each gives the answer. None for what torch exported."""
    import onnxruntime
    import openvino

    if file.suffix != ".onnx":
        return {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = openvino.Core()
    model = core.read_model(file)
    model.reshape({name: list(array.shape) for name, array in inputs.items()})
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    tensors = {name: openvino.Tensor(array, shared_memory=True) for name, array in inputs.items()}

    def vino() -> Any:
        return request.infer(tensors)[0]

    return {"ONNX Runtime": lambda: session.run(None, dict(inputs))[0], "OpenVINO": vino}
