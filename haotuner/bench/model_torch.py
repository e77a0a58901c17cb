"""torch in a race of whole models: a program that ``torch.export.save`` wrote, compiled for any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx.experimental._config as sizes_config
from torch._inductor import config
from torch.utils._pytree import tree_unflatten

from haotuner.frontends.torch_export.pt2_file import read_program

Feeds = Mapping[str, Any]


class CompiledProgram:
    """``torch.compile(dynamic=True)`` of a program, under inference mode.

    torch compiles anew for a dimension that is 1, and for two that were equal when it looked and differ later. It is told to
    keep the latter apart, and ``warm`` has it compile for the former, so that no request of a race waits for a compiler.
    """

    def __init__(self, path: str, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)  # as ours, OpenVINO and ONNX Runtime are told to
        sizes_config.use_duck_shape = False
        config.compile_threads = 1  # no pool of compilers lives on beside what is timed
        program = read_program(Path(path), torch).program
        self._takes = list(program.graph_signature.user_inputs)
        self._tree = program.call_spec.in_spec
        self._compiled = torch.compile(program.module(), dynamic=True)

    def warm(self, requests: Sequence[Feeds]) -> None:
        """Answer the first request of each kind: which of the dimensions are 1."""
        seen = set()
        for feeds in requests:
            kind = tuple(size == 1 for value in feeds.values() for size in value.shape)
            if kind not in seen:
                seen.add(kind)
                self.run(feeds)

    def run(self, feeds: Feeds) -> Any:
        """Outputs of the program; feeds by the names of its inputs, or in their order where it calls them otherwise."""
        names = self._takes if set(self._takes) == set(feeds) else list(feeds)
        leaves = [torch.from_numpy(feeds[name]) for name in names]
        args, named = tree_unflatten(leaves, self._tree)
        with torch.inference_mode():
            return self._compiled(*args, **named)


def loading(path: str, threads: int, requests: Sequence[Feeds]) -> Callable[[Feeds], Any]:
    """Load, compile and warm; what answers feeds."""
    program = CompiledProgram(path, threads)
    program.warm(requests)
    return program.run
