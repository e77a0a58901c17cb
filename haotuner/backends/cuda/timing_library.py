"""The library that launches and times on a device (``native/timing_cuda.c``), and memory of one check there."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.toolchain import Toolchain
from haotuner.isolate.answers import Refusal
from haotuner.microkernels.cuda.launch import Launch

NATIVE = Path(__file__).resolve().parents[2] / "runtime" / "native"
OWN = Path(__file__).resolve().parent / "native"
SOURCES = (OWN / "timing_cuda.c", OWN / "part.c", NATIVE / "cuda" / "driver.c",
           NATIVE / "cuda" / "launch.c", NATIVE / "cuda" / "generated.c", NATIVE / "check.c")  # fmt: skip
INCLUDES = (NATIVE, NATIVE / "cuda", OWN)
DTYPES = ("fp32", "fp16", "bf16", "int8")  # places are native/cuda/launch.h's numbers
MOST_SPLITS = 64
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
BATCH_AXES = 3
POISON = 0xFF  # every byte: NaN in each of the types


class KernelWords(ctypes.Structure):
    """``ht_cuda_kernel`` of native/cuda/launch.h."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("tile_m", ctypes.c_int32), ("tile_n", ctypes.c_int32), ("threads", ctypes.c_int32),
        ("shared_bytes", ctypes.c_int32), ("vector", ctypes.c_int32), ("maps", ctypes.c_int32),
        ("box_x", ctypes.c_int32 * 2), ("box_w", ctypes.c_int32 * 2), ("swizzle", ctypes.c_int32), ("kn", ctypes.c_int32),
        ("dtype", ctypes.c_uint8), ("splits_max", ctypes.c_int32), ("groups", ctypes.c_int32), ("batch", ctypes.c_int32),
        ("windows", ctypes.c_int32), ("direct", ctypes.c_int32),
    )  # fmt: skip


class ArgsWords(ctypes.Structure):
    """``ht_cuda_args`` of native/cuda/ht_cuda_args.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("x", "w", "bias", "residual", "y", "partial")),
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "ldx", "ldy", "splits", "y_type", "ldw")),
        *((name, ctypes.c_uint64) for name in ("scale", "low", "high", "slope", "after")),
    )


class GroupWords(ctypes.Structure):
    """``ht_cuda_groups`` of native/cuda/ht_cuda_args.h."""

    _fields_ = (("ends", ctypes.c_uint64), ("count", ctypes.c_int32), ("zero", ctypes.c_int32))


class WindowWords(ctypes.Structure):
    """``ht_cuda_windows`` of native/cuda/ht_cuda_args.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("xb", "xh", "xw", "xc")),
        *((name, ctypes.c_int32) for name in ("h", "w", "p", "q", "channels", "s")),
        *(
            (name, ctypes.c_int32)
            for name in ("down", "right", "above", "before", "dilation_down", "dilation_right")
        ),
    )  # fmt: skip


class BatchWords(ctypes.Structure):
    """``ht_cuda_batch`` of native/cuda/ht_cuda_args.h, of one axis: strides of x, w and y in elements.

    ``factor`` scales the products unless ``scale`` has one for each; ``mask`` is added.
    """

    _fields_ = (
        ("x", ctypes.c_int64 * BATCH_AXES), ("w", ctypes.c_int64 * BATCH_AXES), ("y", ctypes.c_int64 * BATCH_AXES),
        ("extents", ctypes.c_int32 * BATCH_AXES), ("first", ctypes.c_int32), ("factor", ctypes.c_float),
        ("channel_rows", ctypes.c_int32), ("scale", ctypes.c_uint64), ("mask", ctypes.c_uint64),
        ("scale_apart", ctypes.c_int64 * BATCH_AXES), ("mask_apart", ctypes.c_int64 * BATCH_AXES),
        ("mask_down", ctypes.c_int64), ("mask_right", ctypes.c_int64), ("channel_apart", ctypes.c_int64 * BATCH_AXES),
    )  # fmt: skip

    @staticmethod
    def of(matrices: int, x: int, w: int, y: int) -> BatchWords:
        """So many matrices, so far apart."""
        axes = ctypes.c_int64 * BATCH_AXES
        return BatchWords(
            x=axes(0, 0, x), w=axes(0, 0, w), y=axes(0, 0, y), extents=(ctypes.c_int32 * BATCH_AXES)(1, 1, matrices),
            factor=1.0,
        )  # fmt: skip


class RegionWords(ctypes.Structure):
    """``htt_region`` of timing_cuda.c."""

    _fields_ = (("kernel", KernelWords), ("function", ctypes.c_void_p), ("rows", ctypes.c_int64))


