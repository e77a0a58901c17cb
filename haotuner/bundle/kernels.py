"""The bundle's kernels as callables on the probe's stream.

The GPU is always device 0 here: a run on another one shows its workers that one alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from haotuner.bundle.manifest import Bundle
from haotuner.bundle.operands import Matrix
from haotuner.bundle.probe import Probe


class Kernels:
    """Loads a library at the first call of one of its kernels."""

    def __init__(self, bundle: Bundle, arch: str, probe: Probe) -> None:
        self._root = bundle.root
        self._entries = {entry.kernel: entry for entry in bundle.kernels[arch]}
        self._probe = probe
        self._modules: dict[str, Any] = {}

    def launch(self, kernel: str, x: Matrix, w: Matrix, y: Matrix) -> None:
        """Y = X · W^T on the current stream, without waiting."""
        self.function(kernel)(x.tensor(), w.tensor(), y.tensor())

    def function(self, kernel: str) -> Any:
        """The kernel's tvm-ffi function."""
        import tvm_ffi

        library = self._entries[kernel].library
        if library not in self._modules:
            self._modules[library] = tvm_ffi.load_module(str(self._root / library))
        return self._modules[library][kernel]

    @contextmanager
    def streamed(self) -> Iterator[None]:
        """Launches inside go to the probe's stream."""
        import tvm_ffi

        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), self._probe.stream):
            yield
