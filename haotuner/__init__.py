"""Operators and whole models, tuned once for a range of shapes and served from a pack.

    pack = haotuner.load("pack")
    answer = pack.model("model").run({"x": array})
    y = pack.op("dense_n2304_k768").bind(weight)(x)

Serving needs numpy and tvm-ffi; ``haotuner.tune`` and ``tune_model`` need the ``[tune]`` extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["capture", "load", "metrics", "tune", "tune_model"]

if TYPE_CHECKING:
    from haotuner.runtime.capture import capture
    from haotuner.runtime.pack import load
    from haotuner.serve.pack_metrics import metrics
    from haotuner.tuning.model_session import tune_model
    from haotuner.tuning.session import tune


def __getattr__(name: str) -> Any:
    """Load on first use: ``import haotuner`` alone imports neither numpy nor tvm-ffi."""
    if name == "load":
        from haotuner.runtime.pack import load

        return load
    if name == "capture":
        from haotuner.runtime.capture import capture

        return capture
    if name == "metrics":
        from haotuner.host.extras import require_metrics

        require_metrics()
        from haotuner.serve.pack_metrics import metrics

        return metrics
    if name == "tune":
        from haotuner.host.extras import require_tuning

        require_tuning()
        from haotuner.tuning.session import tune

        return tune
    if name == "tune_model":
        from haotuner.host.extras import require_tuning

        require_tuning()
        from haotuner.tuning.model_session import tune_model

        return tune_model
    raise AttributeError(f"module 'haotuner' has no attribute {name!r}")
