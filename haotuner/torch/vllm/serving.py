"""``Serving``: the pack of one vLLM process, its operators under ``torch.ops.haotuner``, and weights packed for them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from haotuner.errors import UsageError
from haotuner.runtime.pack import Pack, load
from haotuner.spec.op import Op
from haotuner.torch.ops import Registered, register
from haotuner.torch.vllm.options import KEY, Options

# Types of weights that vLLM leaves unquantised, by the word that an op's spec has for them.
DTYPE_WORDS = {torch.float32: "", torch.bfloat16: ",dtype=bf16", torch.float16: ",dtype=fp16"}

_TRIM_BYTES = 64 << 20  # a trim takes a millisecond or two; blocks of this size come after every few layers


class Serving:
    """Operators of one pack in one process, open as long as the process."""

    def __init__(self, options: Options, threads: int) -> None:
        self.options = options
        self.pack: Pack = load(options.pack, threads=threads)
        if self.pack.gpu is not None:
            raise UsageError(
                f"{options.pack}: a pack for a GPU; vLLM's CPU linears need one that was tuned with --device cpu"
            )
        self._registered: Registered = register(self.pack)
        self._replaced_bytes = 0  # since the last trim

    @property
    def version(self) -> str:
        """First digits of the hash of the pack's library."""
        return self.pack.manifest.sha256[:12]

    def serves(self, options: Options) -> bool:
        """True if these options name the pack that is open."""
        return options == self.options

    def close(self) -> None:
        """Take the operators out of torch; weights that were packed for them stay in memory."""
        self._registered.close()

    def identify(self, additional: dict[str, Any]) -> None:
        """Add the hash of the pack's library to vLLM's configuration, by which vLLM keeps compiled graphs with operators."""
        additional[KEY] = {**additional[KEY], "pack_id": self.pack.manifest.sha256}

    def operator(self, spec: str) -> tuple[str, Callable[..., torch.Tensor]] | None:
        """Name and operator of the pack's op of this spec; None where the pack does not hold it."""
        name = Op.parse(spec).name
        return (name, getattr(torch.ops.haotuner, name).default) if name in self.pack.ops else None

    def packed(self, name: str, weight: torch.Tensor) -> torch.nn.Parameter:
        """Packed weight of an op, from one of shape (n, k)."""
        with torch.inference_mode(False):
            packed = self._registered.pack_weight(name, weight.detach().contiguous())
        self._replaced_bytes += weight.nbytes
        return torch.nn.Parameter(packed, requires_grad=False)

    def trim(self) -> None:
        """Give memory of replaced weights back to the system, once it is much; the C library keeps it otherwise."""
        if self._replaced_bytes >= _TRIM_BYTES and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)
            self._replaced_bytes = 0


def dense_spec(n: int, k: int, dtype: torch.dtype) -> str | None:
    """Spec of a linear of ``n`` outputs and ``k`` inputs; None of a type that no pack holds."""
    word = DTYPE_WORDS.get(dtype)
    return None if word is None else f"dense:n={n},k={k}{word}"
