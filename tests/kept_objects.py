"""Object files of the repository's C and C++, compiled once for each set of flags and kept between runs of the tests."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from haotuner.backends.object_cache import ObjectCache, hash_of, key_of
from tests.kept import place, version
from tests.run_folder import in_a_run

ROOT = Path(__file__).parents[1]
_SOURCE_IN = re.compile(r'^#include "(.+\.c)"', re.MULTILINE)


def compiled(words: Sequence[str], source: Path, headers: Sequence[Path], timeout_s: float = 600) -> Path:
    """The object file of a source. AssertionError with the compiler's words.

    Args:
        words: the compiler and its flags; what the object depends on beside the source and the headers.
        source: C or C++.
        headers: folders whose ``.h`` it may include, beside its own.
        timeout_s: for the compiler.
    """
    cache = ObjectCache(place() / "c-objects")
    inputs = [version(words[0]), *words, source.name, *_sources_in(source, headers)]
    key = key_of(source, repr((inputs, *(_headers_in(folder) for folder in (*headers, source.parent)))))
    cached = cache.find(key)
    if cached is not None:
        return cached
    with cache.aside() as aside:
        object_file = Path(aside) / "made.o"
        command = [*words, "-c", str(source), "-o", str(object_file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, done.stderr
        return cache.keep(key, object_file)


def _headers_in(folder: Path) -> str:
    """Hash of the headers in and below a folder; those of the repository, which no test changes, are read once."""
    return _read_once(folder) if folder.is_relative_to(ROOT) else hash_of((), [folder])


@functools.cache
def _read_once(folder: Path) -> str:
    return hash_of((), [folder])


def _sources_in(source: Path, folders: Sequence[Path]) -> list[str]:
    """The texts of what a source includes that is no header: of another source, to get at what is static there."""
    names = _SOURCE_IN.findall(source.read_text(encoding="utf-8"))
    return [(folder / name).read_text(encoding="utf-8") for name in names for folder in folders if (folder / name).exists()]


def ours(words: Sequence[str], sources: Sequence[Path], headers: Sequence[Path]) -> list[str]:
    """What to link: object files of the repository's sources, and the others, which a test wrote, as they are."""
    keeps = in_a_run()
    return [str(compiled(words, source, headers) if keeps and source.is_relative_to(ROOT) else source) for source in sources]
