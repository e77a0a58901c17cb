"""``python -m haotuner.runtime --cmakedir``: folders that builds of C and C++ servers need."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

CLIB = Path(__file__).resolve().parent / "clib"


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 when every folder was printed, 2 on wrong usage, 4 when DLPack's header is not installed."""
    reader = argparse.ArgumentParser(prog="python -m haotuner.runtime", description="Folders for builds against haotuner.h.")
    reader.add_argument("--cmakedir", action="store_true", help="of the C library's CMakeLists.txt: cmake -S")
    reader.add_argument("--includedir", action="store_true", help="of haotuner.h")
    reader.add_argument("--dlpackdir", action="store_true", help="of dlpack/dlpack.h: cmake -DDLPACK_INCLUDE=")
    reader.add_argument("--examplesdir", action="store_true", help="of serve.c, serve_model.c, serve.cpp and serve_cuda.c")
    options = reader.parse_args(arguments)
    if not any(vars(options).values()):
        reader.error("name the folder to print: --cmakedir, --includedir, --dlpackdir or --examplesdir")
    if options.cmakedir:
        print(CLIB)
    if options.includedir:
        print(CLIB / "include")
    if options.dlpackdir:
        folder = dlpack_folder()
        if folder is None:
            print("dlpack/dlpack.h is not installed; reinstall apache-tvm-ffi, which brings it", file=sys.stderr)
            return 4
        print(folder)
    if options.examplesdir:
        print(CLIB / "examples")
    return 0


def dlpack_folder() -> Path | None:
    """The folder of ``dlpack/dlpack.h`` that apache-tvm-ffi brings; None where it is not installed."""
    try:
        folder = Path(str(importlib.metadata.distribution("apache-tvm-ffi").locate_file("tvm_ffi/include")))
    except importlib.metadata.PackageNotFoundError:
        return None
    return folder if (folder / "dlpack" / "dlpack.h").is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
