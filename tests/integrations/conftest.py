"""The provider of ONNX Runtime, compiled once and registered for each file of tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.onnxruntime_packs import provider_library
from tests.integrations.onnxruntime_sessions import NAME


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provider_library(tmp_path_factory.mktemp("provider"))


@pytest.fixture(scope="module")
def devices(library: Path) -> Iterator[Any]:
    import onnxruntime

    onnxruntime.register_execution_provider_library("haotuner", str(library))
    yield [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
    gc.collect()  # sessions that a refusal's traceback holds: the library's code frees them
    onnxruntime.unregister_execution_provider_library("haotuner")
