"""Whole models in a manifest: their files, which lie in the folder ``models``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from haotuner.pack.names import MODEL_NAME, MODELS

_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Names inside the folder, with hashes; the weights' is only compared by ``verify``.

    ``bytecode``: empty where the pack's library holds the words of the schedule, or only Python runs it.
    """

    schedule: str
    schedule_sha256: str
    weights: str
    weights_sha256: str
    weights_bytes: int
    bytecode: str = ""
    bytecode_sha256: str = ""


class ModelContent(NamedTuple):
    """Content of a model in a pack. ``schedule``: JSON for people; ``bytecode``: the same as a library runs it, or None."""

    schedule: bytes
    bytecode: bytes | None
    weights: bytes


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
            document.get("bytecode", ""),
            document.get("bytecode_sha256", ""),
        )
        if not MODEL_NAME.fullmatch(name) or files.schedule != f"{name}.json" or files.weights != f"{name}.weights":
            raise ValueError(f"model {name!r}: its files must be NAME.json and NAME.weights")
        if files.bytecode not in ("", f"{name}.bytecode") or bool(files.bytecode) != bool(files.bytecode_sha256):
            raise ValueError(f"model {name!r}: its bytecode must be NAME.bytecode, with a sha256")
        hashes = [files.schedule_sha256, files.weights_sha256, *([files.bytecode_sha256] if files.bytecode else [])]
        if not all(isinstance(sha256, str) and _SHA.fullmatch(sha256) for sha256 in hashes):
            raise ValueError(f"model {name}: files without a sha256")
        if type(files.weights_bytes) is not int or files.weights_bytes < 0:
            raise ValueError(f"model {name}: weights of {files.weights_bytes!r} bytes")
        result[name] = files
    return result


def model_files(models: Mapping[str, ModelContent]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Entries of the manifest for models by name, and their files by path in the pack."""
    documents: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for name, (schedule, bytecode, weights) in models.items():
        documents[name] = {
            "schedule": f"{name}.json",
            "schedule_sha256": hashlib.sha256(schedule).hexdigest(),
            "weights": f"{name}.weights",
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "weights_bytes": len(weights),
        }
        files |= {f"{MODELS}/{name}.json": schedule, f"{MODELS}/{name}.weights": weights}
        if bytecode is not None:
            documents[name] |= {
                "bytecode": f"{name}.bytecode",
                "bytecode_sha256": hashlib.sha256(bytecode).hexdigest(),
            }
            files[f"{MODELS}/{name}.bytecode"] = bytecode
    return documents, files
