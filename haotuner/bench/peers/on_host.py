"""What contenders on the CPU begin with: a pack, torch under inference mode, settings of ONNX Runtime and OpenVINO."""

from __future__ import annotations

import contextlib
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


def onnxruntime_options(runtime: Any, threads: int) -> Any:
    """Options of a session, of which there may be many: all share one arena and, where they have threads, one pool of them.

    Pools of their own would have them spin against one another; in an arena of its own each would find its scratch memory
    as cold as its weight, which a model's layers do not. The first call for several threads decides their number, and
    sessions with a pool of their own are refused in that process from then on.
    """
    kind = runtime.OrtMemoryInfo("Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT)
    with contextlib.suppress(runtime.capi.onnxruntime_pybind11_state.Fail):  # both are there already
        if threads > 1:
            runtime.set_global_thread_pool_sizes(threads, 1)
        runtime.create_and_register_allocator(kind, None)
    options = runtime.SessionOptions()
    if threads > 1:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # the caller's thread alone
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.log_severity_level = 3
    return options


def openvino_settings(threads: int) -> dict[str, Any]:
    """One request at a time, as fast as it can be answered, in fp32: otherwise it takes bf16 where the CPU has it."""
    return {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
