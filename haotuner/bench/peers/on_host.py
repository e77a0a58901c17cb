"""What several contenders on the CPU begin with: a pack, torch under inference mode, OpenVINO's settings."""

from __future__ import annotations

from typing import Any

from haotuner.bench.contender import Setting


class HostPack:
    """A pack that was loaded for so many threads."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import haotuner

        if setting.pack is None:
            raise ValueError("no pack was named")
        self.version = haotuner.__version__
        self._pack = haotuner.load(setting.pack, threads=setting.threads)


class HostTorch:
    """torch on so many threads, under inference mode for the life of this process."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import torch

        torch.set_num_threads(setting.threads)
        torch.inference_mode().__enter__()
        self._torch = torch
        self.version = str(torch.__version__)


def openvino_settings(threads: int) -> dict[str, Any]:
    """One request at a time, as fast as it can be answered, in fp32: otherwise it takes bf16 where the CPU has it."""
    return {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
