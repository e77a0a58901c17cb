"""Ops of a model's configuration, with the shapes that a server's batches give them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from haotuner.errors import UsageError
from haotuner.frontends.hugging_face.config import Config
from haotuner.frontends.hugging_face.layers import Linear, family_of, heads_of, linears
from haotuner.spec.workload_file import WorkloadOp

KINDS = ("dense", "experts", "attention")
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}  # as configurations say them
INT8 = "int8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Server of the model: ranks that share it, most tokens and sequences of one batch, and the kind of device."""

    ranks: int = 1
    tokens: int = 2048
    sequences: int = 256
    requests: int = 8  # prompts side by side in one call of attention
    on_device: bool = False

    def check(self) -> None:
        """UsageError for a number below 1."""
        for name in ("ranks", "tokens", "sequences", "requests"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)}: give a whole number from 1 up")


def ops_of_config(config: Config, serving: Serving, dtype: str = "", kinds: Sequence[str] = KINDS) -> tuple[WorkloadOp, ...]:
    """The ops of one rank, equal ones once, in the order of a block.

    Args:
        config: the model.
        serving: how it is run.
        dtype: fp32, bf16, fp16 or int8 (signed bytes on either side); empty: the configuration's own.
        kinds: which of ``KINDS``.

    Raises:
        UsageError: the configuration lacks a field, or its weights are quantised in a way that no pack holds.
    """
    serving.check()
    odd = [kind for kind in kinds if kind not in KINDS]
    if odd or not kinds:
        raise UsageError(f"kinds {', '.join(kinds) or 'none'}: write some of {', '.join(KINDS)}")
    blocks, rest = _types(config, dtype)
    rows = [op for layer in linears(config, serving.ranks) for op in _linear(layer, serving, blocks, rest, kinds)]
    if "attention" in kinds and not family_of(config).latent:
        rows.append(_attention(config, serving, rest))
    return _merged(rows)


def _types(config: Config, dtype: str) -> tuple[str, str]:
    """Types of the blocks' linears, and of the rest."""
    own = DTYPES.get(config.text("dtype", "torch_dtype") or "float32", "")
    plain = own or "fp32"
    quantisation = config.fields.get("quantization_config")
    if dtype:
        return dtype, plain if dtype == INT8 else dtype
    if not quantisation:
        if not own:
            raise UsageError(f"{config.path}: its type is {config.text('dtype', 'torch_dtype')}; name another with --dtype")
        return own, own
    if not _is_signed_bytes(quantisation):
        raise UsageError(
            f"{config.path}: its weights are quantised ({_method(quantisation)}), and packs hold products of int8 weights "
            "with symmetric int8 activations; --dtype bf16 writes the ops of the model as it is without that"
        )
    return INT8, plain


def _method(quantisation: Any) -> str:
    return str(quantisation.get("quant_method", "?") if isinstance(quantisation, dict) else type(quantisation).__name__)


def _is_signed_bytes(quantisation: Any) -> bool:
    """True if each group of layers has int8 weights and symmetric int8 activations, as compressed-tensors writes them."""
    groups = quantisation.get("config_groups") if isinstance(quantisation, dict) else None
    if not isinstance(groups, dict) or not groups or quantisation.get("quant_method") != "compressed-tensors":
        return False
    for group in groups.values():
        sides = [group.get(side) for side in ("weights", "input_activations")] if isinstance(group, dict) else [None]
        for side in sides:
            if not isinstance(side, dict) or side.get("num_bits") != 8 or side.get("type", "int") != "int":
                return False
            if not side.get("symmetric", True):
                return False
    return True


def _linear(layer: Linear, serving: Serving, blocks: str, rest: str, kinds: Sequence[str]) -> Iterator[WorkloadOp]:
    most = serving.sequences if layer.rows == "sequences" else serving.tokens
    dtype = rest if layer.rows == "sequences" or layer.name == "gate" else blocks
    if layer.rows != "expert":
        if "dense" in kinds:
            yield WorkloadOp(dense(layer.n, layer.k, dtype), f"m=1..{most}", layer.name, layer.count)
    elif "experts" in kinds and serving.on_device:
        word = "" if dtype == "fp32" else f",dtype={dtype}"
        yield WorkloadOp(f"grouped:g={layer.experts},n={layer.n},k={layer.k}{word}", f"m=1..{most}", layer.name, layer.count)
    elif "experts" in kinds:
        yield WorkloadOp(dense(layer.n, layer.k, dtype), f"m=1..{most}", layer.name, layer.count * layer.experts)


def dense(n: int, k: int, dtype: str) -> str:
    """Spec of a linear without what follows it; of int8, sums times a scale of each channel in float32."""
    if dtype == INT8:
        return f"dense:n={n},k={k},dtype=int8,in=int8,epilogue=scale,out=fp32"
    return f"dense:n={n},k={k}{'' if dtype == 'fp32' else f',dtype={dtype}'}"


def _attention(config: Config, serving: Serving, dtype: str) -> WorkloadOp:
    """Attention of prompts: each head of each request is one of a batch, keys are as many as queries."""
    heads, _, width = heads_of(config, serving.ranks)
    longest = min(serving.tokens, config.size("max_position_embeddings", serving.tokens))
    words = ("" if dtype == "fp32" else f",dtype={dtype}") + (",causal=end" if family_of(config).causal else "")
    batch = f"b={heads}..{serving.requests * heads}:{heads}" if serving.requests > 1 else f"b={heads}"
    return WorkloadOp(
        f"attention:d={width}{words}", f"{batch};t=1..{longest};s=t", "attention", config.size("num_hidden_layers")
    )


def _merged(rows: Sequence[WorkloadOp]) -> tuple[WorkloadOp, ...]:
    """Equal ops once, with all their layers, and the widest of their ranges of rows."""
    result: dict[str, WorkloadOp] = {}
    for row in rows:
        before = result.get(row.op)
        if before is None:
            result[row.op] = row
            continue
        wider = max(before.shapes, row.shapes, key=lambda text: int(text.rpartition("..")[2]))
        result[row.op] = WorkloadOp(before.op, wider, f"{before.layers}, {row.layers}", before.count + row.count)
    return tuple(result.values())
