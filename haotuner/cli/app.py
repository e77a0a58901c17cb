"""The verbs of the haotuner command, and what their errors become."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from haotuner import __version__
from haotuner.cli.bench import bench
from haotuner.cli.candidates import candidates
from haotuner.cli.devices import devices
from haotuner.cli.doctor import doctor
from haotuner.cli.explain import explain
from haotuner.cli.inspect import inspect
from haotuner.cli.output import OutputLost, ReaderLeft, give_up_stdout, say, tell, writing
from haotuner.cli.records import records_app
from haotuner.cli.transfer import transfer_app
from haotuner.cli.tune import tune
from haotuner.cli.verify import verify
from haotuner.errors import HaotunerError

app = typer.Typer(
    name="haotuner",
    help="Tune an operator once for a whole range of shapes on a device; serve it from a pack.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for verb in (doctor, devices, candidates, tune, bench, inspect, explain, verify):
    app.command()(verb)
app.add_typer(records_app, name="records")
app.add_typer(transfer_app, name="transfer")


# What typer raises for wrong usage; it names no public class, and whether it stands on click depends on its version.
_INTERRUPTED = 130  # what typer makes of Ctrl-C where a verb does not handle it: some versions return it, some raise it
_USAGE: type[Exception] = typer.BadParameter.__mro__[1]


def _version(wanted: bool) -> None:
    if wanted:
        say(f"haotuner {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Tune an operator once for a whole range of shapes on a device; serve it from a pack."""


def run(arguments: Sequence[str]) -> int:
    """Exit code of one command line: 0 ok, 1 failure, 2 usage, 3 stopped, 4 environment, 5 verification failed."""
    try:
        code = app(list(arguments), standalone_mode=False)
        with writing():
            sys.stdout.flush()
        return _stopped() if code == _INTERRUPTED else int(code or 0)
    except ReaderLeft:
        give_up_stdout()
        return 0
    except HaotunerError as error:
        if isinstance(error, OutputLost):
            give_up_stdout()
        tell(f"haotuner: {error}")
        return error.exit_code
    except OSError as error:  # a full disk, a folder that is gone: what no verb has a better word for
        where = f": {error.filename}" if error.filename is not None else ""
        tell(f"haotuner: {error.strerror or error}{where}; look at free space, permissions and TMPDIR")
        return 4
    except _USAGE as error:
        error.show()  # type: ignore[attr-defined]
        return 2
    except typer.Exit as error:
        return _stopped() if error.exit_code == _INTERRUPTED else int(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _stopped()


def _stopped() -> int:
    """Exit code of a verb that Ctrl-C, or a second signal to `tune`, ended."""
    tell("haotuner: stopped")
    return 3
