"""What a cubin computes, as a shared library: ``python -m tests.standin.image IMAGES/HASH.cubin`` leaves IMAGES/HASH.so.

The driver runs this at a module's first execution. The source is the ``unit.cu`` beside a ``unit.cubin`` of equal bytes
anywhere below the folders of STANDIN_SOURCES.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.emulator.build import ALIGNMENT, CALLED, compilers, cuda_include
from tests.emulator.build import NATIVE as EMULATOR
from tests.emulator.translate import translate
from tests.standin.library import LIBRARY, cache_folder, locked, run

_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")
# Parameters come as the driver keeps them: each at an address, of the type that the kernel declares.
_ENTRIES = """
namespace standin {
template <class... P, size_t... I>
void call(void (*kernel)(P...), void** at, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<P>*>(at[I])...);
}
template <class... P>
void call(void (*kernel)(P...), void** at) { call(kernel, at, std::index_sequence_for<P...>()); }
}
"""


FLAGS = ("-O0", CALLED, "-std=c++17", "-fPIC", "-w", "-fpermissive", "-fno-strict-aliasing", *ALIGNMENT)


class NoSource(Exception):
    """No unit.cubin below the given folders has these bytes."""


def _includes() -> tuple[str, str]:
    return (f"-I{EMULATOR}", f"-I{cuda_include()}")


def source_of(cubin: bytes, folders: list[Path]) -> Path:
    """The unit.cu beside an equal unit.cubin."""
    for folder in folders:
        for cubin_path in folder.rglob("unit.cubin"):
            if cubin_path.stat().st_size == len(cubin) and cubin_path.read_bytes() == cubin:
                return cubin_path.with_name("unit.cu")
    raise NoSource(f"no unit.cubin below {', '.join(map(str, folders)) or '(no folder given)'} has these {len(cubin)} bytes")


def emulated(source: str) -> str:
    """A unit for the machine, with an entry for each kernel that takes its parameters by address."""
    kernels = _KERNEL.findall(source)
    entries = "".join(
        f'extern "C" void standin_entry_{name}(void** at) {{ standin::call(&{name}, at); }}\n' for name in kernels
    )
    return f"{translate(source)}\n#include <utility>\n#include <type_traits>\n{_ENTRIES}{entries}"


def build(source: Path, driver: Path) -> Path:
    """The shared library of one unit; compiled once for each text, machine and driver."""
    text = emulated(source.read_text())
    key = hashlib.sha256(f"{driver}\0{text}\0{_headers_hash()}".encode()).hexdigest()[:24]
    library = cache_folder() / f"image-{key}.so"
    with locked(cache_folder() / f"image-{key}.lock"):
        if not library.exists():
            headers = _precompiled()
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                unit, shared_object = Path(folder) / "unit.cc", Path(folder) / "unit.so"
                unit.write_text(text)
                run(
                    [
                        "g++",
                        *FLAGS,
                        f"-I{headers}",
                        *_includes(),
                        "-shared",
                        str(unit),
                        "-o",
                        str(shared_object),
                        str(driver / LIBRARY),
                    ]
                )
                shared_object.replace(library)
    return library


def _precompiled() -> Path:
    """A folder with the machine's header, compiled: two thirds of a unit's time are CUDA's headers."""
    folder = cache_folder() / f"headers-{_headers_hash()}"
    with locked(cache_folder() / f"headers-{_headers_hash()}.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
                whole = Path(scratch) / "whole"
                whole.mkdir()
                target = str(whole / "emulator.h.gch")
                run(["g++", *FLAGS, *_includes(), "-x", "c++-header", str(EMULATOR / "emulator.h"), "-o", target])
                whole.replace(folder)
    return folder


def _headers_hash() -> str:
    contents = b"".join(path.read_bytes() for path in sorted(EMULATOR.glob("*.h")))
    return hashlib.sha256(contents + repr((FLAGS, _includes(), compilers())).encode()).hexdigest()[:16]


def main(cubin: Path) -> None:
    """Make HASH.so of HASH.cubin."""
    folders = [Path(folder) for folder in os.environ.get("STANDIN_SOURCES", "").split(os.pathsep) if folder]
    library = build(source_of(cubin.read_bytes(), folders), Path(os.environ["STANDIN_DRIVER_FOLDER"]))
    fresh = cubin.with_suffix(f".{os.getpid()}")
    fresh.symlink_to(library)
    fresh.replace(cubin.with_suffix(".so"))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except (NoSource, RuntimeError, OSError, ValueError) as error:
        print(f"stand-in: {error}", file=sys.stderr)
        sys.exit(1)
