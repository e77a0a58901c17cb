"""A vLLM process: ``python -m tests.torch.vllm.generate JOB.json ANSWER.json`` starts an engine and answers prompts.

The job has ``model``, ``pack`` (or null), ``dtype``, ``eager``, ``prompts`` (lists of token ids), ``tokens`` of each, and
``repeats`` of the timed part. The answer has ``tokens``, ``margins`` (the best logit over the second best, of each token),
``served`` (layers by op), seconds and megabytes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
LONGEST = 1024


def resident_mb() -> float:
    """Megabytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def served(model: Any) -> dict[str, int]:
    """Layers by the op that serves them; those of vLLM's own kernels by an empty name."""
    ops = (getattr(layer, "haotuner_op", "") for layer in model.modules() if hasattr(layer, "quant_method"))
    return dict(Counter(ops))


def generate(job: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, answer the prompts, and time what the job asks for."""
    began = time.perf_counter()
    import vllm

    if not any(point.name == "haotuner" for point in entry_points(group="vllm.general_plugins")):
        from haotuner.torch.vllm import register  # a source tree that no package manager installed

        register()
    imported = time.perf_counter()
    more = {} if job["pack"] is None else {"additional_config": {"haotuner": {"pack": job["pack"]}}}
    engine = vllm.LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        dtype=job["dtype"],
        enforce_eager=job["eager"],
        max_model_len=LONGEST,
        enable_prefix_caching=False,
        **more,
    )
    started = time.perf_counter()

    def answer(prompts: list[list[int]], tokens: int, **limits: Any) -> tuple[float, list[Any]]:
        sampling = vllm.SamplingParams(max_tokens=tokens, temperature=0, detokenize=False, ignore_eos=True, **limits)
        before = time.perf_counter()
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        return time.perf_counter() - before, [output.outputs[0] for output in outputs]

    prompts = job["prompts"]
    first_s, _ = answer(prompts[:1], 1)
    _, completions = answer(prompts, job["tokens"], logprobs=2)
    prefill, decode, single = [], [], []
    for _ in range(job.get("repeats", 0)):
        prefill.append(sum(map(len, prompts)) / answer(prompts, 1)[0])
        short = [ids[:8] for ids in prompts[:2]]
        whole, first = answer(short, 33)[0], answer(short, 1)[0]
        decode.append(2 * 32 / max(whole - first, 1e-9))
        single += [answer([ids[: 16 + 37 * index]], 1)[0] for index, ids in enumerate(prompts)]
    return {
        "tokens": [list(completion.token_ids) for completion in completions],
        "margins": [[_margin(candidates) for candidates in completion.logprobs] for completion in completions],
        "served": engine.apply_model(served)[0],
        "import_s": imported - began,
        "start_s": started - imported,
        "first_s": first_s,
        "prefill_tokens_s": max(prefill, default=None),
        "decode_tokens_s": max(decode, default=None),
        "p50_s": statistics.median(single) if single else None,
        "p99_s": max(single, default=None),
        "memory_mb": resident_mb(),
    }


def _margin(candidates: dict[int, Any]) -> float:
    """By how much the best candidate's logit exceeds the second's."""
    second, best = sorted(candidate.logprob for candidate in candidates.values())[-2:]
    return float(best - second)


def main(arguments: list[str]) -> int:
    """Read the job, write the answer."""
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    answer = generate(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    Path(arguments[1]).write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
