"""Runs the bundle this file lies in: ``python gpu_run.py --out results``; again until it says that everything is done."""

import os
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def unpacked_wheels() -> Path:
    """The bundle's wheels, unpacked beside them: nothing is installed."""
    site = ROOT / "site"
    for wheel in sorted((ROOT / "wheels").glob("*.whl")):
        if not (site / f".{wheel.stem}").exists():
            with zipfile.ZipFile(wheel) as content:
                content.extractall(site)
            (site / f".{wheel.stem}").touch()
    return site


def main() -> int:
    """Set the path for this process and its tasks, and go on in the package."""
    names = (wheel.name for wheel in (ROOT / "wheels").glob("numpy-*.whl"))
    tags = {match[1] for name in names if (match := re.search(r"-cp3([0-9]+)-", name))}
    if tags and str(sys.version_info[1]) not in tags:  # their compiled modules would fail with pages of advice
        versions, own = " or ".join(f"3.{tag}" for tag in sorted(tags)), sys.version.split()[0]
        print(
            f"gpu_run: the bundle's packages are for Python {versions}, this is {own}: run it with python{versions}, or "
            f"build it with --python 3.{sys.version_info[1]}",
            file=sys.stderr,
        )
        return 4
    paths = [str(ROOT / "project"), str(unpacked_wheels())]
    result = os.environ.get("PYTHONPATH", "")  # perhaps where torch is
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, result] if result else paths)
    sys.path[:0] = paths
    try:  # better said now than by every task
        import numpy  # noqa: F401
        import tvm_ffi  # noqa: F401
    except ImportError as error:
        wheels = ", ".join(path.name for path in sorted((ROOT / "wheels").glob("numpy-*"))) or "no wheels"
        print(f"gpu_run: {error}; the bundle has {wheels}, this is Python {sys.version.split()[0]}", file=sys.stderr)
        return 4
    from tests.bench.gpu_bundle.run import main as run

    return run(ROOT, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
