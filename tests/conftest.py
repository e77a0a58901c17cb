"""What every test may use: golden files, markers that skip, and the count of what was skipped."""

from __future__ import annotations

import functools
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from tests import kept, run_folder, skipped, tiers

GOLDEN = Path(__file__).parent / "golden"
# Files of a quarter of a minute of a core and more, the longest first.
LONG = (
    "runtime/test_cuda_serving.py",
    "runtime/test_cuda_model_faults.py",
    "cli/test_tune_cuda.py",
    "cli/test_bundle_run.py",
    "microkernels/test_cuda_numerics.py",
    "runtime/test_cuda_c.py",
    "runtime/test_convolution.py",
    "cli/test_bench.py",
    "microkernels/test_cpu_generated.py",
    "runtime/test_c_library.py",
    "racing/test_bench_race.py",
    "runtime/test_convolution_epilogue.py",
    "runtime/test_cuda_models.py",
    "runtime/test_chains_c.py",
    "search/test_tuning.py",
    "cli/test_toys.py",
    "search/test_tuning_started.py",
    "microkernels/test_typed_tiles.py",
    "cli/test_kill.py",
    "racing/test_bench_gpu.py",
    "runtime/test_cuda_beside.py",
    "backends/test_cuda_timing.py",
    "codegen/test_generate.py",
    "microkernels/test_cuda_seeded_bugs.py",
    "search/test_cells_race.py",
    "measure/test_measure_lab.py",
    "search/test_planning.py",
    "standin/test_standin.py",
    "codegen/test_moved.py",
    "microkernels/test_cpu_dense_results.py",
    "microkernels/test_cuda_banks.py",
    "runtime/test_generated_doors.py",
    "microkernels/test_typed_results.py",
    "microkernels/test_cuda_attention.py",
    "microkernels/test_cuda_build.py",
    "cli/test_tune.py",
    "cli/test_transfer_study.py",
    "cli/test_requests.py",
    "cli/test_pack_verbs.py",
    "cost/test_cost_cuda.py",
)
YOUNG = 50_000  # new objects before garbage is looked for
gc.disable()  # until all files are imported, which leaves next to none
settings.register_profile("no clock", deadline=None)  # a first example may import for a second, on a machine that others use
settings.load_profile("no clock")


def pytest_configure(config: pytest.Config) -> None:
    """What the tests' own processes inherit."""
    if part := config.getoption("--part"):
        if config.getoption("-m") != "slow":
            raise pytest.UsageError(f"--part {part} is of slow tests: add -m slow")
        try:
            tiers.slow_files_of(part)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
    # A shell's background job starts with Ctrl-C ignored, and so would its children: tests of Ctrl-C would hang.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Containers often forbid bytecode. Some hundred processes would compile all our sources again, 0.4 s each.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # OpenBLAS's threads spin as they wait for each other: with a test process a core, small products took ten times as long.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if run_folder.WORD not in os.environ:  # not in a worker, which has its parent's
        shared = os.environ[run_folder.WORD] = tempfile.mkdtemp(prefix="haotuner-tests-")
        config.stash[skipped.OUTERMOST] = True
        kept.forget()
        config.add_cleanup(lambda: shutil.rmtree(shared, ignore_errors=True))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the tests produce to tests/golden")
    parser.addoption("--skipped", action="store_true", help="run what the last run skipped, no other test")
    parser.addoption("--part", default="", metavar="K/N", help="with -m slow: a part of the files that have slow tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a test that is asked for are not imported."""
    if config.getoption("--skipped") and not skipped.may_hold(config, collection_path):
        return True
    return True if tiers.leaves_out(config.getoption("-m"), collection_path, config.getoption("--part")) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files of a tier are marked; long files come first, so that no process ends a run with one alone."""
    for item in items:
        if tiers.is_device(_inside(item.path)):
            item.add_marker("device")
        if item.get_closest_marker("slow") and _inside(item.path) not in tiers.slow_files_of():
            raise pytest.UsageError(f"{item.nodeid} is slow, and its file does not say mark.slow: no part would run it")
    if config.getoption("--skipped"):
        skipped.keep_asked(config, items)
    longest: tuple[str, ...] = LONG
    if config.getoption("--part"):
        seconds = tiers.seconds()
        longest = tuple(sorted(seconds, key=lambda name: -seconds[name]))
    ranks = {Path(name): rank for rank, name in enumerate(longest)}
    items.sort(key=lambda item: ranks.get(_inside(item.path), len(longest)))


@functools.cache
def _inside(path: Path) -> Path:
    return path.relative_to(Path(__file__).parent)


def pytest_collection_finish() -> None:
    """What lives as long as the run is not looked through again by every collection of garbage, and those are few."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("gpu: no CUDA device")
    for marker in item.iter_markers("isa"):
        missing = [name for name in marker.args if name not in cpu_flags()]
        if missing:
            pytest.skip(f"isa: this host has no {', '.join(missing)}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a kind of skip, so that a green run on a small machine does not pass for a full one."""
    counted = skips(terminalreporter)
    for kind in ("gpu", *sorted(counted.keys() - {"gpu"})):
        terminalreporter.write_line(f"skipped for {kind}: {counted.get(kind, 0)}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """After pytest's own last line, one that says how to run what was skipped for want of a package."""
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.config.stash.get(skipped.OUTERMOST, False):
        skipped.note(session.config, reporter.stats.get("skipped", []))
    if reporter is not None and not hasattr(session.config, "workerinput"):
        for words in includable(skips(reporter)):
            reporter.write_line(words)
    return result


def skips(reporter: pytest.TerminalReporter) -> Counter[str]:
    """How many tests, or files that were skipped whole, for each kind of reason: ``gpu``, ``torch``, ``isa`` …"""
    counted: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        counted[kind_of(reason)] += 1
    return counted


def kind_of(reason: str) -> str:
    """The first word of a skip's reason; for ``importorskip`` the package."""
    reason = re.sub(r"^Skipped: ", "", reason)
    missing = re.match(r"could not import '(\w+)", reason)
    return missing[1] if missing else reason.partition(":")[0]


def includable(counted: Mapping[str, int]) -> list[str]:
    """What to run to include the skips that a package would."""
    if not counted.get("torch"):
        return []
    return [
        f"NOT TESTED: the torch door (torch is not installed; skipped: {counted['torch']}). `make test TORCH=1` includes it."
    ]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``golden(text)`` compares with ``tests/golden/<floor>/<file>/<test>[.part].txt``; ``--update-golden`` writes it."""

    def compare(text: str, part: str = "") -> None:
        path = golden_path(request.node, part)
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if not path.exists():
            pytest.fail(f"no golden file {path}; look at the output, then run pytest --update-golden")
        assert text == path.read_text(encoding="utf-8"), f"differs from {path}; if meant, run pytest --update-golden"

    return compare


def golden_path(item: pytest.Item, part: str = "") -> Path:
    """Where the golden text of one test lies; parameters of the test are part of the name."""
    inside = item.path.relative_to(Path(__file__).parent).with_suffix("")
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", item.name).strip("-")
    return GOLDEN / inside / f"{name}{'.' + part if part else ''}.txt"


@functools.cache
def has_gpu() -> bool:
    """Whether the driver lists a CUDA device; asked without loading any library into the test process."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=False)
    return listed.returncode == 0 and "GPU" in listed.stdout


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Instruction sets of the first core as Linux names them (``avx2``, ``avx512f``)."""
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("flags"):
            return frozenset(text.partition(":")[2].split())
    return frozenset()
