"""Compilers of CUDA C++ to cubins: nvcc and NVRTC, and the toolkit on this machine.

NVRTC as a compiler of cubins: a library of NVIDIA's that needs no toolkit, no host compiler and no headers here.

It comes as the wheel ``nvidia-cuda-nvrtc``, with torch's CUDA wheels, or with a toolkit. It compiles inside this process,
so whoever must survive a compiler that crashes or hangs calls it in a child process.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from haotuner.backends.cuda.cubin import read_cubin
from haotuner.errors import EnvironmentMissing, HaotunerError
from haotuner.host.extras import how_to_get
from haotuner.isolate.answers import TimedOut
from haotuner.isolate.group import Finished, run
from haotuner.spec.device import Device

CUDA_12_ONLY = ("sm_60", "sm_61", "sm_70", "sm_72")  # dropped by the CUDA 13 toolkit (its release notes)
QUERY_SECONDS = 60  # nvcc --version on a cold disk took 3 s here
COMPILE_SECONDS = 1800  # a file of 8 kernels takes 10 to 40 s, a whole model has a hundred; who needs more is stuck


class CompileFailed(HaotunerError):
    """A compiler refused generated code, or did not finish; the message carries its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """One CUDA compiler."""

    nvcc: Path
    release: str  # "13.0"
    archs: tuple[str, ...]  # real architectures it builds for, as sm_80

    def builds_for(self, arch: str) -> bool:
        """True if machine code of this architecture can be made."""
        return arch.rstrip("af") in self.archs  # nvcc lists sm_90, and builds its sm_90a with it


def find_toolkit(nvcc: str = "nvcc") -> Toolkit:
    """The toolkit whose nvcc has this name or path; EnvironmentMissing if there is none that answers."""
    result = shutil.which(nvcc)
    if result is None:
        raise EnvironmentMissing(
            f"asked for the CUDA compiler {nvcc!r}, found none on the PATH; install a CUDA 12.8 or later toolkit, or select "
            "and predict only (candidates, explain), which needs no compiler"
        )
    version = run_tool([result, "--version"], seconds=QUERY_SECONDS).out
    release = re.search(r"release ([0-9]+\.[0-9]+)", version)
    codes = run_tool([result, "--list-gpu-code"], seconds=QUERY_SECONDS).out.split()
    if release is None or not codes:
        raise EnvironmentMissing(f"{result} does not answer like nvcc: {version.strip()[:200]!r}")
    return Toolkit(nvcc=Path(result), release=release[1], archs=tuple(codes))


def why_not_built(device: Device, nvcc: str = "nvcc") -> str:
    """Reason that no machine code for a GPU is made here; empty where it is."""
    if device.kind != "cuda":
        return f"kernels are CUDA C++, {device.arch} is no CUDA architecture"
    try:
        toolkit = find_toolkit(nvcc)
    except EnvironmentMissing as error:
        return str(error)
    if toolkit.builds_for(device.arch):
        return ""
    older = "; a CUDA 12 nvcc builds for sm_50 to sm_90" if device.arch in CUDA_12_ONLY else ""
    return f"nvcc {toolkit.release} builds for {', '.join(toolkit.archs)}, not for {device.arch}{older}"


def run_tool(words: Sequence[str], *, seconds: float) -> Finished:
    """Run a build tool to its end; CompileFailed with the end of its output if it fails or takes too long."""
    try:
        done = run(words, seconds)
    except TimedOut as error:
        raise CompileFailed(f"{words[0]} did not finish in {seconds:.0f} s: {' '.join(words)[:400]}") from error
    except OSError as error:
        raise EnvironmentMissing(f"{words[0]} cannot be started: {error}") from error
    if done.code:
        output = (done.errors or done.out).strip()
        raise CompileFailed(f"{Path(words[0]).name} exited {done.code}: {output[-4000:]}")
    return done


def read_resources(ptxas: str) -> Mapping[str, Mapping[str, float]]:
    """Resources of each kernel as ``ptxas -v`` reports them: registers and bytes of stack, spills and static shared memory.

    A kernel built for several architectures keeps the largest figure of each.
    """
    result: dict[str, dict[str, float]] = {}
    kernel: dict[str, float] = {}
    for line in ptxas.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = result.setdefault(entry[1], {})
        seen: dict[str, float] = {}
        if stack := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            seen = {"stack_bytes": int(stack[1]), "spill_bytes": int(stack[2]) + int(stack[3])}
        if registers := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            seen = {"registers": int(registers[1]), "static_shared_bytes": int(shared[1]) if shared else 0}
        for name, value in seen.items():
            kernel[name] = max(value, kernel.get(name, 0))
    return result


