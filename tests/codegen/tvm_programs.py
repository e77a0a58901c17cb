"""Programs of TVM compiled for this process; TVM itself is imported when the first is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from haotuner.backends.cpu.compile import PASSES


def compiled(functions: Iterable[Any], cpu: str = "x86-64", settings: Mapping[str, Any] | None = None) -> Any:
    """Library of functions by their names.

    Args:
        functions: mappings of names to functions: modules, or dictionaries.
        cpu: the instructions that they may use, as LLVM calls them.
        settings: of the compiler, beside the usual ones.
    """
    import tvm
    from tvm.target import Target

    module = tvm.IRModule({})
    for named in functions:
        module.update(tvm.IRModule(named) if isinstance(named, dict) else named)
    with tvm.transform.PassContext(opt_level=3, config=PASSES):
        return tvm.compile(module, target=Target({"kind": "llvm", "mcpu": cpu, **(settings or {})})).mod
