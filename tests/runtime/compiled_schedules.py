"""Packs as they were before schedules were files: the words of a schedule are C that is compiled into the library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from haotuner.backends.cpu.pack_source import PackedAny
from haotuner.pack.manifest import ModelContent
from haotuner.pack.write import write_pack
from haotuner.partition.executable import ExecutableModel
from haotuner.spec.bytecode import words_of
from tests.run_folder import toolchain
from tests.runtime.native_builds import HERE, NATIVE, pack_sources
from tests.runtime.packs import document


def compiled_pack(out: Path, ops: Sequence[PackedAny], models: Sequence[ExecutableModel]) -> Path:
    """A pack of these models at ``out`` whose manifest names no bytecode."""
    schedules = out.parent / f"{out.name}_schedules.c"
    schedules.write_text(_source(models))
    sources = [path for path in pack_sources(out, ops, models) if path.name != "model_api.c"]
    library = out.with_suffix(".so")
    toolchain().link([], [*sources, schedules, HERE / "compiled_door.c"], [NATIVE], library)
    files = {model.name: ModelContent(model.schedule, None, model.weights) for model in models}
    write_pack(out, library, document(ops, "x86-64"), lambda _: None, files)
    return out


def _source(models: Sequence[ExecutableModel]) -> str:
    compiled = [words_of(model.bytecode) for model in models if model.bytecode is not None]
    lines = ["#include <stdint.h>", "typedef struct { const int64_t* words; int64_t count; } compiled_schedule;"]
    for index, words in enumerate(compiled):
        lines.append(f"static const uint64_t words_{index}[] = {{{', '.join(f'{word % 2**64}ULL' for word in words)}}};")
    rows = [f"{{(const int64_t*)words_{index}, {len(words)}}}" for index, words in enumerate(compiled)]
    lines.append(f"const compiled_schedule ht_models[] = {{{', '.join(rows)}}};")
    lines.append(f"const int ht_model_count = {len(compiled)};")
    return "\n".join(lines) + "\n"