# No fast math: it flushes denormals, which a dense layer must not.
FLAGS = ("-std=c++17", "-w")  # -w: generated code leaves variables unused
# Of groups: every node of a model rounds its own result. Sums of products fuse by name, see codegen/loops/c_math.py.
GROUP_FLAGS = ("-fmad=false",)
HOW_TO_GET = f"install NVRTC with: {how_to_get('cuda')}, or a CUDA 12.8 or later toolkit with nvcc on the PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A cubin, and resources of its kernels by symbol: registers, stack_bytes, spill_bytes, static_shared_bytes."""

    cubin: bytes
    resources: Mapping[str, Mapping[str, float]]


class Compiler(Protocol):
    """Compiler of a unit of device code to a cubin; no GPU is needed."""

    @property
    def name(self) -> str:
        """Kind and release, as ``nvcc 13.0``: one name makes one machine code."""
        ...

    def builds_for(self, arch: str) -> bool:
        """True if machine code of an architecture like ``sm_90a`` can be made."""
        ...

    def compile(self, source: str, arch: str, flags: Sequence[str] = ()) -> Compiled:
        """Compile a self-contained unit with ``FLAGS`` and these. CompileFailed with the compiler's words."""
        ...


def compiled(cubin: bytes, text: str, arch: str) -> Compiled:
    """A compiler's cubin and words, judged: CompileFailed where it is not the program or the architecture asked for.

    Resources are those that ptxas reports; where it reports none, those in the cubin, and a stack counts as spills.
    """
    advice = re.findall(r"\(C[0-9]+\) (Potential Performance Loss[^\n]*)", text)
    if advice:  # wgmma made serial, setmaxnreg ignored: no longer the program that the footprint describes
        raise CompileFailed(f"{arch}: ptxas does not follow the program: {'; '.join(sorted(set(advice)))}")
    facts = read_cubin(cubin)
    if facts.arch != arch:
        raise CompileFailed(f"asked for code for {arch}, the compiler made it for {facts.arch}; use another CUDA release")
    reported = read_resources(text)
    resources = {
        name: {
            "registers": kernel.registers,
            "stack_bytes": kernel.stack_bytes,
            "spill_bytes": kernel.stack_bytes,
            "static_shared_bytes": kernel.shared,
            **reported.get(name, {}),
        }
        for name, kernel in facts.kernels.items()
    }
    return Compiled(cubin=cubin, resources=resources)


def first_for(arch: str, compilers: Sequence[Compiler], missing: Sequence[str] = ()) -> Compiler:
    """The first of the compilers that builds for an architecture; EnvironmentMissing says how to get one.

    ``missing``: why others are not among them.
    """
    for compiler in compilers:
        if compiler.builds_for(arch):
            return compiler
    result = ", ".join(compiler.name for compiler in compilers)
    lacking = "; ".join([f"found {result}, which does not build for it" if result else "found none", *missing])
    older = "sm_60 and sm_70 need a CUDA 12 compiler; " if arch in ("sm_60", "sm_61", "sm_70", "sm_72") else ""
    raise EnvironmentMissing(f"asked for a CUDA compiler for {arch}, {lacking}; {older}{HOW_TO_GET}")


@dataclass(frozen=True, slots=True)
class Nvcc:
    """The compiler of a toolkit."""

    toolkit: Toolkit

    @property
    def name(self) -> str:
        """As ``nvcc 13.0``."""
        return f"nvcc {self.toolkit.release}"

    def builds_for(self, arch: str) -> bool:
        """True if the toolkit makes machine code of this architecture."""
        return self.toolkit.builds_for(arch)

    def compile(self, source: str, arch: str, flags: Sequence[str] = ()) -> Compiled:
        """Compile a unit in a process of its own. CompileFailed with nvcc's words, or after ``COMPILE_SECONDS``."""
        with tempfile.TemporaryDirectory() as folder:
            unit, cubin = Path(folder, "unit.cu"), Path(folder, "unit.cubin")
            unit.write_text(source)
            words = ["-cubin", "-Xptxas=-v", f"-arch={arch}", *FLAGS, *flags]
            command = [str(self.toolkit.nvcc), *words, str(unit), "-o", str(cubin)]
            done = run_tool(command, seconds=COMPILE_SECONDS)
            return compiled(cubin.read_bytes(), done.out + done.errors, arch)


def find_nvcc(nvcc: str = "nvcc") -> Nvcc:
    """The compiler nvcc of this name or path; EnvironmentMissing if there is none that answers."""
    return Nvcc(find_toolkit(nvcc))


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
