"""Operators and whole models, tuned once for a range of shapes and served from a pack.

    pack = haotuner.load("pack")
    answer = pack.model("model").run({"x": array})
    y = pack.op("dense_n2304_k768").bind(weight)(x)

Serving needs numpy and tvm-ffi; ``haotuner.tune`` needs the ``[tune]`` extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["capture", "load", "tune"]

if TYPE_CHECKING:
    from haotuner.runtime.capture import capture
    from haotuner.runtime.pack import load
    from haotuner.tuning.session import tune


def __getattr__(name: str) -> Any:
    """Load on first use: ``import haotuner`` alone imports neither numpy nor tvm-ffi."""
    if name == "load":
        from haotuner.runtime.pack import load

        return load
    if name == "capture":
        from haotuner.runtime.capture import capture

        return capture
    if name == "tune":
        from haotuner.extras import require_tuning

        require_tuning()
        from haotuner.tuning.session import tune

        return tune
    raise AttributeError(f"module 'haotuner' has no attribute {name!r}")
