"""Puts a bundle together: libraries, scripts, wheels and shapes in one folder, then in one archive."""

from __future__ import annotations

import datetime
import hashlib
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import haotuner
from haotuner.bundle import libraries, manifest, suites, wheels
from haotuner.bundle.candidates import Choice
from haotuner.bundle.libraries import Compiler, Progress
from haotuner.bundle.manifest import Bundle, Entry
from haotuner.bundle.suites import Suite
from haotuner.errors import HaotunerError
from haotuner.hw_profiles.profile import profiles

PACKAGE = Path(haotuner.__file__).parent
# What runs on the GPU machine: floor 0, the child process and the record format, then the bundle's own modules. tvm-ffi
# and numpy, which operators compute with, come as wheels.
CARRIED = ("words", "ops", "isolate")  # whole folders
SCRIPTS = (
    "__init__", "ceilings", "checking", "inventory", "journal", "kernels", "manifest", "operands",
    "outcome", "overseer", "peer_torch", "peer_triton", "peer_triton_kernel", "peers", "policy", "probe", "report", "run",
    "sanitizing", "suites", "timing", "trials", "worker",
)  # fmt: skip
# Of those, what a result depends on; with native/ it makes the judge. The rest may be mended without measuring anew.
JUDGE = ("bundle/ceilings", "bundle/checking", "bundle/operands", "bundle/policy", "bundle/timing", "words/cold")
FOLDER = "gpu_bundle"  # of every file in the archive
LIMIT_BYTES = 60_000_000  # what the way to a GPU machine was seen to take


def assemble(
    root: Path, choices: Mapping[str, Sequence[Choice]], suite: Suite, compiler: Compiler, *, jobs: int,
    with_wheels: bool, say: Progress,
) -> Bundle:  # fmt: skip
    """Fill a folder with a bundle of the kernels chosen for each architecture.

    The folder may hold an earlier build, whole or broken off: its compiled libraries and wheels are used again where they
    still fit, everything else is made anew.
    """
    _keep_only(root, ("lib", "src", "wheels"))
    for folder in (root / "lib", root / "src"):
        _keep_only(folder, tuple(choices))
    built: dict[str, tuple[Entry, ...]] = {}
    for arch, chosen in choices.items():
        built[arch] = libraries.build(chosen, root, arch, compiler, jobs=jobs, say=say)
    _copy_scripts(root)
    suites.write(suite, root)
    if with_wheels:
        wheels.download(root / "wheels")
    else:
        shutil.rmtree(root / "wheels", ignore_errors=True)
    bundle = Bundle(
        root=root,
        name=_content_name(root, sorted([*root.glob("src/*/*.cu"), *root.glob("haotuner/**/*.py")])),
        judge=_content_name(root, [*(root / "haotuner" / f"{name}.py" for name in JUDGE), *_native()]),
        version=haotuner.__version__,
        toolkit=compiler.release,
        kernels=built,
        probes={arch: f"lib/{arch}/probe.so" for arch in choices},
        device_names=_device_names(),
        built=f"built {datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
    )
    manifest.write(bundle)
    return bundle


def pack(root: Path, archive: Path) -> int:
    """Write the folder into a .tar.xz; its size in bytes. HaotunerError when it is over the limit."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        tar.add(root, FOLDER)
    size = archive.stat().st_size
    if size > LIMIT_BYTES:
        raise HaotunerError(
            f"{archive} has {size / 1e6:.1f} MB, over {LIMIT_BYTES / 1e6:.0f} MB; build with fewer --kernels"
        )
    return size


def _keep_only(folder: Path, names: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and path.name not in names:
            shutil.rmtree(path)
        elif not path.is_dir():
            path.unlink()


def _copy_scripts(root: Path) -> None:
    package = root / "haotuner"
    for folder in ("bundle", "records"):
        (package / folder).mkdir(parents=True)
    (package / "__init__.py").write_text(
        f'"""What a GPU machine needs of haotuner."""\n\n__version__ = "{haotuner.__version__}"\n'
    )
    (package / "records" / "__init__.py").write_text('"""The record format."""\n')
    shutil.copy(PACKAGE / "records" / "codec.py", package / "records")
    shutil.copy(PACKAGE / "errors.py", package)
    for folder in CARRIED:
        shutil.copytree(PACKAGE / folder, package / folder, ignore=shutil.ignore_patterns("__pycache__", "README.md"))
    for name in SCRIPTS:
        shutil.copy(PACKAGE / "bundle" / f"{name}.py", package / "bundle")
    shutil.copy(PACKAGE / "bundle" / "start.py", root / "gpu_run.py")


def _content_name(root: Path, files: Sequence[Path]) -> str:
    """Short hash of files and of their names."""
    content = hashlib.sha256()
    for path in files:
        content.update(f"{path.relative_to(root) if path.is_relative_to(root) else path.name}\n".encode())
        content.update(path.read_bytes())
    return content.hexdigest()[:12]


def _native() -> list[Path]:
    return sorted(path for path in libraries.NATIVE.iterdir() if path.is_file())


def _device_names() -> dict[str, str]:
    return {alias.lower(): profile.device.id for profile in profiles() for alias in profile.aliases}
