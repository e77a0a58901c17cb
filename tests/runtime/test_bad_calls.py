"""Error texts of bad calls, of one op of each kind, are those of ``tests/golden/runtime/bad_calls.json``.

``python -m tests.runtime.test_bad_calls`` writes them anew; the commit says why they changed.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests.runtime.bad_calls import answers, bad_calls_pack

GOLDEN = Path(__file__).parents[1] / "golden" / "runtime" / "bad_calls.json"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bad_calls_pack(tmp_path_factory.mktemp("bad_calls"))


def test_arrays_are_answered_in_the_same_words(path: Path) -> None:
    assert answers(path, torch=False) == json.loads(GOLDEN.read_text())["numpy"]


def test_tensors_of_torch_are_answered_in_the_same_words(path: Path) -> None:
    pytest.importorskip("torch")
    assert answers(path, torch=True) == json.loads(GOLDEN.read_text())["torch"]


def write() -> None:
    """Write the golden."""
    import torch  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        path = bad_calls_pack(Path(folder))
        texts = {"numpy": answers(path, torch=False), "torch": answers(path, torch=True)}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(texts, indent=1) + "\n")


if __name__ == "__main__":
    write()
