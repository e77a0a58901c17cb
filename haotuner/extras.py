"""Optional packages: what is said where one is missing, and how to get it. Imports nothing but errors."""

from __future__ import annotations

from importlib.util import find_spec

from haotuner.errors import PackageMissing

TUNING = ("tvm", "lightgbm", "pandas", "sklearn", "scipy")
COMMAND_LINE = ("typer", "rich", *TUNING)


def how_to_get(extra: str) -> str:
    """The command for an extra. It names the source tree, for haotuner is on no package index."""
    return f"pip install '.[{extra}]' in a clone of haotuner"


def missing(packages: tuple[str, ...]) -> list[str]:
    """Those that are not installed."""
    return [name for name in packages if find_spec(name) is None]


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


def require_torch() -> None:
    """PackageMissing where there is no PyTorch."""
    if missing(("torch",)):
        raise PackageMissing(
            "haotuner.torch needs PyTorch, which is not installed. Run: pip install torch\n"
            "Without it haotuner.load serves packs with numpy arrays."
        )
