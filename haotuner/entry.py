"""The haotuner command: says what to install where an extra is missing, else hands over to cli/app.py."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from haotuner.host.extras import command_missing


class WithoutTorch(Loader):
    """First of ``sys.meta_path``: torch is found where it is installed, but ``import torch`` fails.

    tvm-ffi imports it where it is, 1 to 1.5 s of every command, to exchange tensors; a command line has none. Processes that
    need it (peers of `haotuner bench`) are started anew and have their own imports.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """None for all but an installed torch."""
        result = PathFinder.find_spec(name, path, target) if name == "torch" else None
        return None if result is None else ModuleSpec(name, self, origin=result.origin)

    def exec_module(self, module: ModuleType) -> None:
        """ModuleNotFoundError, which whoever can do without it expects."""
        raise ModuleNotFoundError("haotuner's command line does without torch", name=module.__name__)


class LightgbmAlone(Loader):
    """In ``sys.meta_path``: lightgbm comes up as where scikit-learn is not installed, without its classes for it.

    We use its trees alone, and scikit-learn takes four times as long to import: a second of every command that ranks.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """None for all but the module of lightgbm that looks for other packages."""
        result = PathFinder.find_spec(name, path, target) if name == "lightgbm.compat" else None
        if result is not None and result.loader is not None:
            self._loader, result.loader = result.loader, self
        return result

    def exec_module(self, module: ModuleType) -> None:
        """Run the module while ``import sklearn`` fails."""
        others = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "sklearn"}
        for name in others:
            del sys.modules[name]
        sys.modules["sklearn"] = None  # type: ignore[assignment]
        try:
            self._loader.exec_module(module)
        finally:
            del sys.modules["sklearn"]
            sys.modules.update(others)


def main() -> None:
    """Run the command line; never returns."""
    if why := command_missing(sys.argv[1:]):
        print(f"haotuner: {why}", file=sys.stderr)
        sys.exit(4)
    without = [] if any(word.endswith(".pt2") for word in sys.argv) else [WithoutTorch()]  # torch alone reads its programs
    sys.meta_path[:0] = [*without, LightgbmAlone()]
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # until there is something to end in order, Ctrl-C ends the process
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from haotuner.cli.app import run
    from haotuner.cli.output import open_streams

    signal.signal(signal.SIGINT, handler)
    open_streams()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
