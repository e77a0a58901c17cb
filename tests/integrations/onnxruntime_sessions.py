"""Sessions of ONNX Runtime with the provider, and its refusals in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NAME = "HaotunerExecutionProvider"


def session_of(devices: Any, model: Path | bytes, *, profile: Path | None = None, **options: Any) -> Any:
    """A session of the provider; ``profile``: where the runtime writes which provider ran a node."""
    import onnxruntime

    chosen = onnxruntime.SessionOptions()
    chosen.log_severity_level = 4
    if profile is not None:
        chosen.enable_profiling, chosen.profile_file_prefix = True, str(profile)
    chosen.add_provider_for_devices(devices, {key: str(value) for key, value in options.items()})
    return onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model), chosen, enable_fallback=False)


def refusal(devices: Any, model: Path | bytes, **options: Any) -> str:
    """Words in which a session is refused."""
    with pytest.raises(Exception, match=NAME) as refused:
        session_of(devices, model, **options)
    return str(refused.value)
