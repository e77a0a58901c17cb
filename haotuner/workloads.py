"""Named workloads: the ops of a model, as they are tuned together."""

from __future__ import annotations

from haotuner.errors import UsageError
from haotuner.words.op import Op

# Devlin et al. 2019, table of BERT-base: hidden 768, feed-forward 3072; q, k, v as one product.
WORKLOADS: dict[str, tuple[str, ...]] = {
    "bert_base": ("dense_n2304_k768", "dense_n768_k768", "dense_n3072_k768", "dense_n768_k3072"),
    "bert_large": ("dense_n3072_k1024", "dense_n1024_k1024", "dense_n4096_k1024", "dense_n1024_k4096"),
    "gpt2": ("dense_n2304_k768", "dense_n768_k768", "dense_n3072_k768", "dense_n768_k3072", "dense_n50257_k768"),
    # Llama 3 8B (Grattafiori et al. 2024, table 3): hidden 4096, 8 of 32 heads for keys and values, feed-forward 14336.
    "llama_block": ("dense_n6144_k4096", "dense_n4096_k4096", "dense_n28672_k4096", "dense_n4096_k14336"),
}
DEFAULT = "bert_base"


def workload(name: str) -> tuple[Op, ...]:
    """The ops of a workload; UsageError lists the names."""
    if name not in WORKLOADS:
        raise UsageError(
            f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}. Or name ops with --op dense:n=2304,k=768"
        )
    return tuple(Op.parse(op) for op in WORKLOADS[name])
