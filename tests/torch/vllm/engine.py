"""Random models that transformers saves, and engines of vLLM in processes of their own that answer for them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIMIT_S = 1500.0  # of one engine: vLLM compiles a model for minutes on a busy machine
ROOT = Path(__file__).parents[3]


def missing() -> str:
    """Reason that there is no engine, as tests skip; empty where there is one."""
    absent = next((name for name in ("vllm", "transformers") if find_spec(name) is None), "")
    return f"{absent}: not installed" if absent else ""


def save_llama(folder: Path, *, dtype: str = "float32", seed: int = 0, **sizes: Any) -> Path:
    """A Llama of random weights, saved as transformers saves it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(max_position_embeddings=2048, **sizes)).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    return folder


def prompts(lengths: tuple[int, ...], vocabulary: int, seed: int = 1) -> list[list[int]]:
    """Token ids drawn at random, of these lengths."""
    draw = random.Random(seed)
    return [[draw.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


def answers(model: Path, pack: Path | None, *, dtype: str = "float32", eager: bool = True, **job: Any) -> dict[str, Any]:
    """What one engine of vLLM answers (tests/torch/vllm/generate.py). RuntimeError with the end of its errors."""
    with tempfile.TemporaryDirectory() as scratch:
        question, answer = Path(scratch) / "job.json", Path(scratch) / "answer.json"
        whole = {"model": str(model), "pack": None if pack is None else str(pack), "dtype": dtype, "eager": eager, **job}
        question.write_text(json.dumps(whole), encoding="utf-8")
        words = [sys.executable, "-m", "tests.torch.vllm.generate", str(question), str(answer)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode or not answer.exists():
            raise RuntimeError(done.stderr[-4000:])
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return result
