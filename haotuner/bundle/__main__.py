"""The builder's door: ``python -m haotuner.bundle build --out build/gpu-bundle.tar.xz``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from haotuner.backends.cuda.toolkit import find_toolkit
from haotuner.bundle.build import assemble, pack
from haotuner.bundle.candidates import choose, profile_of
from haotuner.bundle.libraries import Nvcc
from haotuner.bundle.suites import SUITES
from haotuner.errors import HaotunerError

ARCHS = "sm_80,sm_90a"
KERNELS = 200  # candidates for one architecture


def main(arguments: Sequence[str]) -> int:
    """Build an archive; an exit code."""
    parser = argparse.ArgumentParser(prog="python -m haotuner.bundle", description="Build a bundle for a bare GPU machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="compile, collect, and write one archive")
    build.add_argument("--out", type=Path, default=Path("build/gpu-bundle.tar.xz"))
    build.add_argument("--arch", default=ARCHS, help="architectures, such as sm_80,sm_90a")
    build.add_argument("--kernels", type=int, default=KERNELS, help="candidates for one architecture")
    build.add_argument("--suite", choices=sorted(SUITES), default="full")
    build.add_argument("--jobs", type=int, default=2, help="compilers at a time")
    build.add_argument("--nvcc", default="nvcc", help="name or path of the CUDA compiler")
    build.add_argument(
        "--work", type=Path, help="folder that keeps compiled libraries for the next build [default: beside --out]"
    )
    build.add_argument("--no-wheels", action="store_true", help="leave tvm-ffi out; the GPU machine has it")
    wanted = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        compiler = Nvcc(toolkit=find_toolkit(wanted.nvcc))
        root = wanted.work or wanted.out.with_name(f"{wanted.out.name.partition('.')[0]}-work")
        choices = {arch: choose(profile_of(arch), wanted.kernels) for arch in wanted.arch.split(",")}
        bundle = assemble(
            root, choices, SUITES[wanted.suite], compiler, jobs=wanted.jobs, with_wheels=not wanted.no_wheels,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )  # fmt: skip
        size = pack(root, wanted.out)
    except HaotunerError as error:
        print(f"haotuner.bundle: {error}", file=sys.stderr)
        return error.exit_code
    counts = ", ".join(f"{len(entries)} kernels for {arch}" for arch, entries in bundle.kernels.items())
    print(f"{wanted.out}: {counts}, {size / 1e6:.1f} MB, bundle {bundle.name}, {time.monotonic() - started:.0f} s")
    print("on the GPU machine: tar xf gpu-bundle.tar.xz && python3 gpu_bundle/gpu_run.py --out results")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
