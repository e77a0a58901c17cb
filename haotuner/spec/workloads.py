"""Named workloads: the ops of a model, as they are tuned together, each with the shapes that it sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from haotuner.errors import UsageError
from haotuner.spec.op import Op
from haotuner.spec.workload_images import merged, mobilenet_v3, resnet50

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


def workload(name: str) -> tuple[Op, ...]:
    """The ops of a workload, of ``bert_base:dtype=bf16`` in another type; UsageError lists names and types."""
    return tuple(Op.parse(op) for op in workload_shapes(name))


def workload_shapes(name: str) -> Mapping[str, str]:
    """Names of a workload's ops, each with the shapes that it sees, as ``--shapes`` has them; UsageError likewise."""
    of, colon, rest = name.partition(":")
    key, _, dtype = rest.partition("=")
    if of not in WORKLOADS:
        raise UsageError(f"unknown workload {of!r}; known: {', '.join(WORKLOADS)}. Or name ops with --op dense:n=2304,k=768")
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
