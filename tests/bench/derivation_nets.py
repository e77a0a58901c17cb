"""Published layers and networks that derivation is measured on, with random weights: as ONNX, as torch, and their requests.

Shapes are those of OLLIE's artefact (arXiv 2208.02025) where it has the case, and of the networks' papers else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.bench.derivation_layers import Layer, conv, gcn, generator, transposed

SLOPE = 0.25  # of a PReLU at negative numbers
HALF_WIDTH, DILATION, WIDTH = 32, 4, 64  # of a band: neighbours on a side, their distance, features of a head
Feeds = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """Layers in an order in which they can run; none: the dilated band.

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


def _at(batch: int, height: int) -> dict[str, int]:
    return {"n": batch, "h": height, "w": height}


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
    "InfoGAN": Case(generator([448, 256, 128, 64, 3], 228, 2), (_at(1, 1), _at(16, 1)), "up to 2.7 (A100, best of 7 nets)"),
    "DCGAN": Case(generator([512, 256, 128, 64, 3], 100, 4), (_at(1, 1), _at(16, 1))),
    "FSRCNN": Case((conv(1, 56, 5, "prelu"), conv(56, 12, 1, "prelu"), *[conv(12, 12, 3, "prelu")] * 4,
                    conv(12, 56, 1, "prelu"), transposed(56, 1, 9, 3, 4)), (_at(1, 32), _at(1, 96))),
    "GCN": Case(gcn([64, 128, 256, 512], 21, 7), (_at(1, 64), _at(1, 224))),
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
    nodes, initializers, results = list[Any](), list[Any](), list[str]()

    def node(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(array: Any, word: str) -> str:
        initializers.append(numpy_helper.from_array(array, word))
        return word

    for at, (layer, (weight, bias)) in enumerate(zip(case.layers, weights(case), strict=True)):
        source = (results[-1] if results else "x") if layer.reads is None else results[layer.reads]
        own = [] if layer.operator == "MaxPool" else [constant(weight, f"weight{at}"), constant(bias, f"bias{at}")]
        tensor = node(layer.operator, [source, *own], f"conv{at}", **layer.attributes)
        if layer.adds is not None:
            other = results[layer.adds]
            if layer.operator == "ConvTranspose":
                size = node("Shape", [other], f"size{at}", start=2)
                starts, axes = (
                    constant(np.array(ends), f"{word}{at}") for word, ends in (("starts", [0, 0]), ("axes", [2, 3]))
                )
                tensor = node("Slice", [tensor, starts, size, axes], f"cut{at}")
            tensor = node("Add", [tensor, other], f"sum{at}")
        if layer.function == "prelu":
            slope = constant(np.full((layer.ends[1], 1, 1), SLOPE, np.float32), f"slope{at}")
            tensor = node("PRelu", [tensor, slope], f"y{at}")
        elif layer.function:
            tensor = node(layer.function.capitalize(), [tensor], f"y{at}")
        results.append(tensor)
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", case.layers[0].ends[0], "h", "w"])
    result = helper.make_tensor_value_info(results[-1], TensorProto.FLOAT, None)
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
            results = list[Any]()
            for layer, (weight, bias) in zip(case.layers, parameters, strict=True):
                x = (results[-1] if results else tensors["x"]) if layer.reads is None else results[layer.reads]
                a, pads = layer.attributes, layer.attributes["pads"][:2]
                strides = a.get("strides", [1, 1])
                if layer.operator == "Conv":
                    y = functional.conv2d(x, weight, bias, strides, pads, a.get("dilations", [1, 1]))
                elif layer.operator == "MaxPool":
                    y = functional.max_pool2d(x, a["kernel_shape"], strides, pads)
                else:
                    y = functional.conv_transpose2d(x, weight, bias, strides, pads)
                if layer.adds is not None:
                    other = results[layer.adds]
                    y = y[..., : other.shape[2], : other.shape[3]] + other
                results.append(functions[layer.function](y))
            return results[-1]

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
