"""A process that has imported what scenarios need and forks for each: imports are paid once, a crash or hang ends one child.

CUDA must not have begun in it, for a forked process cannot use it: the parent only imports.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tests.standin import ROOT
from tests.standin.apart import HUNG
from tests.standin.patience import ended

REPORT = re.compile("Sanitizer|: runtime error: ")  # in a line of a sanitizer


class Forking:
    """Ask it to call functions; ``environment``'s LD_LIBRARY_PATH holds for all, the rest may change from call to call."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.standin.forking", *modules],
            cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)  # a loaded host takes its time
        self._process.stdout.close()

    def call(self, module: str, function: str, *words: str, environment: Mapping[str, str], seconds: float) -> str:
        """Nothing if the call returned; else the last line of its output, or a sanitizer's first, or how it ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {
            "module": module,
            "function": function,
            "words": words,
            "environment": dict(environment),
            "seconds": seconds,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return str(answer["ended"])


def _serve(modules: Sequence[str]) -> None:
    gc.disable()  # imports leave next to no garbage
    for name in (*modules, "numpy.random"):  # numpy imports that at its first use, 0.012 s of a core
        importlib.import_module(name)
    _fail_once()
    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        print(json.dumps({"ended": _apart(json.loads(line))}), flush=True)


def _fail_once() -> None:
    """The first error of TVM's FFI reads the symbols of all loaded libraries, 0.3 s of a core: once, not in each child."""
    if "tvm_ffi" in sys.modules:
        with suppress(TypeError):
            sys.modules["tvm_ffi"].get_global_func("ffi.GetGlobalFuncMetadata")()


def _apart(request: Mapping[str, Any]) -> str:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _child(request, output.fileno())
        with suppress(OSError):  # it did so itself
            os.setpgid(child, child)
        code = ended(child, float(request["seconds"]))
        if code is None:
            return HUNG
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
        reported = next(filter(REPORT.search, lines), "")
        return "" if code == 0 and not reported else f"exit {code}: {(reported or (lines or [''])[-1])[:160]}"


def _child(request: Mapping[str, Any], output_descriptor: int) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        os.dup2(output_descriptor, 1)
        os.dup2(output_descriptor, 2)
        os.environ.update(request["environment"])
        getattr(importlib.import_module(request["module"]), request["function"])(*request["words"])
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1:])
