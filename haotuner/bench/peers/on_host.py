"""Setup that contenders on the CPU share: torch under inference mode, settings of ONNX Runtime and OpenVINO."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def torch_for(threads: int, *, inference: bool = True) -> Any:
    """Torch on so many threads; under inference mode for the life of this process."""
    import torch

    torch.set_num_threads(threads)
    if inference:
        torch.inference_mode().__enter__()
    return torch


def tensor(torch: Any, values: NDArray[Any]) -> Any:
    """An array as torch sees it; numpy knows no bf16 of its own."""
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def array(result: Any) -> NDArray[Any]:
    """Result of torch as an array of numpy: floats in fp32."""
    made: NDArray[Any] = (result.float() if result.dtype.is_floating_point else result).numpy()
    return made


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
