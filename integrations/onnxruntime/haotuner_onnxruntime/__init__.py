"""ONNX Runtime's HaotunerExecutionProvider: whole models, served from packs.

    import haotuner_onnxruntime
    import onnxruntime

    haotuner_onnxruntime.register()
    session = onnxruntime.InferenceSession(
        "model.onnx", providers=[("HaotunerExecutionProvider", {"pack": "FOLDER"}), "CPUExecutionProvider"]
    )

A pack is code: the session runs it in this process, so name only packs that you would run as a program.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

EP_NAME = "HaotunerExecutionProvider"
REGISTRATION = "haotuner"
LIBRARY = Path(__file__).resolve().parent / "libhaotuner_onnxruntime.so"


def get_library_path() -> str:
    """Path of the provider's shared library, for ``onnxruntime.register_execution_provider_library``."""
    if not LIBRARY.is_file():
        raise FileNotFoundError(
            f"{LIBRARY} is not there: this is the source tree; install the wheel (pip install integrations/onnxruntime)"
        )
    return str(LIBRARY)


def get_ep_name() -> str:
    """Name of the provider."""
    return EP_NAME


def get_ep_names() -> list[str]:
    """Names of all providers of the library."""
    return [EP_NAME]


def register() -> list[Any]:
    """Devices of the provider, for ``add_provider_for_devices`` of session options; registers its library first, once."""
    import onnxruntime

    if not (devices := _devices(onnxruntime)):
        onnxruntime.register_execution_provider_library(REGISTRATION, get_library_path())
        devices = _devices(onnxruntime)
    return devices


def _devices(onnxruntime: Any) -> list[Any]:
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == EP_NAME]


def options_for_bytes(model: bytes, **options: str) -> dict[str, str]:
    """The provider's options for a model that is passed as bytes: ``options``, and the hash that names the model."""
    return {**options, "model_sha256": hashlib.sha256(model).hexdigest()}
