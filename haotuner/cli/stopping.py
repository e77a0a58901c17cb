"""Signal handling of `haotuner tune`, and the exit code that says whether signals left a pack."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer

from haotuner.cli.output import tell
from haotuner.cli.progress import Watcher
from haotuner.pack.folder import MANIFEST

STOPPED, NOTHING_PUBLISHED = 3, 6  # exit codes: README, *Exit codes*
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or another signal. After a plain KeyboardInterrupt in ``exec`` Python would end by SIGINT, not by our code."""


class Stopping:
    """The first signal asks the tuner to finish, the second stops it where it is; records are safe either way.

    Before the first op is begun there is nothing to write a pack from, and the first one stops it, too; so it does in the
    race that closes a run, when the pack lies there. Children have sessions of their own and see none of these signals.
    """

    def __init__(self, out: Path) -> None:
        self._out, self._before = out, _identity(out)
        self.watcher: Watcher | None = None  # of the run, once there is one
        self.racing = self.requested = False

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Heed signals inside; typer.Exit with the code where one ended the run."""
        # SIGHUP that was ignored before we began is nohup's: the run is to outlive its terminal.
        heeded = [item for item in SIGNALS if item != signal.SIGHUP or signal.getsignal(item) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._heed) for number in heeded}
        try:
            yield
        except KeyboardInterrupt:
            raise typer.Exit(self._ended()) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heed(self, number: int, frame: FrameType | None) -> None:
        watcher = self.watcher
        if watcher is None or watcher.stop or self.racing or not watcher.begun:
            self.requested = True
            raise Interrupted
        self.requested = watcher.stop = True
        tell("\nstopping: writing a pack from what is measured; once more to stop at once")

    def _ended(self) -> int:
        if _identity(self._out) != self._before:
            tell(f"haotuner: stopped; the last pack of this run lies in {self._out}")
            return STOPPED
        earlier = " (what lies there is of an earlier run)" if self._before is not None else ""
        tell(f"haotuner: stopped before there was a pack in {self._out}{earlier}; what was measured is kept for --resume")
        return NOTHING_PUBLISHED


def _identity(out: Path) -> tuple[int, int, int] | None:
    """Identity of the manifest that lies there; None for none."""
    try:
        manifest = (out / MANIFEST).stat()
    except OSError:
        return None
    return manifest.st_dev, manifest.st_ino, manifest.st_mtime_ns
