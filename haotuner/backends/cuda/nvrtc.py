"""NVRTC as a compiler of cubins: a library of NVIDIA's that needs no toolkit, no host compiler and no headers here.

It comes as the wheel ``nvidia-cuda-nvrtc``, with torch's CUDA wheels, or with a toolkit. It compiles inside this process,
so whoever must survive a compiler that crashes or hangs calls it in a child process.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from haotuner.backends.cuda.compiler import FLAGS, HOW_TO_GET, Compiled, compiled
from haotuner.backends.cuda.toolkit import CompileFailed
from haotuner.errors import EnvironmentMissing

SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
WHEEL_FOLDERS = ("cu13/lib", "cuda_nvrtc/lib")  # below the package "nvidia": of CUDA 13, of CUDA 12
# Functions without __device__ are the device's, as nothing else is compiled here.
OPTIONS = ("-default-device", "--ptxas-options=-v", *FLAGS)
OLDEST = (12, 3)  # before it ptxas's report was not handed on


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """One libnvrtc, loaded."""

    library: ctypes.CDLL = field(repr=False)
    release: str  # "13.0"
    archs: tuple[str, ...]  # real architectures it builds for, as sm_80

    @property
    def name(self) -> str:
        """As ``nvrtc 13.0``."""
        return f"nvrtc {self.release}"

    def builds_for(self, arch: str) -> bool:
        """True if machine code of this architecture can be made."""
        return arch.rstrip("af") in self.archs

    def compile(self, source: str, arch: str, flags: Sequence[str] = ()) -> Compiled:
        """Compile a unit in this process. CompileFailed with NVRTC's words."""
        program = ctypes.c_void_p()
        options = [option.encode() for option in (f"--gpu-architecture={arch}", *OPTIONS, *flags)]
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"unit.cu", 0, None, None)
        try:
            done = self.library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
            log = self._bytes("nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if done:
                raise CompileFailed(f"{self.name} refused a unit for {arch} ({self._word(done)}): {log.strip()[-4000:]}")
            return compiled(self._bytes("nvrtcGetCUBIN", program), log, arch)
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, function: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{function}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(function, program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self.library, function)(*arguments)
        if code:
            raise CompileFailed(f"{self.name}: {function} answered {code} ({self._word(code)})")

    def _word(self, code: int) -> str:
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        word: bytes = self.library.nvrtcGetErrorString(code)
        return word.decode()


def find_nvrtc(path: Path | None = None) -> Nvrtc:
    """The NVRTC at a path, or of a wheel, or where the system's loader finds one; EnvironmentMissing if there is none."""
    why: list[str] = []
    for position in _places() if path is None else [str(path)]:
        try:
            return _loaded(position)
        except OSError as error:
            why.append(str(error))
    raise EnvironmentMissing(f"found no NVRTC ({why[-1]}); {HOW_TO_GET}")


def _places() -> Iterator[str]:
    package = importlib.util.find_spec("nvidia")
    for root in (package and package.submodule_search_locations) or ():
        for folder in WHEEL_FOLDERS:
            yield from (str(path) for soname in SONAMES if (path := Path(root, folder, soname)).is_file())
    yield from SONAMES


def _loaded(path: str) -> Nvrtc:
    # NVRTC 13.0 has no path of its own to its built-in functions: what is loaded already is found by its name.
    for beside in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")) if Path(path).is_absolute() else ():
        ctypes.CDLL(str(beside), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(path)
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) or (major.value, minor.value) < OLDEST:
        raise OSError(f"{path} is NVRTC {major.value}.{minor.value}, older than {OLDEST[0]}.{OLDEST[1]}")
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    archs = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(archs)
    return Nvrtc(library, f"{major.value}.{minor.value}", tuple(f"sm_{number}" for number in archs))
