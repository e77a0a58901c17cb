"""Build of the wheel: compiles the provider and haotuner's C library into one shared library."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "libhaotuner_onnxruntime.so"
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread")


def compile_provider(root: Path, version: str, out: Path, *flags: str) -> Path:
    """The shared library at ``out``, compiled from this project's ``root``. RuntimeError with the compiler's words."""
    compiler = shlex.split(os.environ.get("CC", "")) or list(filter(None, map(shutil.which, ("cc", "gcc"))))[:1]
    if not compiler:
        raise RuntimeError("a C compiler builds the provider and none is installed: install gcc, or set CC")
    runtime = next(
        (path for path in (root / "runtime", root.parents[1] / "haotuner/runtime") if (path / "clib").is_dir()), None
    )
    if runtime is None:
        raise RuntimeError(
            f"haotuner's C library lies neither in {root / 'runtime'} nor in the tree around {root}; take a whole tree"
        )
    dlpack = importlib.metadata.distribution("apache-tvm-ffi").locate_file("tvm_ffi/include")
    own, clib = root / "native", runtime / "clib"
    folders = (own, clib, clib / "include", runtime / "native", dlpack)
    words = [*compiler, *FLAGS, *flags, f'-DHAOTUNER_ORT_VERSION="{version}"', *(f"-I{folder}" for folder in folders)]
    words += [str(path) for path in sorted((*own.glob("*.c"), *clib.glob("*.c")))]
    words += [f"-Wl,--version-script={own / 'exports.map'}", "-ldl", "-o", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(compiler)} failed: {done.stderr[-2000:]}")
    return out


class ProviderBuild(BuildHookInterface[Any]):
    """Hook of hatchling's wheel target."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the platform that the library is of. An editable install has the library in its sources."""
        root = Path(self.root)
        library = compile_provider(root, self.metadata.version, root / "haotuner_onnxruntime" / LIBRARY)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append(f"haotuner_onnxruntime/{LIBRARY}")
        self.app.display_info(f"compiled {library}")
