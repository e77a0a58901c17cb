"""The C compiler and the headers that build a library, and how to name them in a fingerprint."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from haotuner.backends.fingerprint import machine_code
from haotuner.backends.object_cache import ObjectCache, hash_of, key_of
from haotuner.errors import EnvironmentMissing
from haotuner.host.extras import how_to_get
from haotuner.isolate import group
from haotuner.isolate.answers import TimedOut

_PACKAGE = Path(__file__).resolve().parents[1]
COMPILERS = ("cc", "gcc", "clang")
ZIG = "ziglang"  # a package of PyPI with clang, a linker and the C library's headers
ZIG_WORDS = ("cc", "-mcpu=x86_64")  # it compiles for this host's CPU otherwise, whatever level is asked for
VERSION_LIMIT_S = 30.0  # a compiler says its version at once, from a cold network disk in seconds
# C11 for atomics; -O2 because the hot loops are TVM's, not ours; hidden so that two packs in one process never meet.
CFLAGS = (
    "-std=c11",
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",
)
KERNEL_FLAGS = (*CFLAGS, "-O3", "-Wno-unused-function")  # of micro-kernels in C


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A C compiler that works and where tvm-ffi's headers lie."""

    compiler: str
    version: str
    include: Path
    objects: Path | None = None  # where compiled sources of the package are kept; None: nowhere
    subcommand: tuple[str, ...] = ()  # words behind the compiler's path in every command

    @staticmethod
    def find(objects: Path | None = None) -> Toolchain:
        """The first of cc, gcc, clang on the PATH, else the package ziglang's; EnvironmentMissing says how to get one."""
        for path, *subcommand in compiler_commands():
            answer = group.run([path, *subcommand, "--version"], VERSION_LIMIT_S)
            if answer.code == 0 and answer.out:
                version = answer.out.splitlines()[0]
                return Toolchain(compiler=path, subcommand=tuple(subcommand), version=version, include=_ffi_headers(),
                                 objects=objects)  # fmt: skip
        raise EnvironmentMissing(
            f"no C compiler: looked for {', '.join(COMPILERS)} on the PATH, and for the package {ZIG}. "
            f"Tuning links a library with it; install one, for example: apt-get install gcc, or pip install {ZIG}"
        )

    @property
    def command(self) -> list[str]:
        """Words that every command of the compiler begins with."""
        return [self.compiler, *self.subcommand]

    def link(
        self, objects: list[Path], sources: list[Path], include: list[Path], out: Path, *, timeout_s: float = 120
    ) -> None:
        """Compile C sources and link them with objects into the shared library ``out``; RuntimeError with the output.

        ``include``: folders of headers; the package's sources in the first of them need no other, so that libraries which
        have it in common share their objects.
        """
        includes = self._flags(include)
        # Micro-kernels first: where they lie must not depend on the code beside them; 48 bytes moved calls by 1 %.
        inputs = [str(path) for path in (*objects, *self._compiled(sources, include, timeout_s))]
        shared = [
            "-shared",
            "-pthread",
            *includes,
            *inputs,
            "-o",
            str(out),
            "-Wl,-z,noexecstack",
            "-Wl,--as-needed",
            "-lm",
            "-s",
        ]
        self._run([*CFLAGS, *shared], timeout_s)

    def compile_ahead(self, sources: list[Path], include: list[Path], *, timeout_s: float = 120) -> None:
        """Compile what ``link`` will find kept, before all else that it needs is there; RuntimeError with the output."""
        self._compiled(sources, include, timeout_s)

    def machine_code(self, sources: Sequence[Path], include: list[Path], *, timeout_s: float = 120) -> str:
        """Hash of the machine code of the package's sources as ``link`` compiles them; RuntimeError where they do not.

        Object files that are kept are read, not compiled again.
        """
        with tempfile.TemporaryDirectory(prefix="haotuner-") as scratch:
            caching = self if self.objects is not None else replace(self, objects=Path(scratch))
            objects = caching._compiled(list(sources), include, timeout_s)
            if strays := [path.name for path in objects if path.suffix != ".o"]:
                raise RuntimeError(f"no place for object files of {', '.join(strays)} in {caching.objects}")
            return machine_code([path.read_bytes() for path in objects])

    def _flags(self, include: Sequence[Path]) -> list[str]:
        return [flag for path in (*include, self.include) for flag in ("-I", str(path))]

    def _compiled(self, sources: list[Path], include: list[Path], timeout_s: float) -> list[Path]:
        """The sources; in place of the package's own their object files, where a folder for them is known and writable.

        Those that nobody compiled yet are, as many at a time as there are cores.
        """
        if self.objects is None:
            return sources
        flags = [*CFLAGS, "-pthread"]
        words = [self.version, importlib.metadata.version("apache-tvm-ffi"), *flags]
        common: dict[int, str] = {}  # by how many of the folders a source may include from
        made: dict[Path, Future[Path]] = {}
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, _cancelled(pool):
            for source in sources:
                if source.is_relative_to(_PACKAGE):
                    count = 1 if source.is_relative_to(include[0]) else len(include)
                    if count not in common:
                        common[count] = hash_of(words, include[:count])  # reads all headers
                    how = key_of(source, common[count]), [*flags, *self._flags(include[:count])]
                    made[source] = pool.submit(self._cached_object, ObjectCache(self.objects), source, *how, timeout_s)
            return [made[source].result() if source in made else source for source in sources]

    def _cached_object(self, cache: ObjectCache, source: Path, key: str, flags: Sequence[str], timeout_s: float) -> Path:
        """The object file of a source of the package, compiled if nobody did yet; where there is no place, the source."""
        with contextlib.suppress(OSError):
            cached = cache.find(key)
            if cached is not None:
                return cached
            with cache.aside() as aside:
                made = Path(aside) / "made.o"
                try:
                    self._run([*flags, "-c", str(source), "-o", str(made)], timeout_s)
                except RuntimeError as error:
                    if _is_full(cache.folder, error):
                        return source
                    raise
                return cache.keep(key, made)
        return source

    def object(
        self,
        source: Path,
        include: list[Path],
        out: Path,
        flags: tuple[str, ...],
        *,
        keep: bool = False,
        timeout_s: float = 300,
    ) -> None:
        """Compile one C source of micro-kernels into an object file; RuntimeError with the output.

        ``keep``: where there is a folder for objects, it is kept there and compiled by whoever asks first.
        """
        words = [*KERNEL_FLAGS, *flags]
        includes = [flag for path in include for flag in ("-I", str(path))]

        def make(made: Path) -> None:
            self._run([*words, *includes, "-c", str(source), "-o", str(made)], timeout_s)

        if keep and self.objects is not None:
            key = key_of(source, hash_of([self.version, *words], include))
            ObjectCache(self.objects).fetch(key, out, make)
        else:
            make(out)

    def merge(self, objects: list[Path], out: Path) -> None:
        """One object file of several."""
        self._run(["-r", "-nostdlib", *map(str, objects), "-o", str(out)], 120)

    def _run(self, words: list[str], timeout_s: float) -> None:
        name = Path(self.compiler).name
        try:
            answer = group.run([*self.command, *words], timeout_s)
        except TimedOut as error:
            raise RuntimeError(f"{error}; run again when the machine is less busy") from error
        if answer.code != 0:
            raise RuntimeError(f"{name} failed with {answer.code}: {_reason(answer.errors)[-2000:]}")

    def words(self) -> dict[str, str]:
        """Versions of all that shapes the generated code."""
        return {
            "compiler": self.version,
            **{name: importlib.metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")},
        }


def compiler_commands() -> Iterator[list[str]]:
    """Commands of the compilers that are installed, the first to be tried first."""
    yield from ([path] for path in map(shutil.which, COMPILERS) if path is not None)
    package = importlib.util.find_spec(ZIG)
    for folder in () if package is None else package.submodule_search_locations or ():
        if os.access(zig := Path(folder) / "zig", os.X_OK):
            yield [str(zig), *ZIG_WORDS]


@contextlib.contextmanager
def _cancelled(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Guard of a pool: where it is left by an error, or by Ctrl-C, what the pool has not begun is never begun."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _reason(errors: str) -> str:
    """Message of a compiler without its warnings, which come before the reason; all of it where nothing else is left."""
    lines = errors.strip().splitlines()
    first = next((index for index, line in enumerate(lines) if " error: " in line or line.startswith("collect2")), 0)
    return "\n".join(lines[first:])


def _ffi_headers() -> Path:
    try:
        files = importlib.metadata.distribution("apache-tvm-ffi").locate_file("tvm_ffi/include")
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentMissing(f"apache-tvm-ffi is not installed; run: {how_to_get('tune')}") from None
    path = Path(str(files))
    if not (path / "tvm/ffi/c_api.h").is_file():
        raise EnvironmentMissing(f"tvm-ffi's headers are not at {path}; reinstall apache-tvm-ffi")
    return path


def _is_full(folder: Path, error: RuntimeError) -> bool:
    """True if a compiler failed because nothing more can be written to a folder, which it says in its user's language."""
    reported = any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT))
    return reported or os.statvfs(folder).f_bavail == 0
