"""Whole models in a manifest: their files, which lie in the folder ``models``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from haotuner.pack.names import MODEL_NAME, MODELS

_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Names inside the folder, with hashes; the weights' is only compared by ``verify``."""

    schedule: str
    schedule_sha256: str
    weights: str
    weights_sha256: str
    weights_bytes: int


def read_models(value: Any) -> dict[str, ModelFiles]:
    """The models of a manifest; ValueError says what is wrong."""
    if not isinstance(value, dict):
        raise ValueError("models must be an object")
    result = {}
    for name, document in value.items():
        files = ModelFiles(
            document["schedule"],
            document["schedule_sha256"],
            document["weights"],
            document["weights_sha256"],
            document["weights_bytes"],
        )
        if not MODEL_NAME.fullmatch(name) or files.schedule != f"{name}.json" or files.weights != f"{name}.weights":
            raise ValueError(f"model {name!r}: its files must be NAME.json and NAME.weights")
        if not all(
            isinstance(document, str) and _SHA.fullmatch(document)
            for document in (files.schedule_sha256, files.weights_sha256)
        ):
            raise ValueError(f"model {name}: files without a sha256")
        if type(files.weights_bytes) is not int or files.weights_bytes < 0:
            raise ValueError(f"model {name}: weights of {files.weights_bytes!r} bytes")
        result[name] = files
    return result


def model_files(models: Mapping[str, tuple[bytes, bytes]]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Of schedules and weights by name: what the manifest says, and the files by path in the pack."""
    documents: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for name, (schedule, weights) in models.items():
        documents[name] = {
            "schedule": f"{name}.json",
            "schedule_sha256": hashlib.sha256(schedule).hexdigest(),
            "weights": f"{name}.weights",
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "weights_bytes": len(weights),
        }
        files |= {f"{MODELS}/{name}.json": schedule, f"{MODELS}/{name}.weights": weights}
    return documents, files
