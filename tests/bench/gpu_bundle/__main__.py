"""The builder's door: ``python -m tests.bench.gpu_bundle build --out build/gpu-bundle.tar.xz``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from haotuner.errors import HaotunerError
from tests.bench.gpu_bundle.build import assemble, pack
from tests.bench.gpu_bundle.suites import SUITES
from tests.bench.gpu_bundle.wheels import download

ARCHS = "sm_80,sm_86,sm_89,sm_90a"
KERNELS = 6  # first candidates of each op and family


def main(arguments: Sequence[str]) -> int:
    """Build an archive; an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.gpu_bundle", description="Build a bundle for a bare GPU machine."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="compile, collect, and write one archive")
    build.add_argument("--out", type=Path, default=Path("build/gpu-bundle.tar.xz"))
    build.add_argument("--arch", default=ARCHS, help="architectures whose kernels are compiled here, such as sm_80,sm_90a")
    build.add_argument("--kernels", type=int, default=KERNELS, help="first candidates of each op and family; 0: none")
    build.add_argument("--suite", choices=sorted(SUITES), default="full")
    build.add_argument("--python", default="3.12", help="of the GPU machine")
    build.add_argument("--jobs", type=int, default=2, help="compilers at a time")
    build.add_argument("--work", type=Path, help="folder that is kept for the next build [default: beside --out]")
    build.add_argument("--no-wheels", action="store_true", help="the GPU machine has haotuner's packages")
    build.add_argument("--volume-mb", type=float, default=0, help="cut the archive into parts of so many megabytes")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        root = options.work or options.out.with_name(f"{options.out.name.partition('.')[0]}-work")
        root.mkdir(parents=True, exist_ok=True)
        if not options.no_wheels:
            download(root / "wheels", options.python)
        assemble(
            root, options.arch.split(","), SUITES[options.suite], kernels=options.kernels, jobs=options.jobs,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )  # fmt: skip
        parts = pack(root, options.out, int(options.volume_mb * 1e6))
    except HaotunerError as error:
        print(f"tests.bench.gpu_bundle: {error}", file=sys.stderr)
        return error.exit_code
    size = sum(part.stat().st_size for part in parts) / 1e6
    print(f"{', '.join(map(str, parts))}: {size:.1f} MB, {time.monotonic() - started:.0f} s")
    print("on the GPU machine: tar xf gpu-bundle.tar.xz && python3 gpu_bundle/gpu_run.py --out results")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
