"""Models that torch's own exporter writes: architectures of transformers, random weights, as ONNX files of dynamic sizes.

Each has the configuration of ``tests.bench.torch_nets``, or one like those: two layers of ``WIDTH`` features. ``exported``
needs torch, transformers and onnxscript.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHEEL = "transformers"  # in place of a wheel that carries the file
WIDTH, OPSET = 256, 20


@dataclass(frozen=True, slots=True)
class Export:
    """A model: its builder, the inputs of an example by name, their dynamic axes, and its sizes as ``--shapes`` has them."""

    name: str
    build: Callable[[], Any]
    example: Callable[[], Mapping[str, Any]]
    axes: Mapping[str, Mapping[int, str]]
    shapes: str
    elements: str = ""  # of inputs whose elements matter, as ``haotuner bench --inputs``


def exported(name: str, folder: Path) -> Path:
    """The ONNX file of a model by name, in a folder that keeps it; written where it is not there yet.

    KeyError for another name; ModuleNotFoundError without torch, transformers or onnxscript.
    """
    import torch

    path, export = folder / f"{name}.onnx", {export.name: export for export in EXPORTS}[name]
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, example = _first_tensor(export.build()), dict(export.example())
    axes = {key: {axis: torch.export.Dim(text) for axis, text in export.axes[key].items()} for key in example}
    shared = {dim.__name__: dim for dims in axes.values() for dim in dims.values()}
    shapes = {key: {axis: shared[dim.__name__] for axis, dim in dims.items()} for key, dims in axes.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and transformers
        torch.onnx.export(
            model.eval(), (), path, kwargs={"inputs": example}, dynamic_shapes={"inputs": shapes}, dynamo=True,
            opset_version=OPSET, external_data=False, input_names=list(example), output_names=["y"], verbose=False,
        )  # fmt: skip
    return path


def _first_tensor(model: Any) -> Any:
    """A module of a dictionary of inputs that returns the first tensor of the model's answer."""
    import torch

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: dict[str, torch.Tensor]) -> Any:
            answer = self.model(**inputs)
            return answer if isinstance(answer, torch.Tensor) else answer[0]

    return First()


def _net(name: str) -> Callable[[], Any]:
    """The model of ``tests.bench.torch_nets`` of this name."""

    def build() -> Any:
        from tests.bench.torch_nets import NETS, Keyed

        (net,) = [net for net in NETS if net.name == name]
        model = net.build(WIDTH)
        return model.model if isinstance(model, Keyed) else model

    return build


def _built(kind: str, config: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        from tests.bench.torch_nets import transformers_model

        return transformers_model(kind, config, **settings)

    return build


_LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH}
_TEXT = {**_LAYERS, "vocab_size": 500, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_VISION = {**_LAYERS, "image_size": 96, "patch_size": 16}
_STAGES = {"depths": [1, 1, 2, 1], "hidden_sizes": [32, 64, 128, WIDTH]}
_DENSE = {
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [32, 64, 64, 64],
    "reassemble_factors": [4, 2, 1, 0.5],
    "fusion_hidden_size": 32,
    "is_hybrid": False,
}
_CHUNKED = {"num_heads": 8, "head_dim": 64, "n_groups": 2, "state_size": 32, "chunk_size": 64}
_WINDOWS = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 64}


def _ids() -> dict[str, Any]:
    import torch

    return {"input_ids": torch.randint(5, 500, (2, 12)), "attention_mask": torch.ones(2, 12, dtype=torch.int64)}


def _chunk() -> dict[str, Any]:
    import torch

    return {"input_ids": torch.randint(5, 500, (2, 64))}  # of one chunk, whose length the exporter fixes


def _image(side: int = 96) -> Callable[[], dict[str, Any]]:
    def example() -> dict[str, Any]:
        import torch

        return {"pixel_values": torch.randn(2, 3, side, side)}

    return example


def _text(name: str, build: Callable[[], Any], **more: Any) -> Export:
    axes = {key: {0: "batch", 1: "tokens"} for key in ("input_ids", "attention_mask")}
    return Export(name, build, _ids, axes, "batch=1..4;tokens=1..128", "input_ids=5..499;attention_mask=1", **more)


def _fixed(name: str, build: Callable[[], Any]) -> Export:
    return Export(name, build, _image(), {"pixel_values": {0: "batch"}}, "batch=1..8")


def _any(name: str, build: Callable[[], Any], step: int = 32) -> Export:
    """Of images of any height and width, whole multiples of ``step``."""
    axes = {"pixel_values": {0: "batch", 2: "height", 3: "width"}}
    sizes = f"{3 * step}..{8 * step}:{step}"
    return Export(name, build, _image(128), axes, f"batch=1..2;height={sizes};width={sizes}")


def _wave() -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(2, 4000)}


def _mel() -> dict[str, Any]:
    import torch

    return {"input_features": torch.randn(2, 80, 200), "decoder_input_ids": torch.randint(5, 500, (2, 7))}


_OWN_LAYERS = {key: value for key, value in _LAYERS.items() if key != "intermediate_size"}
_TOKENS = {0: "batch", 1: "tokens"}
EXPORTS = (
    _text("llama", _net("llama")),
    _text("gemma3", _built("Gemma3ForCausalLM", "Gemma3TextConfig", **_GROUPED, **_WINDOWS, **_TEXT)),
    _text("qwen3", _built("Qwen3ForCausalLM", "Qwen3Config", **_GROUPED, **_TEXT)),
    _text("modernbert", _net("modernbert")),
    _text("deberta", _net("deberta-v2")),
    _text("xlm_roberta", _built("XLMRobertaModel", "XLMRobertaConfig", max_position_embeddings=200, **_TEXT)),
    _text("clip_text", _built("CLIPTextModel", "CLIPTextConfig", max_position_embeddings=128, **_TEXT)),
    Export(
        "mamba2",
        _built("Mamba2Model", "Mamba2Config", hidden_size=WIDTH, num_hidden_layers=2, vocab_size=500, **_CHUNKED),
        _chunk,
        {"input_ids": {0: "batch"}},
        "batch=1..8",
        "input_ids=5..499",
    ),
    Export(
        "wav2vec2",
        _net("wav2vec2"),
        _wave,
        {"input_values": {0: "batch", 1: "samples"}},
        "batch=1..2;samples=1600..16000",
    ),
    Export(
        "whisper",
        _net("whisper"),
        _mel,
        {"input_features": {0: "batch"}, "decoder_input_ids": _TOKENS},
        "batch=1..2;tokens=1..64",
        "decoder_input_ids=5..499",
    ),
    _fixed("vit", _built("ViTModel", "ViTConfig", **_VISION)),
    _fixed("siglip", _built("SiglipVisionModel", "SiglipVisionConfig", **_VISION)),
    _fixed("dpt", _built("DPTForDepthEstimation", "DPTConfig", **_DENSE, **{**_VISION, "num_hidden_layers": 4})),
    _any("dinov2", _built("Dinov2Model", "Dinov2Config", image_size=112, patch_size=14, mlp_ratio=2, **_OWN_LAYERS), 28),
    _any(
        "segformer",
        _built("SegformerForSemanticSegmentation", "SegformerConfig", decoder_hidden_size=WIDTH, num_labels=20, **_STAGES),
    ),
    _any("convnextv2", _built("ConvNextV2Model", "ConvNextV2Config", **_STAGES)),
)
