"""Real engines of vLLM on a CPU: with linears from a pack they give the tokens that they give without."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.torch.vllm.engine import answers, missing, prompts, save_llama

WHY = missing()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.skipif(bool(WHY), reason=WHY or "vllm: there")]

VOCABULARY, LAYERS = 8192, 8
SIZES: dict[str, Any] = {  # 50 M parameters
    "hidden_size": 640, "intermediate_size": 1728, "num_hidden_layers": LAYERS, "num_attention_heads": 10,
    "num_key_value_heads": 10, "vocab_size": VOCABULARY, "tie_word_embeddings": False,
}  # fmt: skip
LENGTHS = (1, 2, 7, 10, 33, 50, 64, 100, 150, 200, 317, 400)
JOB: dict[str, Any] = {"prompts": prompts(LENGTHS, VOCABULARY), "tokens": 12}


def tuned(folder: Path, model: Path, *more: str) -> Path:
    """A pack for a model by the commands of the guide, from predictions alone: numbers are right whatever is predicted."""
    haotuner = [sys.executable, "-m", "haotuner"]
    file, pack = folder / "workload.json", folder / "pack"
    ask = [*haotuner, "workload", str(model), "--only", "dense", "--out", str(file), "-q", *more]
    subprocess.run(ask, check=True)
    written = [*haotuner, "tune", "--workload", str(file), "--zero-measure", "--threads", "1,2", "--out", str(pack), "-q"]
    assert subprocess.run(written, check=False).returncode == 3, "a pack from predictions is marked unverified"
    return pack


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama") / "model", **SIZES)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    return tuned(tmp_path_factory.mktemp("tuned"), model)


@pytest.fixture(scope="module")
def theirs(model: Path) -> dict[str, Any]:
    return answers(model, None, **JOB)


def test_every_linear_comes_from_the_pack_and_tokens_are_the_same(model: Path, pack: Path, theirs: dict[str, Any]) -> None:
    ours = answers(model, pack, **JOB)
    assert ours["tokens"] == theirs["tokens"] and len(ours["tokens"]) == len(LENGTHS)
    blocks = {"dense_n1920_k640", "dense_n640_k640", "dense_n3456_k640", "dense_n640_k1728"}
    assert ours["served"] == {**dict.fromkeys(blocks, LAYERS), "dense_n8192_k640": 2}, "head and embedding have one op"
    assert set(theirs["served"]) == {""}
    assert ours["memory_mb"] < 1.05 * theirs["memory_mb"], "no second copy of the weights"


def test_tokens_are_the_same_under_its_compiler(model: Path, pack: Path, theirs: dict[str, Any]) -> None:
    assert answers(model, pack, eager=False, **JOB)["tokens"] == theirs["tokens"]


def test_tied_embeddings_and_layers_that_the_pack_lacks(tmp_path: Path, pack: Path, theirs: dict[str, Any]) -> None:
    """A head that is the embedding keeps rows to look up; a feed-forward part of another width is vLLM's."""
    sizes = {**SIZES, "tie_word_embeddings": True, "intermediate_size": 1600, "num_hidden_layers": 2}
    other = save_llama(tmp_path / "tied", **sizes)
    ours, plain = answers(other, pack, **JOB), answers(other, None, **JOB)
    assert ours["tokens"] == plain["tokens"]
    assert ours["served"][""] == 4 and ours["served"]["dense_n640_k640"] == 2


def damaged(pack: Path, folder: Path) -> Path:
    """A copy of the pack whose library was changed."""
    copy = folder / "damaged"
    shutil.copytree(pack, copy)
    library = next(path for path in copy.rglob("*.so"))
    library.write_bytes(library.read_bytes()[:-64] + bytes(64))
    return copy


@pytest.mark.parametrize(
    ("broken", "words"),
    [(lambda pack, folder: folder / "nowhere", "nowhere"), (damaged, "sha256")],
    ids=["missing", "damaged"],
)
def test_a_pack_that_is_not_sound_ends_the_start_with_a_reason(
    tmp_path: Path, model: Path, pack: Path, broken: Callable[[Path, Path], Path], words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        answers(model, broken(pack, tmp_path), **JOB)


def test_the_workload_names_the_ops_that_vllm_calls(tmp_path: Path, model: Path, pack: Path) -> None:
    ops = {row["op"] for row in json.loads((pack.parent / "workload.json").read_text())["ops"]}
    assert ops == {
        "dense:n=1920,k=640", "dense:n=640,k=640", "dense:n=3456,k=640", "dense:n=640,k=1728", "dense:n=8192,k=640"
    }  # fmt: skip
