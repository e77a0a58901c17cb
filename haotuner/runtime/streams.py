"""Stream on which a call is queued: the current one of the tensor's framework, never silently the legacy stream."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

LEGACY = 1  # CU_STREAM_LEGACY: what 0 means, in the words of DLPack, where 0 is ambiguous


@dataclass(frozen=True, slots=True)
class Kind:
    """Facts of all tensors of a class."""

    plain: bool  # the library takes them as they are, without a hand-over in the order of a stream
    gives: bool  # it can ask their framework for an output
    lazy: bool  # torch's: they may be lazy negations, or want gradients


def _look_at(kind: type) -> Kind:
    library, exchange = kind.__module__.partition(".")[0], hasattr(kind, "__dlpack_c_exchange_api__")
    plain = exchange or library in ("torch", "tvm_ffi") or not hasattr(kind, "__dlpack__")
    return Kind(plain, exchange, hasattr(kind, "is_neg"))


kind_of: Callable[[type], Kind] = lru_cache(maxsize=64)(_look_at)  # once a class: it is on the path of every call


class NoCurrentStream(ValueError):
    """A tensor whose framework has no current stream that could be asked for."""


def stream_of(x: Any) -> int | None:
    """The current stream of x's framework on x's device; None where the library is told by tvm-ffi, or refuses x anyway.

    Raises Unclear for tensors of a device that nobody knows a stream of.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _torch_stream(torch, x)
    kind = type(x)
    if _tells_stream(kind) or not hasattr(x, "__dlpack_device__"):
        return None
    if int(x.__dlpack_device__()[0]) == 1:  # the CPU: refused by the library, in its words
        return None
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return int(cupy.cuda.get_current_stream(x.device.id).ptr)
    stream = _protocol_stream(x)
    if stream:
        return stream
    library = kind.__module__.partition(".")[0]
    raise NoCurrentStream(
        f"a {library} {kind.__name__} does not say its current stream: pass stream=, a handle that x is ready on "
        "(0: the legacy stream), or call under tvm_ffi.use_raw_stream"
    )


def still(x: Any, stream: int | None) -> Any:
    """Pass x as the library takes it: as it is, or handed over by DLPack so that it is ready on ``stream``.

    Asked without a stream, a framework would make the legacy stream wait, which ends a capture.
    """
    if stream is None or kind_of(type(x)).plain:
        return x
    return _Handed(x, stream) if hasattr(x, "__dlpack_device__") else x


class _Handed:
    """DLPack's producer protocol with a stream: tvm-ffi's own call names none."""

    __slots__ = ("_stream", "_x")

    def __init__(self, x: Any, stream: int) -> None:
        self._x, self._stream = x, stream or LEGACY

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()

    def __dlpack__(self, **requested: Any) -> Any:
        on_cpu = int(self._x.__dlpack_device__()[0]) == 1
        return self._x.__dlpack__(**(requested if on_cpu else requested | {"stream": self._stream}))


def _torch_stream(torch: Any, x: Any) -> int | None:
    index = x.get_device()
    if index < 0:
        return None
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(torch.cuda.current_stream(index).cuda_stream) if raw is None else int(raw(index))


def _tells_stream(kind: type) -> bool:
    """True if tvm-ffi asks the class itself, through DLPack's exchange table (torch's is asked by us, see above)."""
    return hasattr(kind, "__dlpack_c_exchange_api__") and kind.__module__.partition(".")[0] != "tvm_ffi"


def _protocol_stream(x: Any) -> int:
    import tvm_ffi

    device = x.__dlpack_device__()
    return int(tvm_ffi.get_raw_stream(tvm_ffi.Device(int(device[0]), int(device[1]))))
