"""Options of the plugin, and the entry point that vLLM looks up: without vLLM."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from haotuner.errors import UsageError
from haotuner.torch.vllm.options import Options

ROOT = Path(__file__).parents[3]


def test_the_entry_point_is_a_function() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["haotuner"].partition(":")
    assert callable(getattr(import_module(module), name))


@pytest.mark.parametrize("additional", [None, {}, {"other": 1}, object()])
def test_without_the_key_nothing_is_asked_for(additional: Any) -> None:
    assert Options.of(additional) is None


def test_a_pack_is_named() -> None:
    assert Options.of({"haotuner": {"pack": "here", "pack_id": "0"}}) == Options(Path("here"))


@pytest.mark.parametrize(
    "additional, words",
    [
        ("here", "is 'here'; write --additional-config"),
        ({}, "names no pack"),
        ({"pack": ""}, "names no pack"),
        ({"pack": 3}, "names no pack"),
        ({"pack": "here", "threads": 2}, "unknown keys threads"),
    ],
)
def test_other_forms_are_refused(additional: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Options.of({"haotuner": additional})
