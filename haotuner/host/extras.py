"""Optional packages: what is said where one is missing, and how to get it. Imports errors alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from haotuner.errors import PackageMissing

TUNING = ("tvm", "lightgbm", "pandas", "sklearn", "scipy")
SERVING = ("starlette", "uvicorn", "grpc", "google.protobuf", "prometheus_client")
COMMAND_LINE = ("typer", "rich")


def how_to_get(extra: str) -> str:
    """The command for an extra. It names the source tree, for haotuner is on no package index."""
    return f"pip install '.[{extra}]' in a clone of haotuner"


def missing(packages: tuple[str, ...]) -> list[str]:
    """Those that are not installed."""
    return [name for name in packages if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package of a module
        return False


def tuning_missing(what: str, packages: list[str]) -> str:
    """The words where the extra for tuning is not installed; ``what`` needs it."""
    return (
        f"{what} needs the tuning extra; not installed: {', '.join(packages)}.\n"
        f"Run: {how_to_get('tune')}\n"
        "This install serves packs from Python (haotuner.load); `python -m haotuner.pack verify DIR` checks one."
    )


def require_tuning() -> None:
    """PackageMissing where ``haotuner.tune`` could not run."""
    if absent := missing(TUNING):
        raise PackageMissing(tuning_missing("haotuner.tune", absent))


def require_metrics() -> None:
    """PackageMissing where ``haotuner.metrics`` could not run."""
    if missing(("prometheus_client",)):
        raise PackageMissing(
            f"haotuner.metrics needs prometheus-client, which is not installed. Run: {how_to_get('serve')}\n"
            "Without it pack.stats() and model.stats() count calls."
        )


def serving_missing(packages: list[str]) -> str:
    """The words where the extra for ``haotuner serve`` is not installed."""
    return f"haotuner serve needs the serving extra; not installed: {', '.join(packages)}.\nRun: {how_to_get('serve')}"


def require_serving() -> None:
    """PackageMissing where ``haotuner serve`` could not run."""
    if absent := missing(SERVING):
        raise PackageMissing(serving_missing(absent))


def require_idle_tuning() -> None:
    """PackageMissing where ``haotuner serve --tune-idle`` could not tune; serving alone needs less."""
    if absent := missing(TUNING):
        raise PackageMissing(tuning_missing("--tune-idle", absent))


def command_missing(arguments: Sequence[str]) -> str:
    """Words about the packages that the command of these arguments lacks, or nothing. ``serve`` needs no tuner."""
    verb = next((word for word in arguments if not word.startswith("-")), "")
    if verb == "serve":
        absent = missing((*COMMAND_LINE, *SERVING))
        return serving_missing(absent) if absent else ""
    absent = missing((*COMMAND_LINE, *TUNING))
    return tuning_missing("the command line", absent) if absent else ""


def require_torch() -> None:
    """PackageMissing where there is no PyTorch."""
    if missing(("torch",)):
        raise PackageMissing(
            "haotuner.torch needs PyTorch, which is not installed. Run: pip install torch\n"
            "Without it haotuner.load serves packs with numpy arrays."
        )
