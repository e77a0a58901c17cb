"""Ops of configurations: the sizes are those of the models' papers and of the weights that vLLM makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import UsageError
from haotuner.frontends.hugging_face.config import Config, read_config
from haotuner.frontends.hugging_face.layers import FAMILIES
from haotuner.frontends.hugging_face.ops import Serving, ops_of_config
from haotuner.spec.op import Op
from haotuner.spec.shape import ShapeRange

LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = {**LLAMA_8B, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}
QWEN_MOE = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
    "vocab_size": 151936, "num_experts": 60, "decoder_sparse_step": 2, "mlp_only_layers": [1], "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
    "n_routed_experts": 256, "n_shared_experts": 1, "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "n_inner": None,
    "vocab_size": 50257,
}
BERT = {
    "model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "max_position_embeddings": 512, "vocab_size": 30522,
}  # fmt: skip
QWEN3 = {
    **LLAMA_8B,
    "model_type": "qwen3",
    "hidden_size": 1024,
    "head_dim": 128,
    "num_attention_heads": 16,
    "intermediate_size": 3072,
}


def ops(
    fields: dict[str, Any], dtype: str = "", kinds: tuple[str, ...] = ("dense", "experts"), **how: Any
) -> dict[str, int]:
    """Number of layers by op."""
    rows = ops_of_config(Config(Path("config.json"), fields), Serving(**how), dtype, kinds)
    for row in rows:
        assert set(ShapeRange.parse(row.shapes).axes()) | {"s"} >= set(Op.parse(row.op).dynamic)
    return {row.op: row.count for row in rows}


def test_a_dense_decoder() -> None:
    assert ops(LLAMA_8B, "fp32") == {
        "dense:n=6144,k=4096": 32, "dense:n=4096,k=4096": 32, "dense:n=28672,k=4096": 32, "dense:n=4096,k=14336": 32,
        "dense:n=128256,k=4096": 1,
    }  # fmt: skip


def test_the_type_is_the_configurations_own() -> None:
    assert all(op.endswith(",dtype=bf16") for op in ops(LLAMA_8B))
    assert ops(GPT2) == {
        "dense:n=2304,k=768": 12, "dense:n=768,k=768": 12, "dense:n=3072,k=768": 12, "dense:n=768,k=3072": 12,
        "dense:n=50304,k=768": 1,  # a vocabulary of 50257 in multiples of 64
    }  # fmt: skip


@pytest.mark.parametrize("ranks, qkv, out", [(2, 3072, 2048), (8, 768, 512), (16, 512, 256)])
def test_ranks_share_heads_and_copy_heads_of_keys_that_are_too_few(ranks: int, qkv: int, out: int) -> None:
    specs = ops(LLAMA_8B, "fp32", ranks=ranks)
    assert f"dense:n={qkv},k=4096" in specs and f"dense:n=4096,k={out}" in specs
    assert f"dense:n={28672 // ranks},k=4096" in specs and f"dense:n={128256 // ranks},k=4096" in specs


def test_a_head_wider_than_its_share_of_the_hidden_state() -> None:
    specs = ops(QWEN3, "fp32")
    assert "dense:n=4096,k=1024" in specs and "dense:n=1024,k=2048" in specs


def test_experts_are_dense_on_cpus_and_one_grouped_product_on_gpus() -> None:
    on_cpu, on_gpu = ops(MIXTRAL, ranks=2), ops(MIXTRAL, ranks=2, on_device=True)
    assert on_cpu["dense:n=14336,k=4096,dtype=bf16"] == on_cpu["dense:n=4096,k=7168,dtype=bf16"] == 32 * 8
    assert on_gpu["grouped:g=8,n=14336,k=4096,dtype=bf16"] == on_gpu["grouped:g=8,n=4096,k=7168,dtype=bf16"] == 32
    assert on_cpu["dense:n=8,k=4096,dtype=bf16"] == 32, "the router"
    assert "dense:n=4096,k=14336,dtype=bf16" not in on_cpu, "no layer without experts"
    assert not any("grouped" in op for op in ops(MIXTRAL, kinds=("dense",), on_device=True))


def test_layers_with_and_without_experts() -> None:
    specs = ops(QWEN_MOE)
    sparse = 12  # every second layer; layer 1 would be one of them
    assert specs["dense:n=60,k=2048,dtype=bf16"] == sparse - 1
    assert specs["dense:n=2816,k=2048,dtype=bf16"] == 60 * (sparse - 1)
    assert specs["dense:n=11264,k=2048,dtype=bf16"] == 24, "dense layers, and shared experts of that size"


def test_attention_over_a_latent_vector() -> None:
    specs = ops(DEEPSEEK_V3, "fp32", ranks=8)
    assert {op: specs[op] for op in specs if specs[op] == 61} == {
        "dense:n=2112,k=7168": 61, "dense:n=3072,k=1536": 61, "dense:n=4096,k=512": 61, "dense:n=7168,k=2048": 61,
    }  # fmt: skip
    assert specs["dense:n=256,k=7168"] == 58 and specs["dense:n=4608,k=7168"] == 3
    assert specs["dense:n=512,k=7168"] == 58 * 256 + 58, "experts, and the shared one"
    light = {name: value for name, value in DEEPSEEK_V3.items() if name != "q_lora_rank"}
    assert {"dense:n=24576,k=7168", "dense:n=576,k=7168"} <= set(ops(light, "fp32"))


def test_an_encoder_has_no_head_and_sees_all_tokens() -> None:
    rows = ops_of_config(Config(Path("config.json"), BERT), Serving())
    assert [row.op for row in rows] == [
        "dense:n=2304,k=768", "dense:n=768,k=768", "dense:n=3072,k=768", "dense:n=768,k=3072", "attention:d=64"
    ]  # fmt: skip
    assert rows[-1].shapes == "b=12..96:12;t=1..512;s=t"


def test_bytes() -> None:
    sides = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {"targets": ["Linear"], "weights": sides, "input_activations": sides}
    fields = {**LLAMA_8B, "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}}
    specs = ops(fields)
    assert specs["dense:n=6144,k=4096,dtype=int8,in=int8,epilogue=scale,out=fp32"] == 32
    assert specs["dense:n=128256,k=4096,dtype=bf16"] == 1 and ops(LLAMA_8B, "int8") == specs


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_every_family_is_read(kind: str) -> None:
    assert ops({**DEEPSEEK_V3, "model_type": kind, "num_key_value_heads": 8}, kinds=("dense", "experts", "attention"))


@pytest.mark.parametrize(
    "change, how, words",
    [
        ({"model_type": "mamba"}, {}, "model_type 'mamba' is not known; known are bert"),
        ({"hidden_size": None}, {}, "hidden_size is absent"),
        ({"hidden_size": "4096"}, {}, "hidden_size is '4096'; expected a whole number"),
        ({"num_hidden_layers": 0}, {}, "num_hidden_layers is 0"),
        ({"vocab_size": True}, {}, "vocab_size is True"),
        ({}, {"ranks": 3}, "num_attention_heads is 32, which 3 ranks cannot share"),
        ({}, {"ranks": 0}, "ranks 0"),
        ({"num_key_value_heads": 6}, {"ranks": 8}, "6 heads of keys cannot be copied evenly"),
        ({"dtype": "float64"}, {}, "its type is float64; name another with --dtype"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, {}, r"quantised \(awq\)"),
        ({"quantization_config": [1]}, {}, "quantised"),
        ({"num_experts": -1}, {}, "num_experts is -1"),
        ({"num_experts": 4, "mlp_only_layers": "1"}, {}, "mlp_only_layers is '1'"),
    ],
)  # fmt: skip
def test_what_a_configuration_lacks_is_said(change: dict[str, Any], how: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ops({**LLAMA_8B, **change}, **how)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text, words in (("{", "not JSON"), ("[1]", "expected a JSON object"), ('{"model_type": "x"}', "'x' is not known")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=words):
            ops_of_config(read_config(tmp_path), Serving())
    with pytest.raises(UsageError, match="name the folder of a model"):
        read_config(tmp_path / "elsewhere")
    file.write_text(json.dumps({"model_type": "two_sides", "text_config": LLAMA_8B}), encoding="utf-8")
    assert ops_of_config(read_config(file), Serving()) == ops_of_config(Config(file, LLAMA_8B), Serving())
