"""Named workloads: the ops of a model, as they are tuned together, each with the shapes that it sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from haotuner.errors import UsageError
from haotuner.spec.op import Op
from haotuner.spec.workload_file import SUFFIX, read_workload

BATCH = "b=1..8"
LEAST, MOST = 160, 320  # side of the image that a request brings
Layer = tuple[str, str]  # a spec, and the shapes that it sees


def _conv(c: int, f: int, taps: int, down: int, step: str = "", stride: int = 1, groups: int = 1) -> Layer:
    """A square window on an image that was made smaller ``down`` times; ``step``: what follows the sums and the bias."""
    words = f"c={c},f={f},r={taps},s={taps},stride={stride},pad={taps // 2},groups={groups}"
    sides = f"h={max(1, LEAST // down)}..{-(-MOST // down)};w=h"
    return f"conv2d:{words},epilogue={'+'.join(filter(None, ('bias', step)))}", f"{BATCH};{sides}"


def _row(n: int, k: int, step: str = "") -> Layer:
    """A layer on one row an image."""
    return f"dense:n={n},k={k}{f',epilogue=bias+{step}' if step else ''}", "m=1..8"


def resnet50() -> Iterator[Layer]:
    """He et al. 2016, table 1, with the stride in the 3x3 convolution, as torchvision has it; batch norm is in the bias."""
    yield _conv(3, 64, 7, 1, "relu", stride=2)
    before = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        down = 4 << stage
        for block in range(min(blocks, 2)):  # those behind the second are like it
            stride = 2 if stage and block == 0 else 1
            at = down // stride
            yield _conv(before, width, 1, at, "relu")
            yield _conv(width, width, 3, at, "relu", stride=stride)
            yield _conv(width, 4 * width, 1, down, "residual+relu")
            if block == 0:
                yield _conv(before, 4 * width, 1, at, stride=stride)
            before = 4 * width
    yield _row(1000, 2048)


# Howard et al. 2019, table 1: channels, taps, expansion, channels after, squeeze and excite, activation, stride.
_MOBILE = (
    (16, 3, 16, 16, False, "relu", 1), (16, 3, 64, 24, False, "relu", 2), (24, 3, 72, 24, False, "relu", 1),
    (24, 5, 72, 40, True, "relu", 2), (40, 5, 120, 40, True, "relu", 1), (40, 3, 240, 80, False, "hardswish", 2),
    (80, 3, 200, 80, False, "hardswish", 1), (80, 3, 184, 80, False, "hardswish", 1),
    (80, 3, 480, 112, True, "hardswish", 1), (112, 3, 672, 112, True, "hardswish", 1),
    (112, 5, 672, 160, True, "hardswish", 2), (160, 5, 960, 160, True, "hardswish", 1),
)  # fmt: skip


def mobilenet_v3() -> Iterator[Layer]:
    """MobileNetV3 large: expansions, depthwise windows, squeezes, projections."""
    yield _conv(3, 16, 3, 1, "hardswish", stride=2)
    down = 2
    for channels, taps, wide, after, squeezed, step, stride in _MOBILE:
        if wide != channels:
            yield _conv(channels, wide, 1, down, step)
        yield _conv(wide, wide, taps, down, step, stride=stride, groups=wide)
        down *= stride
        if squeezed:
            few = max(8, (wide // 4 + 4) // 8 * 8)  # a multiple of eight, at least nine tenths of a quarter
            few += 8 if few < 0.9 * (wide // 4) else 0
            yield _row(few, wide, "relu")
            yield _row(wide, few, "hardsigmoid")
        yield _conv(wide, after, 1, down, "residual" if stride == 1 and after == channels else "")
    yield _conv(160, 960, 1, down, "hardswish")
    yield _row(1280, 960, "hardswish")
    yield _row(1000, 1280)


def merged(layers: Iterable[Layer]) -> dict[str, str]:
    """Ops by name with their shapes, equal ones once; the same op at other sizes keeps the widest range of them."""
    result: dict[str, str] = {}
    for spec, shapes in layers:
        name = Op.parse(spec).name
        result[name] = _wider(result.get(name, shapes), shapes)
    return result


def _wider(name: str, other: str) -> str:
    def ends(text: str) -> list[int]:
        return [int(part) for part in text.split("h=")[1].split(";")[0].split("..")]

    if name == other or "h=" not in name:
        return name
    low, high = (min(ends(name)[0], ends(other)[0]), max(ends(name)[1], ends(other)[1]))
    return f"{BATCH};h={low}..{high};w=h"


TYPES = ("fp32", "fp16", "bf16", "int8")
ROWS = "m=1..2048"  # tokens of all requests of a batch


def _attention(heads: int, width: int, tokens: int) -> dict[str, str]:
    """Both products of attention, over heads of up to eight requests: scores, and what they weigh."""
    batch = f"b={heads}..{8 * heads}:{heads}"
    return {
        f"batch_matmul_k{width}_nt": f"{batch};m=1..{tokens};n=m",
        f"batch_matmul_n{width}": f"{batch};m=1..{tokens};k=m",
    }


def _dense(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, ROWS)


# Devlin et al. 2019, table of BERT-base: hidden 768, feed-forward 3072, 12 heads; q, k, v as one product.
_BERT = _dense("dense_n2304_k768", "dense_n768_k768", "dense_n3072_k768", "dense_n768_k3072")
WORKLOADS: dict[str, Mapping[str, str]] = {
    "bert_linears": _BERT,
    "bert_base": {**_BERT, **_dense("dense_n3072_k768_bias_gelu"), **_attention(12, 64, 512)},
    "bert_large": {
        **_dense("dense_n3072_k1024", "dense_n1024_k1024", "dense_n4096_k1024_bias_gelu", "dense_n1024_k4096"),
        **_attention(16, 64, 512),
    },
    "gpt2": {
        **_dense("dense_n2304_k768", "dense_n768_k768", "dense_n3072_k768_bias_gelutanh", "dense_n768_k3072"),
        **_dense("dense_n50257_k768"),
        **_attention(12, 64, 1024),
    },
    # Llama 3 8B (Grattafiori et al. 2024, table 3): hidden 4096, 8 of 32 heads for keys and values, feed-forward 14336.
    "llama_block": {
        **_dense("dense_n6144_k4096", "dense_n4096_k4096", "dense_n28672_k4096", "dense_n4096_k14336"),
        **_attention(32, 128, 1024),
    },
    "resnet50": merged(resnet50()),
    "mobilenet_v3": merged(mobilenet_v3()),
}
DEFAULT = "bert_linears"


def is_file(name: str) -> bool:
    """True if ``--workload`` names a file rather than a workload of the table."""
    return name.lower().endswith(SUFFIX)


def workload(name: str) -> tuple[Op, ...]:
    """The ops of a workload, of ``bert_base:dtype=bf16`` in another type, or of a file; UsageError lists names and types."""
    return tuple(Op.parse(op) for op in workload_shapes(name))


def workload_shapes(name: str) -> Mapping[str, str]:
    """Names of a workload's ops, each with the shapes that it sees, as ``--shapes`` has them; UsageError likewise."""
    if is_file(name):
        return read_workload(Path(name))
    of, colon, rest = name.partition(":")
    key, _, dtype = rest.partition("=")
    if of not in WORKLOADS:
        raise UsageError(
            f"unknown workload {of!r}; known: {', '.join(WORKLOADS)}. "
            "Or name a workload file (.json), or ops with --op dense:n=2304,k=768"
        )
    if colon and (key != "dtype" or dtype not in TYPES):
        raise UsageError(f"workload {name!r}: write {of}, or {of}:dtype=X with X of {', '.join(TYPES)}")
    if not colon:
        return WORKLOADS[of]
    return {_in(dtype, Op.parse(op)).name: shapes for op, shapes in WORKLOADS[of].items()}


def _in(dtype: str, op: Op) -> Op:
    """The op in another type. Sums of bytes become floats first, as ONNX's dynamic quantization has it.

    Those of a weight by a scale of each channel; products side by side are given theirs with the call.
    """
    if dtype != "int8":
        return replace(op, dtype=dtype)
    scaled = op.epilogue if op.kind == "batch_matmul" else ("scale", *op.epilogue)
    return replace(op, dtype=dtype, epilogue=scaled, options=(*op.options, ("out", "fp32")))
