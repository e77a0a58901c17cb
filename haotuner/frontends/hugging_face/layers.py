"""Linears of one rank's part of a model, by its configuration: the blocks of decoders and encoders, experts, heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from haotuner.errors import UsageError
from haotuner.frontends.hugging_face.config import Config

VOCABULARY_MULTIPLE = 64  # vLLM pads a vocabulary to it


@dataclass(frozen=True, slots=True)
class Family:
    """Facts of an architecture that its fields do not say."""

    gated: bool = True  # the feed-forward part is two products joined, a gate and what it weighs
    causal: bool = True  # a decoder; encoders see all tokens and have no head over the vocabulary
    latent: bool = False  # keys and values come from a latent vector (DeepSeek-AI 2024, section 2.1)


_GATED, _PLAIN, _ENCODER = Family(), Family(gated=False), Family(gated=False, causal=False)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"), _GATED),
    **dict.fromkeys(("gemma", "gemma2", "phi3", "granite", "olmo", "olmo2", "smollm3"), _GATED),
    **dict.fromkeys(("gpt2", "gpt_neox", "opt", "phi", "starcoder2"), _PLAIN),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "distilbert"), _ENCODER),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), Family(latent=True)),
}


@dataclass(frozen=True, slots=True)
class Linear:
    """Product with a weight of ``n`` rows and ``k`` columns, in ``count`` layers.

    ``rows``: what a row is: one of ``tokens``, of ``sequences`` (a head sees one row of each), or of an ``expert``'s tokens.
    """

    name: str
    n: int
    k: int
    count: int
    rows: str = "tokens"
    experts: int = 0


def family_of(config: Config) -> Family:
    """The family of a configuration. UsageError: an architecture whose layers are not known."""
    family = FAMILIES.get(config.kind)
    if family is None:
        raise UsageError(
            f"{config.path}: model_type {config.kind!r} is not known; known are {', '.join(sorted(FAMILIES))}. "
            "Name its ops with haotuner tune --op dense:n=N,k=K"
        )
    return family


def part(config: Config, what: str, extent: int, ranks: int) -> int:
    """One rank's part of an extent. UsageError where it cannot be cut so."""
    if extent % ranks:
        raise UsageError(f"{config.path}: {what} is {extent}, which {ranks} ranks cannot share evenly; name another --tp")
    return extent // ranks


def heads_of(config: Config, ranks: int) -> tuple[int, int, int]:
    """Heads of queries, heads of keys and the width of one, of one rank. Ranks above the heads of keys share them."""
    heads = config.size("num_attention_heads")
    keys = config.size("num_key_value_heads", heads)
    hidden = config.size("hidden_size")
    width = config.size("head_dim", hidden // heads or 1)
    own = part(config, "num_attention_heads", heads, ranks)
    if ranks > keys and ranks % keys:
        raise UsageError(f"{config.path}: {keys} heads of keys cannot be copied evenly to {ranks} ranks; name another --tp")
    return own, 1 if ranks > keys else part(config, "num_key_value_heads", keys, ranks), width


def sparse_layers(config: Config) -> int:
    """Number of layers whose feed-forward part is a mixture of experts."""
    layers, experts = config.size("num_hidden_layers"), config.count("num_experts")
    if not experts:
        return 0
    step = config.size("decoder_sparse_step", config.size("moe_layer_freq", 1))
    first, dense = config.count("first_k_dense_replace"), set(config.numbers("mlp_only_layers"))
    offset = 1 if config.kind.startswith("qwen") else 0  # Qwen counts layers from 1
    return sum((index + offset) % step == 0 and index >= first and index not in dense for index in range(layers))


def linears(config: Config, ranks: int) -> Iterator[Linear]:
    """Linears of one rank of ``ranks``, those of a block first."""
    family = family_of(config)
    layers, sparse = config.size("num_hidden_layers"), sparse_layers(config)
    yield from _latent(config, ranks, layers) if family.latent else _attention(config, ranks, layers)
    hidden = config.size("hidden_size")
    if layers > sparse:
        width = part(config, "intermediate_size", _feed_forward(config, hidden), ranks)
        yield from _gated_or_plain(family, hidden, width, layers - sparse)
    if sparse:
        yield from _experts(config, family, ranks, hidden, sparse)
    if family.causal:
        vocabulary = config.size("vocab_size")
        padded = -(-vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        yield Linear("lm_head", part(config, "the padded vocabulary", padded, ranks), hidden, 1, rows="sequences")


def _feed_forward(config: Config, hidden: int) -> int:
    return config.size("intermediate_size", 4 * hidden if config.kind == "gpt2" else None)


def _gated_or_plain(family: Family, hidden: int, width: int, count: int) -> Iterator[Linear]:
    yield Linear("gate_up_proj", 2 * width, hidden, count) if family.gated else Linear("fc_in", width, hidden, count)
    yield Linear("down_proj" if family.gated else "fc_out", hidden, width, count)


def _attention(config: Config, ranks: int, layers: int) -> Iterator[Linear]:
    own, keys, width = heads_of(config, ranks)
    hidden = config.size("hidden_size")
    yield Linear("qkv_proj", (own + 2 * keys) * width, hidden, layers)
    yield Linear("o_proj", hidden, own * width, layers)


def _latent(config: Config, ranks: int, layers: int) -> Iterator[Linear]:
    """Attention over a latent vector: what comes down from the hidden state is on every rank, heads are shared."""
    heads = part(config, "num_attention_heads", config.size("num_attention_heads"), ranks)
    hidden, latent, rope = config.size("hidden_size"), config.size("kv_lora_rank"), config.size("qk_rope_head_dim")
    plain, value = config.size("qk_nope_head_dim"), config.size("v_head_dim")
    query = config.count("q_lora_rank")
    if query:
        yield Linear("fused_qkv_a_proj", query + latent + rope, hidden, layers)
        yield Linear("q_b_proj", heads * (plain + rope), query, layers)
    else:
        yield Linear("q_proj", heads * (plain + rope), hidden, layers)
        yield Linear("kv_a_proj_with_mqa", latent + rope, hidden, layers)
    yield Linear("kv_b_proj", heads * (plain + value), latent, layers)
    yield Linear("o_proj", hidden, heads * value, layers)


def _experts(config: Config, family: Family, ranks: int, hidden: int, layers: int) -> Iterator[Linear]:
    experts = config.size("num_experts")
    width = config.count("moe_intermediate_size") or config.size("intermediate_size")
    own = part(config, "the experts' intermediate size", width, ranks)
    yield Linear("gate", experts, hidden, layers)
    yield Linear("experts.w13", 2 * own, hidden, layers, rows="expert", experts=experts)
    yield Linear("experts.w2", hidden, own, layers, rows="expert", experts=experts)
    shared = config.count("shared_expert_intermediate_size") or config.count("n_shared_experts") * width
    if shared:
        cut = part(config, "the shared experts' intermediate size", shared, ranks)
        yield from (
            Linear(f"shared_expert.{layer.name}", layer.n, layer.k, layer.count)
            for layer in _gated_or_plain(family, hidden, cut, layers)
        )
