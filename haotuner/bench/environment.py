"""The environment of a contender's process: the thread count asked for, and nothing that could hamper a peer."""

from __future__ import annotations

from collections.abc import Mapping

from haotuner.bench.contender import Setting

POOL_VARIABLES = (  # every pool that a peer here may bring; a process has one library, so all get the same count
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
)
# Settings of peers that the caller's environment may hold and that could hamper them (a fixed OpenBLAS core type, say).
DROPPED_PREFIXES = (
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "ONEDNN_", "DNNL_", "ATEN_", "ORT_", "OV_"),
    *("OPENVINO_", "TORCH_", "TORCHINDUCTOR_", "ZENDNN", "ZENTORCH_", "NPY_"),
)
ISA_VARIABLES: Mapping[str, Mapping[str, str]] = {  # the names under which each library takes such a limit
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
    "sse": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "ATEN_CPU_CAPABILITY": "default",
    },
}


def child_environment(environment: Mapping[str, str], setting: Setting) -> dict[str, str]:
    """The caller's environment without settings that could hamper a peer, with the thread count."""
    selected = {name: value for name, value in environment.items() if not name.startswith(DROPPED_PREFIXES)}
    selected.update(dict.fromkeys(POOL_VARIABLES, str(setting.threads)))
    selected.update(ISA_VARIABLES[setting.isa] if setting.isa else {})
    return selected