class CallWords(ctypes.Structure):
    """``htt_call`` of timing_cuda.c."""

    _fields_ = (
        ("regions", ctypes.c_int32), ("weights", ctypes.c_int32), ("region", RegionWords * 2), ("reduce", ctypes.c_void_p),
        ("args", ArgsWords), ("w", ctypes.POINTER(ctypes.c_uint64)), ("groups", GroupWords),
        ("batch", BatchWords), ("matrices", ctypes.c_int64), ("generated", ctypes.c_void_p), ("direct", ctypes.c_void_p),
        ("windows", ctypes.c_void_p),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Facts of the device that is timed, as its driver says them."""

    units: int
    l2_bytes: int
    capability: str  # "9.0"
    driver: int  # version of the CUDA that it serves: 13000


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A kernel on the device, and what the driver says of it."""

    words: KernelWords
    function: int
    registers: int
    local_bytes: int
    shared_bytes: int  # static and dynamic


class TimingLibrary:
    """The one device of this process."""

    def __init__(self, ordinal: int, units: int = 0) -> None:
        """A device, or so many ``units`` of it alone; Refusal where it cannot be opened."""
        self._native = ctypes.CDLL(str(built(Path(tempfile.gettempdir()))))
        self._native.htt_said.restype = ctypes.c_char_p
        facts = (ctypes.c_int64 * 5)()
        self.ask("load", "htt_open", ordinal, units, facts)
        units, l2, major, minor, driver = facts
        self.device = DeviceFacts(units=units, l2_bytes=l2, capability=f"{major}.{minor}", driver=driver)

    def ask(self, stage: str, function: str, *words: Any) -> None:
        """Call a function; a Refusal at the stage says what the driver said, fatal where the device is lost."""
        code = getattr(self._native, function)(*words)
        if code == 0:
            return
        message = (self._native.htt_said() or b"").decode("utf-8", "replace")
        lost = code == -2 or bool(self._native.htt_lost())
        reason = "crash" if lost else "memory" if OUT_OF_MEMORY in message else "error"
        raise Refusal(stage, reason, message, fatal=lost)

    def load(self, cubin: Path) -> int:
        """A module of a cubin; it stays loaded."""
        module, image = ctypes.c_void_p(), cubin.read_bytes()
        self.ask("load", "htt_load", image, ctypes.byref(module))
        return int(module.value or 0)

    def function(self, module: int, symbol: str, shared_bytes: int = 0) -> tuple[int, tuple[int, int, int]]:
        """A kernel by its symbol; registers, local bytes and static shared bytes."""
        result, facts = ctypes.c_void_p(), (ctypes.c_int32 * 3)()
        self.ask("load", "htt_function", ctypes.c_void_p(module), symbol.encode(), shared_bytes, ctypes.byref(result), facts)
        registers, local, shared = facts
        return int(result.value or 0), (registers, local, shared)

    def loaded(self, module: int, name: str, launch: Launch, dtype: str, *, kn: bool = False) -> Loaded:
        """A kernel of a module, allowed the shared memory that its launches ask for; ``kn``: it reads weights (k, n)."""
        function, (registers, local, shared) = self.function(module, name, launch.shared_bytes)
        return Loaded(
            words=kernel_words(name, launch, dtype, kn=kn),
            function=function,
            registers=registers,
            local_bytes=local,
            shared_bytes=shared + launch.shared_bytes,
        )

    def allocate(self, size: int) -> int:
        """Bytes of device memory; never none, so that there is always an address."""
        address = ctypes.c_uint64()
        self.ask("run", "htt_allocate", ctypes.c_int64(max(size, 16)), ctypes.byref(address))
        return int(address.value)

    def free(self, address: int) -> None:
        """Give memory back."""
        self.ask("run", "htt_free", ctypes.c_uint64(address))

    def put(self, address: int, values: NDArray[Any]) -> None:
        """Copy a contiguous array to the device."""
        assert values.flags.c_contiguous
        self.ask(
            "run", "htt_upload", ctypes.c_uint64(address), ctypes.c_void_p(values.ctypes.data), ctypes.c_int64(values.nbytes)
        )

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy on the device."""
        self.ask("run", "htt_copy", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_int64(size))

    def get(self, address: int, values: NDArray[Any]) -> None:
        """Copy from the device into a contiguous array."""
        assert values.flags.c_contiguous
        self.ask(
            "run",
            "htt_download",
            ctypes.c_void_p(values.ctypes.data),
            ctypes.c_uint64(address),
            ctypes.c_int64(values.nbytes),
        )

    def poison(self, address: int, size: int) -> None:
        """NaN everywhere."""
        self.ask("run", "htt_fill", ctypes.c_uint64(address), POISON, ctypes.c_int64(size))

    def run(self, call: CallWords) -> None:
        """One call, waited for."""
        self.ask("run", "htt_run", ctypes.byref(call))

    def once_us(self, call: CallWords) -> float:
        """One call on the stream between two events."""
        us = ctypes.c_double()
        self.ask("time", "htt_once", ctypes.byref(call), ctypes.byref(us))
        return float(us.value)

    def prepare(self, call: CallWords, launches: int) -> None:
        """A graph of so many calls, replayed once."""
        self.ask("time", "htt_prepare", ctypes.byref(call), launches)

    def replay_us(self) -> float:
        """The time of one replay."""
        us = ctypes.c_double()
        self.ask("time", "htt_replay", ctypes.byref(us))
        return float(us.value)


def built(folder: Path) -> Path:
    """The library, compiled into ``folder`` unless it is there. RuntimeError with the compiler's words."""
    headers = [
        NATIVE / "cuda" / name
        for name in ("cu.h", "driver.h", "launch.h", "ht_cuda_args.h", "generated.h", "ht_cuda_generated.h")
    ] + [OWN / "part.h"]
    toolchain = Toolchain.find()
    seen = hashlib.sha256(toolchain.version.encode() + b"".join(path.read_bytes() for path in (*SOURCES, *headers)))
    out = folder / f"haotuner-timing-{seen.hexdigest()[:16]}.so"
    if not out.exists():
        aside = out.with_suffix(f".{id(out)}.aside")
        toolchain.link([], list(SOURCES), list(INCLUDES), aside)
        aside.replace(out)
    return out


def kernel_words(name: str, launch: Launch, dtype: str, *, kn: bool) -> KernelWords:
    """Launch parameters of a kernel, as the native code has them."""
    boxes = {item.operand: item for item in launch.maps}
    x, w = (boxes[side] if boxes else None for side in ("x", "w"))
    return KernelWords(
        name=name.encode(), tile_m=launch.tile_m, tile_n=launch.tile_n, threads=launch.threads,
        shared_bytes=launch.shared_bytes, vector=launch.vector, maps=len(launch.maps),
        box_x=(ctypes.c_int32 * 2)(*((x.rows, x.columns) if x else (0, 0))),
        box_w=(ctypes.c_int32 * 2)(*((w.rows, w.columns) if w else (0, 0))),
        swizzle=x.swizzle_bytes if x else 0, kn=int(kn) + int(launch.across), dtype=DTYPES.index(dtype),
        splits_max=MOST_SPLITS if launch.splits else 1, groups=int(launch.groups),
        batch=int(launch.batch), windows=int(launch.windows), direct=int(launch.direct),
    )  # fmt: skip


def call_words(
    regions: Sequence[tuple[Loaded, int]],
    reduce: int,
    args: ArgsWords,
    weights: NDArray[np.uint64],
    ends: int = 0,
    groups: int = 0,
) -> CallWords:
    """A composition of (kernel, rows); ``weights``: addresses, which outlive the call; ``ends``: that of groups' ends."""
    call = CallWords(regions=len(regions), weights=len(weights), reduce=reduce, args=args)
    for index, (loaded, rows) in enumerate(regions):
        call.region[index] = RegionWords(kernel=loaded.words, function=loaded.function, rows=rows)
    call.groups = GroupWords(ends=ends, count=groups)
    call.w = weights.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64))
    return call


class DeviceScratch:
    """``with DeviceScratch(native) as scratch: address = scratch.put(values)``; Refusal where there is no memory."""

    def __init__(self, native: TimingLibrary) -> None:
        self.native, self._addresses = native, list[int]()

    def room(self, size: int) -> int:
        """The address of so many bytes, whatever they hold."""
        self._addresses.append(self.native.allocate(size))
        return self._addresses[-1]

    def put(self, values: NDArray[Any], room: int = 0) -> int:
        """The address of a copy, at the start of ``room`` bytes if it takes fewer."""
        address = self.room(max(room, values.nbytes))
        self.native.put(address, np.ascontiguousarray(values))
        return address

    def poisoned(self, size: int) -> int:
        """The address of so many bytes that nobody should read."""
        address = self.room(size)
        self.native.poison(address, size)
        return address

    def free(self) -> None:
        """Give all memory back."""
        addresses, self._addresses = self._addresses, []
        for address in addresses:
            self.native.free(address)

    def __enter__(self) -> DeviceScratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()
