"""Models as users bring them to ``haotuner.torch.swap``: architectures of transformers, and nets by hand.

Each is small and has random weights. A module here takes what ``torch_models`` passes: positional arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from tests.bench.torch_nets_by_hand import UNet, Vgg, normed, resnet

nn = torch.nn
WORDS = 500  # of every vocabulary
Request = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Net:
    """A model, and how to ask it for three sizes."""

    name: str
    build: Callable[[int], torch.nn.Module]  # of a width: that of the stream between layers
    request: Callable[[int], Request]  # the arguments of a run of a size
    sizes: tuple[int, int, int]
    compiles: bool = True  # whether torch.compile takes the plain model, too


class Generating(torch.nn.Module):  # type: ignore[misc]
    """A model of transformers that continues what it is given by a few tokens, greedily."""

    def __init__(self, model: Any, tokens: int) -> None:
        super().__init__()
        self.model, self.tokens = model, tokens

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model.generate(ids, max_new_tokens=self.tokens, do_sample=False)
        return result


class Keyed(torch.nn.Module):  # type: ignore[misc]
    """A model that takes its inputs by name."""

    def __init__(self, model: torch.nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Any) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)))


def transformers_model(kind: str, config: str, **words: Any) -> Any:
    """A model of transformers by the names of its class and of its config."""
    import transformers

    settings = getattr(transformers, config)(**words)
    return getattr(transformers, kind)(settings).eval()


def _sized(width: int) -> dict[str, int]:
    return {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "vocab_size": WORDS,
    }


def tokens(count: int) -> torch.Tensor:
    """A request of one text."""
    return torch.randint(5, WORDS, (1, count))


def images(side: int, count: int = 1) -> torch.Tensor:
    """A request of square images."""
    return torch.randn(count, 3, side, side)


def waves(samples: int) -> torch.Tensor:
    """A request of one sound."""
    return torch.randn(1, samples)


_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _llama(width: int) -> Any:
    return transformers_model("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, **_sized(width), **_ENDS)


def _bert(width: int) -> Any:
    return transformers_model("BertModel", "BertConfig", **_sized(width))


def _modernbert(width: int) -> Any:
    return transformers_model(
        "ModernBertModel",
        "ModernBertConfig",
        pad_token_id=0,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
        **_sized(width),
    )


def _gpt2(width: int) -> Any:
    return transformers_model(
        "GPT2LMHeadModel", "GPT2Config", n_embd=width, n_layer=2, n_head=4, vocab_size=WORDS, bos_token_id=1, eos_token_id=2
    )


def _t5(width: int) -> Any:
    return transformers_model(
        "T5ForConditionalGeneration",
        "T5Config",
        d_model=width,
        d_kv=width // 4,
        d_ff=2 * width,
        num_layers=2,
        num_heads=4,
        vocab_size=WORDS,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )


def _deberta(width: int) -> Any:
    return transformers_model(
        "DebertaV2Model",
        "DebertaV2Config",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=32,
        conv_kernel_size=3,
        conv_act="gelu",
        **_sized(width),
    )


def _vit(width: int) -> Any:
    words = {key: value for key, value in _sized(width).items() if key != "vocab_size"}
    return Keyed(
        transformers_model("ViTModel", "ViTConfig", image_size=96, **words), "pixel_values", "interpolate_pos_encoding"
    )


def _convnext(width: int) -> Any:
    return transformers_model(
        "ConvNextModel", "ConvNextConfig", hidden_sizes=[width // 8, width // 4, width // 2, width], depths=[1, 1, 2, 1]
    )


def _mobilenet(width: int) -> Any:
    return transformers_model("MobileNetV2Model", "MobileNetV2Config", depth_multiplier=width / 730)


def _swin(width: int) -> Any:
    return transformers_model(
        "SwinModel", "SwinConfig", image_size=96, embed_dim=width // 4, depths=[2, 2], num_heads=[2, 4], window_size=4
    )


def _mamba(width: int) -> Any:
    return transformers_model(
        "MambaForCausalLM", "MambaConfig", hidden_size=width, num_hidden_layers=2, vocab_size=WORDS, **_ENDS
    )


def _whisper(width: int) -> Any:
    return transformers_model(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        d_model=width,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        vocab_size=WORDS,
        num_mel_bins=80,
        max_source_positions=100,
        max_target_positions=64,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **_ENDS,
    )


def _clip(width: int) -> Any:
    shared = {"hidden_size": width // 2, "intermediate_size": width, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers_model(
        "CLIPModel",
        "CLIPConfig",
        projection_dim=width // 4,
        text_config={**shared, "vocab_size": WORDS, **_ENDS},
        vision_config={**shared, "image_size": 64, "patch_size": 16},
    )


def _encodec(width: int) -> Any:
    return transformers_model(
        "EncodecModel", "EncodecConfig", num_filters=8, hidden_size=width // 8, codebook_dim=width // 8
    )


def _mimi(width: int) -> Any:
    return transformers_model(
        "MimiModel",
        "MimiConfig",
        num_filters=8,
        hidden_size=width // 4,
        codebook_dim=width // 8,
        vector_quantization_hidden_dimension=width // 8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=width // 2,
        upsample_groups=width // 4,
        codebook_size=64,
        num_quantizers=4,
    )


def _wav2vec2(width: int) -> Any:
    return transformers_model(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        conv_dim=[width // 4] * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        pad_token_id=0,
        **_sized(width),
    )


def _lora(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=8, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False)
    return get_peft_model(model, config).eval()


def _merged(width: int) -> Any:
    model = _lora(_llama(width))
    model.merge_adapter()
    return model


def _hooked(width: int) -> Any:
    hooks: Any = import_module("accelerate.hooks")

    class Tripled(hooks.ModelHook):  # type: ignore[misc]
        def post_forward(self, module: Any, output: Any) -> Any:
            return output * 3

    model = _bert(width)
    hooks.add_hook_to_module(model.encoder.layer[0].output.dense, Tripled())
    return model


_TEXT, _IMAGE = (5, 21, 64), (64, 96, 160)


def _both(count: int) -> Request:
    return tokens(count), images(64, 1 + count // 16)


NETS = (
    Net("llama", _llama, lambda n: (tokens(n),), _TEXT),
    Net(
        "llama, generating", lambda width: Generating(_llama(width), 12), lambda n: (tokens(n),), (3, 9, 21), compiles=False
    ),
    Net("llama, LoRA", lambda width: _lora(_llama(width)), lambda n: (tokens(n),), _TEXT),
    Net("llama, LoRA merged", _merged, lambda n: (tokens(n),), _TEXT),
    Net("llama, LoRA unloaded", lambda width: _lora(_llama(width)).merge_and_unload(), lambda n: (tokens(n),), _TEXT),
    Net("bert", _bert, lambda n: (tokens(n),), _TEXT),
    Net("bert, a hook of accelerate", _hooked, lambda n: (tokens(n),), _TEXT),
    Net("modernbert", _modernbert, lambda n: (tokens(n),), _TEXT),
    Net("gpt2", _gpt2, lambda n: (tokens(n),), _TEXT),
    Net("gpt2, generating", lambda width: Generating(_gpt2(width), 12), lambda n: (tokens(n),), (3, 9, 21), compiles=False),
    Net(
        "t5",
        lambda width: Keyed(_t5(width), "input_ids", "decoder_input_ids"),
        lambda n: (tokens(n), tokens(1 + n // 2)),
        _TEXT,
    ),
    Net("deberta-v2", _deberta, lambda n: (tokens(n),), _TEXT),
    Net("mamba", _mamba, lambda n: (tokens(n),), _TEXT),
    Net(
        "mamba, generating", lambda width: Generating(_mamba(width), 12), lambda n: (tokens(n),), (3, 9, 21), compiles=False
    ),
    Net("vit", _vit, lambda n: (images(n), True), (64, 96, 128)),
    Net("convnext", _convnext, lambda n: (images(n),), _IMAGE),
    Net("mobilenet-v2", _mobilenet, lambda n: (images(n),), _IMAGE),
    Net("swin", _swin, lambda n: (images(n),), _IMAGE),
    Net("clip", lambda width: Keyed(_clip(width), "input_ids", "pixel_values"), _both, (5, 21, 40)),
    Net(
        "whisper",
        lambda width: Keyed(_whisper(width), "input_features", "decoder_input_ids"),
        lambda n: (torch.randn(1, 80, 200), tokens(n)),
        (1, 7, 30),
    ),
    Net(
        "whisper, generating",
        lambda width: Generating(_whisper(width), 8),
        lambda n: (torch.randn(n, 80, 200),),
        (1, 2, 3),
        False,
    ),
    Net("encodec", _encodec, lambda n: (waves(n)[None],), (2400, 4801, 9600)),
    Net("mimi", _mimi, lambda n: (waves(n)[None],), (5760, 9600, 19200)),
    Net("wav2vec2", _wav2vec2, lambda n: (waves(n),), (4000, 6001, 12000)),
    Net("resnet", lambda _: resnet(), lambda n: (images(n),), _IMAGE),
    Net("vgg, read between layers", lambda _: normed(Vgg()), lambda n: (images(n),), _IMAGE),
    Net("u-net", lambda _: normed(UNet()), lambda n: (images(n),), (96, 160, 224)),
)
