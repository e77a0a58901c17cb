"""Every attribute of every operator that is read, value by value, against ``onnx.reference`` and ONNX Runtime.

Where the two differ it is enough to agree with either: which, and why, ``LIKE`` says; ``APART`` names what agrees with none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.bench.onnx_attributes import supported, variants, verdict  # noqa: E402, after the skip

# Operator: whom we agree with where the judges differ, and what the text of ONNX says.
LIKE: Mapping[str, tuple[str, str]] = {
    "BatchNormalization": (
        "runtime",
        "up to opset 13 as in inference; the reference takes its inputs for those of training",
    ),
    "ConvTranspose": ("runtime", "output_shape with SAME_UPPER: the end takes the larger half"),
    "DFT": ("reference", "in more digits"),
    "GRU": ("runtime", "clip bounds what activations are given; the reference knows no clip"),
    "GroupNormalization": ("runtime", "in the type of stash_type"),
    "Hardmax": ("runtime", "up to opset 12 over all axes from axis on; the reference takes one axis"),
    "LogSoftmax": ("runtime", "up to opset 12 over all axes from axis on; the reference takes one axis"),
    "LSTM": ("runtime", "clip bounds what activations are given; the reference knows no clip"),
    "LpPool": ("runtime", "auto_pad VALID: no pads; the reference ignores dilations there"),
    "MaxPool": ("", "SAME: ceil(extent / stride) places, ONNX Runtime ignores dilations; the reference is off in uint8"),
    "MaxUnpool": ("reference", "indices are those of the pooled tensor, whatever output_shape says"),
    "MeanVarianceNormalization": ("reference", "of an axis of one element"),
    "RNN": ("runtime", "clip bounds what activations are given; the reference knows no clip"),
    "RoiAlign": ("runtime", "up to opset 15 without half a pixel's shift; the reference shifts by default in all versions"),
    "STFT": ("reference", "in more digits"),
    "Softmax": ("runtime", "up to opset 12 over all axes from axis on; the reference takes one axis"),
    "TopK": ("reference", "sorted=0 promises no order"),
}
# Operator and a pattern of variants: why the answer is another one, or none. What ONNX does not allow is refused.
APART: Mapping[str, Mapping[str, str]] = {
    "AveragePool": {
        "opset 6": "the text names no count_include_pad: pads do not count, as by default later",
        "dilations=": "SAME: ceil(extent / stride) places; neither judge counts the gaps of a window as pads",
    },
    "BatchNormalization": {"training": "training mode is refused"},
    "Cast": {"FLOAT8|FLOAT4|INT4|INT2|STRING|E8M0|e8m0": "element types that graphs have not"},
    "CastLike": {"FLOAT8|FLOAT4|INT4|INT2|STRING": "element types that graphs have not"},
    "DFT": {"rfft_opset19 inverse=1": "an inverse of one side from real numbers"},
    "Celu": {"float16 alpha=0": "0 divided by 0, on which the judges differ"},
    "ConvTranspose": {
        "output_padding=": "an output_padding of a stride and more",
        "kernel_shape=": "another window than the weight's",
    },
    "DequantizeLinear": {
        "block": "blocks with scales of their own",
        "e4m3|e5m2|int4|int2|float4": "element types that graphs have not",
        "output_dtype=": "types of whole numbers",
    },
    "Equal": {"string": "text"},
    "GRU": {"clip=": "a clip of 0 and below; with layout=1 only the reference answers, which knows no clip"},
    "Gemm": {"no_bias opset": "two inputs where the version has three"},
    "GroupNormalization": {"stash_type": "halves, by the digits that they have"},
    "LRN": {"size=0": "nothing to sum"},
    "LSTM": {
        "clip=": "a clip of 0 and below; with layout=1 only the reference answers, which knows no clip",
        "layout=1": "inputs of the other layout",
    },
    "LpNormalization": {"p=": "p of neither 1 nor 2"},
    "LpPool": {
        "p=0": "a root of no degree",
        "dilations|SAME": "SAME: ceil(extent / stride) places; neither judge counts the gaps of a window as pads",
    },
    "MaxPool": {
        "pads=": "windows that hold nothing but pads are -infinity",
        "opset 7": "two outputs where the version has one",
    },
    "MaxUnpool": {".": "indices that no result has"},
    "MeanVarianceNormalization": {"axes=": "an axis named twice"},
    "OptionalHasElement": {"empty_no_input.* opset 17": "no input where the version has one"},
    "QuantizeLinear": {
        "block": "blocks with scales of their own",
        "e4m3|e5m2|int4|int2|float4": "element types that graphs have not",
    },
    "RNN": {"clip=": "a clip of 0 and below"},
    "ReduceMax": {"empty_set_bool opset": "truths, which these versions do not take"},
    "Resize": {
        "axes=": "scales of another number than axes",
        "tf_crop_and_resize": "without a region, or up to opset 12 as ONNX Runtime rounds it",
        "opset 10": "three inputs where the version has two",
    },
    "ReverseSequence": {"axis": "both axes the same, or lengths of another batch"},
    "STFT": {"without": "neither a window nor a frame_length"},
    "SplitToSequence": {".": "a sequence as an output of the model"},
    "Split": {"num_outputs=0": "no outputs", "without axis": "parts that do not add up to the first axis"},
    "Tile": {"opset 5": "two inputs where the version has three"},
    "Upsample": {"opset 6": "two inputs where the version has one"},
}
FAST = ("Clip", "ConvTranspose", "LpNormalization", "Softmax", "ReverseSequence")


@pytest.mark.parametrize("op", [pytest.param(op, marks=() if op in FAST else pytest.mark.slow) for op in supported()])
def test_attributes_mean_what_onnx_says(op: str) -> None:
    wrong = []
    for variant in variants(op):
        word, why = verdict(variant)
        apart = any(re.search(pattern, variant.name) for pattern in APART.get(op, ()))
        if word in ("wrong", "refused") and not apart:
            wrong.append((word, variant.name, why))
        if word in ("reference", "runtime") and LIKE.get(op, ("none",))[0] not in (word, "") and not apart:
            wrong.append((word, variant.name, why))
    assert wrong == []
