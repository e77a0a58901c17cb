"""Groups of whole models in a CUDA pack: their code as a second image, and how each is launched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from haotuner.backends.backend import GroupLaunch
from haotuner.backends.cuda.code_cache import CodeCache, Entry
from haotuner.backends.cuda.compiler import FLAGS, GROUP_FLAGS
from haotuner.backends.cuda.device_code import find_compiler
from haotuner.host.files import written_aside


def build_groups(source: str, out: Path, *, arch: str, cache: Path | None) -> None:
    """Write the cubin of CUDA C++ to ``out``. EnvironmentMissing without a compiler, CompileFailed with its words.

    ``cache``: the folder of units by content that kernels are kept in, too.
    """
    content = json.dumps([source, arch, FLAGS, GROUP_FLAGS])
    code_cache = None if cache is None else CodeCache(cache)
    entry = None if code_cache is None else code_cache.find(content, None)
    if entry is None:
        compiler = find_compiler(arch)
        done = compiler.compile(source, arch, GROUP_FLAGS)
        facts = {"compiler": compiler.name, "arch": arch, "resources": done.resources}
        entry = Entry(unit=source, cubin=done.cubin, facts=facts)
        if code_cache is not None:
            code_cache.keep(content, compiler.name, entry)
    with written_aside(out) as aside:
        aside.write_bytes(entry.cubin)


def group_tables(launches: Sequence[GroupLaunch], image: Sequence[str]) -> str:
    """C of ``ht_cuda_pack_groups``, see runtime/native/cuda/loaded.h; ``image``: C of ``ht_cuda_group_image``."""
    text = ['#include "cuda/loaded.h"', *image]
    for launch in launches:
        text.append(f"static const int32_t {launch.name}_sizes[] = {{{', '.join(map(str, launch.sizes)) or '0'}}};")
    rows = [
        f'  {{"{launch.name}", {launch.lanes}, {launch.points}, {len(launch.sizes)}, {launch.name}_sizes}},'
        for launch in launches
    ]
    text += ["static const ht_cuda_group cuda_groups[] = {", *rows, "  {0, 0, 0, 0, 0},", "};"]
    text.append(f"const ht_cuda_groups_code ht_cuda_pack_groups = {{ht_cuda_group_image, {len(launches)}, cuda_groups}};")
    return "\n".join(text) + "\n"
