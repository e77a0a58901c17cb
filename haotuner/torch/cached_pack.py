"""Packs of models that were tuned where they are served: in the cache folder, by ops, sizes, device and way of tuning.

Tuning runs in a process of its own, so that the server has neither TVM nor its memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import haotuner
from haotuner.errors import EnvironmentMissing, HaotunerError, PackInvalid, UsageError
from haotuner.host.cache_folder import cache_folder
from haotuner.host.processor import cpu_name
from haotuner.isolate.answers import TimedOut
from haotuner.isolate.group import run
from haotuner.pack.folder import MANIFEST
from haotuner.pack.manifest import PACK_SCHEMA, read_manifest
from haotuner.spec.shape import Shape

ZERO = "zero"
PACKS = "torch"  # folder of these packs in the cache folder
TUNED_CODES = (0, 3)  # of `haotuner tune`: 3 says that some op was not measured, as of predictions none is
SLACK_S = 600.0  # beside the time to measure, for predictions, compilation and checks on a busy machine
WAIT_S = 0.2  # between two looks at a lock that another process has
_TIME = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(s|m|h)")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}

Traces = Mapping[str, Sequence[Shape]]  # op spec -> shapes that the pack is tuned for


def tuning_s(tune: object) -> float | None:
    """Seconds to measure of the option ``tune``: 0 of ``"zero"``, None where nothing is tuned. UsageError for another."""
    if tune is None:
        return None
    if tune == ZERO:
        return 0.0
    match = _TIME.fullmatch(tune.strip()) if isinstance(tune, str) else None
    if match is None or not float(match[1]):
        raise UsageError(
            f'tune={tune!r}: write "zero" for predictions, a time to measure such as "15s", or None for neither'
        )
    return float(match[1]) * _UNITS_S[match[2]]


def pack_path(traces: Traces, threads: int, seconds: float, environment: Mapping[str, str]) -> Path:
    """Folder of the pack for these ops and sizes on this device. EnvironmentMissing for a user without a cache folder."""
    folder = cache_folder(environment)
    if folder is None:
        raise EnvironmentMissing("there is no home folder for packs: set XDG_CACHE_HOME to an absolute path, or give pack=")
    rows = sorted((spec, sorted(str(shape) for shape in shapes)) for spec, shapes in traces.items())
    about = [haotuner.__version__, PACK_SCHEMA, cpu_name(), threads, seconds, rows]
    return folder / PACKS / hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def tuned_pack(
    traces: Traces,
    threads: int,
    seconds: float,
    environment: Mapping[str, str],
    watch: Callable[[str], None],
) -> Path:
    """The pack in the cache folder, tuned now where there is none. Processes that need the same pack wait for the first.

    Args:
        traces: shapes by op spec.
        threads: the thread count of the plans.
        seconds: time to measure; 0: predictions alone.
        environment: of the tuning process.
        watch: gets a line before a pack is tuned.

    Raises:
        EnvironmentMissing: no cache folder, or one that cannot be written to.
        HaotunerError: tuning failed; the message ends with its last words.
    """
    path = pack_path(traces, threads, seconds, environment)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock"), seconds + SLACK_S):
            if not _is_sound(path):
                how = "from predictions" if not seconds else f"for {seconds:g} s"
                watch(f"tuning {len(traces)} ops {how}, in a process of its own; the pack: {path}")
                _tune(path, traces, threads, seconds, environment)
    except OSError as error:
        raise EnvironmentMissing(
            f"the cache folder {path.parent} cannot be used ({error.strerror or error}); set XDG_CACHE_HOME to a "
            "folder that can be written to, or give pack="
        ) from error
    return path


def _is_sound(path: Path) -> bool:
    if not (path / MANIFEST).exists():
        return False
    try:
        read_manifest(path)
    except (PackInvalid, OSError):
        return False  # tuned anew: `haotuner tune` replaces what it wrote, be it damaged
    return True


@contextmanager
def _locked(path: Path, limit_s: float) -> Iterator[None]:
    """A file lock, which the kernel releases however its process ends. TimeoutError after ``limit_s``."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        end = time.monotonic() + limit_s
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > end:
                raise TimeoutError(0, f"another process has held {path} for {limit_s:.0f} s")
            time.sleep(WAIT_S)
        yield
    finally:
        os.close(descriptor)


def _tune(path: Path, traces: Traces, threads: int, seconds: float, environment: Mapping[str, str]) -> None:
    trace = path.with_suffix(".jsonl")
    lines = [json.dumps({"op": spec, **shape.as_dict(), "weight": 1}) for spec, shapes in traces.items() for shape in shapes]
    trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
    how = ["--zero-measure"] if not seconds else ["--budget", f"{seconds:g}s"]
    words = ["tune", "--shapes", str(trace), "--threads", str(threads), "--out", str(path), "--peers", "none", "--quiet"]
    source = str(Path(haotuner.__file__).parents[1])
    search = [source, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    command = [sys.executable, "-P", "-m", "haotuner", *words, *how]
    try:
        ended = run(command, seconds + SLACK_S, {**environment, "PYTHONPATH": os.pathsep.join(search)})
    except TimedOut as error:
        raise HaotunerError(f"tuning the model's layers took too long: {error}") from error
    if ended.code not in TUNED_CODES or not (path / MANIFEST).exists():
        last = [line for line in ended.errors.splitlines() if line.strip()][-1:] or [f"exit code {ended.code}"]
        raise HaotunerError(f"the model's layers could not be tuned: {last[0]}")
