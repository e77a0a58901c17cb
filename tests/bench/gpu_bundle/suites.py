"""What a bundle's run tunes and races: published dynamic workloads, one pack an op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from haotuner.spec.op import Op

# DietCode (MLSys 2022, dynamic dense workload): BERT with batch 16 and eight sequence lengths, whose rows these are.
DIETCODE_ROWS = tuple(16 * t for t in (5, 24, 43, 62, 81, 100, 119, 128))
# From one request's decode step to a long prefill, within MikPoly's range of 1 to 4096.
SERVING_ROWS = (1, 4, 16, 64, 256, 1024, 4096)
Layers = Mapping[str, tuple[int, int]]  # (n, k) of each
BERT_BASE: Layers = {"qkv": (2304, 768), "out": (768, 768), "up": (3072, 768), "down": (768, 3072)}
LLAMA3_8B: Layers = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
LLAMA2_13B_TP4: Layers = {"qkv": (3840, 5120), "o": (5120, 1280), "up": (3456, 5120), "down": (5120, 3456)}  # MikPoly


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One dense layer: the rows it is tuned for, and those at which it is raced."""

    name: str
    op: Op
    last_m: int
    rows: tuple[int, ...]

    @property
    def shapes(self) -> str:
        """The tuned range, as ``--shapes`` takes it."""
        return f"m=1..{self.last_m}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What one run does. Times in seconds."""

    works: tuple[Work, ...]  # the most wanted first: a run that is cut has those
    kernels: int  # of each device that are checked for correctness, spread over families and tiles
    tune_s: tuple[float, float]  # least and most of one op
    row_s: tuple[float, float]  # least and most of one raced shape, all contenders together
    weights: str = "cold,hot"
    parts: tuple[int, ...] = (2, 4)  # a half and a quarter of the device, as devices of their own


def _works(model: str, layers: Layers, dtype: str, last: int, rows: tuple[int, ...]) -> tuple[Work, ...]:
    ops = {layer: Op(kind="dense", static=(("n", n), ("k", k)), dtype=dtype) for layer, (n, k) in layers.items()}
    return tuple(Work(name=f"{model}_{layer}_{dtype}", op=op, last_m=last, rows=rows) for layer, op in ops.items())


FULL = Suite(
    works=(
        *_works("bert_base", BERT_BASE, "fp32", 2048, (1, 16, *DIETCODE_ROWS)),
        *_works("bert_base", BERT_BASE, "bf16", 2048, (1, 16, *DIETCODE_ROWS)),
        *_works("llama3_8b", LLAMA3_8B, "bf16", 4096, SERVING_ROWS),
        *_works("llama2_13b_tp4", LLAMA2_13B_TP4, "fp32", 4096, SERVING_ROWS),
        *_works("llama2_13b_tp4", LLAMA2_13B_TP4, "bf16", 4096, SERVING_ROWS),
        *_works("llama3_8b", LLAMA3_8B, "fp32", 4096, SERVING_ROWS),
    ),
    kernels=80,
    tune_s=(20.0, 100.0),
    row_s=(0.5, 3.0),
)
# For a dry run without a GPU: every stage, hardly anything in it.
TINY = Suite(
    works=(
        Work(name="tiny_fp16", op=Op(kind="dense", static=(("n", 72), ("k", 64)), dtype="fp16"), last_m=24, rows=(1, 24)),
    ),
    kernels=3,
    tune_s=(4.0, 4.0),
    row_s=(0.2, 0.2),
    weights="cold",
    parts=(2,),
)
SUITES = {"full": FULL, "tiny": TINY}
