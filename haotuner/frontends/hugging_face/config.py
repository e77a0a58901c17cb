"""``Config``: fields of a ``config.json`` under one name each, with the defaults that transformers has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError
from haotuner.host.files import read_regular

NAME = "config.json"
SIZE_LIMIT_BYTES = 16 << 20  # configurations take some kilobytes; lists of layers and labels make them longer
LARGEST = 1 << 31

# One name for what architectures call differently: transformers has the same table as ``attribute_map``.
ALIASES = {
    "hidden_size": ("n_embd", "dim", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("n_inner", "hidden_dim", "ffn_dim"),
    "max_position_embeddings": ("n_positions", "n_ctx"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
}


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration of one model; ``path`` is the file that it comes from."""

    path: Path
    fields: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """``model_type``, or empty."""
        return str(self.fields.get("model_type", ""))

    @property
    def model(self) -> str:
        """The architecture, as the file names it."""
        listed = self.fields.get("architectures")
        return str(listed[0]) if isinstance(listed, list) and listed else self.kind

    def size(self, name: str, default: int | None = None) -> int:
        """Whole number of a field from 1 up. UsageError: it is another value, or is absent and has no default."""
        value = self._value(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 1 <= value < LARGEST:
            shown = "absent" if value is None else f"{value!r:.80}"
            raise UsageError(f"{self.path}: {name} is {shown}; expected a whole number from 1 up")
        return value

    def count(self, name: str) -> int:
        """Whole number of a field from 0 up; 0 where it is absent or null."""
        value = self._value(name)
        if value is not None and (type(value) is not int or not 0 <= value < LARGEST):
            raise UsageError(f"{self.path}: {name} is {value!r:.80}; expected a whole number from 0 up")
        return value or 0

    def numbers(self, name: str) -> tuple[int, ...]:
        """Whole numbers of a field that is a list; none where it is absent."""
        value = self._value(name) or ()
        if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
            raise UsageError(f"{self.path}: {name} is {value!r:.80}; expected a list of whole numbers")
        return tuple(value)

    def text(self, *names: str) -> str:
        """The first of the fields that is there, as text; else empty."""
        return next((str(self.fields[name]) for name in names if self.fields.get(name) is not None), "")

    def _value(self, name: str) -> Any:
        for alias in (name, *ALIASES.get(name, ())):
            if self.fields.get(alias) is not None:
                return self.fields[alias]
        return None


def read_config(path: Path) -> Config:
    """Configuration in a model's folder, or in a file. Of a model of text and images it is that of the text.

    Raises:
        UsageError: there is none, it is no JSON object, or it is too large.
    """
    file = path / NAME if path.is_dir() else path
    try:
        document = json.loads(read_regular(file, SIZE_LIMIT_BYTES).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; name the folder of a model that transformers saved") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not JSON ({error}); expected the config.json of a model") from error
    if not isinstance(document, Mapping):
        raise UsageError(f"{file}: expected a JSON object with model_type, hidden_size and the like")
    inner = document.get("text_config")
    if isinstance(inner, Mapping):
        outer = {
            key: document[key] for key in ("architectures", "quantization_config", "dtype", "torch_dtype") if key in document
        }
        document = {**outer, **inner}
    return Config(file, document)
