"""Machine code of the runtime's own sources, of which copies are changed: what a compiler makes of them decides."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.fingerprint import machine_code
from haotuner.backends.toolchain import CFLAGS
from tests.run_folder import toolchain

NAMES = ("pool.c", "check.c", "kinds/sliced.c")
OTHER_FUNCTION = '#include "ht.h"\nint other(char*, size_t, const char*, va_list);\n#define vsnprintf other'
Compile = Callable[..., str]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """The hash of the three files, each compiled from a copy in which texts are replaced."""
    compiler, cache = toolchain(), {}

    def of(changes: Sequence[tuple[str, str, str]] = (), flags: tuple[str, ...] = (), moved: str = "") -> str:
        objects = []
        for name in NAMES:
            mine = tuple((was, now) for where, was, now in changes if where == name)
            if (name, mine, flags, moved) not in cache:
                folder = tmp_path_factory.mktemp("copy")
                text = (RUNTIME_SOURCES / name).read_text()
                for was, now in mine:
                    assert was in text, f"{name} has no {was!r} any more: mend this test"
                    text = text.replace(was, now)
                source = folder / f"{moved}{Path(name).name}"
                source.write_text(text)
                include = [RUNTIME_SOURCES, RUNTIME_SOURCES / "kinds", compiler.include]
                words = [*CFLAGS, *flags, *(f"-I{path}" for path in include), "-c", str(source), "-o", f"{source}.o"]
                subprocess.run([compiler.compiler, *words], check=True, capture_output=True)
                cache[name, mine, flags, moved] = Path(f"{source}.o").read_bytes()
            objects.append(cache[name, mine, flags, moved])
        return machine_code(objects)

    return of


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ([("kinds/sliced.c", "/* The kernel on rows", "\n\n/* Anything. The kernel on rows")], ""),
        ([("kinds/sliced.c", "share", "portion")], ""),
        ([("kinds/sliced.c", "join_slices", "fold_slices"), ("kinds/sliced.c", "job", "slice_work")], ""),
        ([("pool.c", "ht_pool_run", "ht_pool_go"), ("kinds/sliced.c", "ht_pool_run", "ht_pool_go"),
          ("pool.c", '#include "ht.h"', '#include "ht.h"\nvoid ht_pool_go(void (*)(void*, int64_t), void*, int64_t, int);'),
          ("kinds/sliced.c", "#include <string.h>",
           "#include <string.h>\nvoid ht_pool_go(void (*)(void*, int64_t), void*, int64_t, int);")], ""),
        ([("check.c", "%s has no shape", "the shape of %s is missing")], ""),
        ([], "moved_"),
    ],
    ids=["comment", "local", "static", "exported", "error text", "file"],
)  # fmt: skip
def test_names_comments_texts_and_places_count_for_nothing(compiled: Compile, changes, moved) -> None:
    assert compiled(changes, moved=moved) == compiled()


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ([("kinds/sliced.c", "j.slices = 4 *", "j.slices = 8 *")], ()),
        ([("kinds/sliced.c", "for (int a = rank - 1; a >= 0;", "for (int a = rank - 1; a > 0;")], ()),
        ([("check.c", '#include "ht.h"', OTHER_FUNCTION)], ()),
        ([], ("-O1",)),
    ],
    ids=["constant", "loop", "function of libc", "flag"],
)
def test_what_runs_otherwise_is_other_code(compiled: Compile, changes, flags) -> None:
    assert compiled(changes, flags) != compiled()


def test_what_is_no_object_file_is_refused() -> None:
    with pytest.raises(ValueError, match="ELF"):
        machine_code([b"!<arch>\n"])
