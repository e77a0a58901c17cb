"""Runs the bundle this file lies in: ``python gpu_run.py --out results``; again until it says that everything is done."""

import os
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def unpacked_wheels() -> Path:
    """The bundle's wheels that fit this Python, unpacked beside them: nothing is installed."""
    site = ROOT / f"site-{sys.version_info.major}.{sys.version_info.minor}"
    for wheel in sorted((ROOT / "wheels").glob("*.whl")):
        tag = wheel.stem.split("-")[2]
        if tag in ("py3", f"cp{sys.version_info.major}{sys.version_info.minor}") and not (site / f".{wheel.stem}").exists():
            with zipfile.ZipFile(wheel) as content:
                content.extractall(site)
            (site / f".{wheel.stem}").touch()
    return site


def main() -> int:
    """Set the path for this process and its workers, and go on in the package."""
    paths = [str(ROOT), str(unpacked_wheels())]
    sys.path[:0] = paths
    # tvm-ffi imports torch where there is one, and may compile an extension for it: minutes that no kernel needs.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:  # better said now than by every worker
        import numpy  # noqa: F401  operators compute with it
        import tvm_ffi  # noqa: F401  the kernels' launchers need it
    except ImportError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        print(
            f"gpu_run: {error.name or 'a package'} cannot be imported ({error}); the bundle's wheels are for Python 3.12, "
            f"this is {version}",
            file=sys.stderr,
        )
        return 4
    from haotuner.bundle.run import main as run

    found = os.environ.get("PYTHONPATH", "")  # perhaps where torch is
    return run(ROOT, ":".join([*paths, found] if found else paths), sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
