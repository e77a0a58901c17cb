"""Puts a bundle together: the project, wheels, a cache of compiled kernels and the driver suite's code, in one archive."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import haotuner
from haotuner.backends.cuda.compiler import Compiler
from haotuner.backends.cuda.device_code import build_cubin, find_compiler
from haotuner.errors import HaotunerError
from haotuner.host.files import scratch_folder
from tests.bench.gpu_bundle.candidates import Choice, choose, first, profile_of
from tests.bench.gpu_bundle.suites import Suite

PACKAGE = Path(haotuner.__file__).parent
TESTS = Path(__file__).resolve().parents[2]
TEST_FOLDERS = ("contract", "standin", "emulator", "bench/gpu_bundle")  # what the driver suite imports; the run itself
TEST_FILES = ("__init__.py", "run_folder.py", "kept.py", "kept_objects.py", "bench/__init__.py")  # which these import
DRIVER_SOURCE = "driver_kernels.cu"
FOLDER = "gpu_bundle"  # of every file in the archive
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "README.md")
Say = Callable[[str], None]


def assemble(
    root: Path, archs: Sequence[str], suite: Suite, *, kernels: int, jobs: int, say: Say, compiler: Compiler | None = None
) -> None:
    """Fill a folder with a bundle. Compiled code of an earlier build there is used again, the rest is made anew.

    ``kernels``: first candidates of each op and family that are compiled for each of ``archs``; 0: none.
    """
    for name in ("project", "driver"):
        shutil.rmtree(root / name, ignore_errors=True)
    shutil.copytree(PACKAGE, root / "project" / "haotuner", ignore=LEFT_OUT)  # follows the links of its siblings
    for name in TEST_FOLDERS:
        shutil.copytree(TESTS / name, root / "project" / "tests" / name, ignore=LEFT_OUT)
    for name in TEST_FILES:
        shutil.copy(TESTS / name, root / "project" / "tests" / name)
    shutil.copy(Path(__file__).with_name("start.py"), root / "gpu_run.py")
    source = (TESTS / "contract" / DRIVER_SOURCE).read_text()
    for arch in archs:
        path = root / "driver" / f"driver_kernels-{arch}"
        path.mkdir(parents=True)
        (path / "unit.cu").write_text(source)
        (path / "unit.cubin").write_bytes((compiler or find_compiler(arch)).compile(source, arch).cubin)
    cache = root / "cache" / "haotuner" / "device-code"
    for arch in archs if kernels else ():
        result = _kernels_to_compile(arch, suite, kernels)
        say(f"{arch}: {len(result)} kernels")
        compile_all(result, arch, cache, jobs=jobs, say=say, compiler=compiler)


def _kernels_to_compile(arch: str, suite: Suite, kernels: int) -> list[Choice]:
    """What correctness checks and a tuner tries first on an architecture, each kernel once."""
    device = profile_of(arch)
    checked = choose(device, suite.kernels)
    tuned = [choice for work in suite.works for choice in first(device, work.op, work.last_m, kernels)]
    return list({choice.kernel.name: choice for choice in (*checked, *tuned)}.values())


def compile_all(
    choices: Iterable[Choice], arch: str, cache: Path, *, jobs: int, say: Say, compiler: Compiler | None = None
) -> None:
    """Compile kernels into a cache, each a unit of its own as tuners ask for them; one that does not compile is said."""
    with scratch_folder() as scratch, ThreadPoolExecutor(jobs) as pool:

        def built(choice: Choice) -> str:
            programs = {choice.kernel.name: (choice.family, choice.kernel)}
            out = scratch / f"{arch}-{choice.kernel.name}.cubin"
            try:
                build_cubin(programs, out, arch=arch, reduces=[choice.family.dtype], compiler=compiler, cache=cache)
            except HaotunerError as error:
                return f"{choice.kernel.name}: {str(error)[-200:]}"
            return ""

        for error_text in pool.map(built, choices):
            if error_text:
                say(f"{arch}: left out: {error_text}")


def pack(root: Path, archive: Path, volume_bytes: int = 0) -> list[Path]:
    """Write the folder into a .tar.xz; its path, or with ``volume_bytes`` those of its parts, to be joined with ``cat``."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    for old in archive.parent.glob(f"{archive.name}.[0-9][0-9]"):
        old.unlink()
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        for name in ("gpu_run.py", "project", "wheels", "driver", "cache"):
            if (root / name).exists():
                tar.add(root / name, f"{FOLDER}/{name}")
    if not volume_bytes or archive.stat().st_size <= volume_bytes:
        return [archive]
    parts: list[Path] = []
    with archive.open("rb") as whole:
        while data := whole.read(volume_bytes):
            parts.append(archive.with_name(f"{archive.name}.{len(parts):02}"))
            parts[-1].write_bytes(data)
    archive.unlink()
    return parts
