"""The verbs of the haotuner command, and what their errors become."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from haotuner import __version__
from haotuner.cli.options import with_device_names, with_new_names
from haotuner.cli.output import OutputLost, ReaderLeft, give_up_stdout, say, tell, writing
from haotuner.errors import HaotunerError

# In the order of `haotuner --help`. A verb is the function of its name in the file of its name; a group is its file's typer.
VERBS = (
    "quickstart",
    "doctor",
    "devices",
    "candidates",
    "derive",
    "workload",
    "tune",
    "bench",
    "inspect",
    "explain",
    "report",
    "watch",
    "serve",
    "verify",
)
GROUPS = ("records", "export", "transfer", "fleet")


# What typer raises for wrong usage; it names no public class, and whether it stands on click depends on its version.
STOPPED, NOTHING_PUBLISHED = 3, 6
EXIT_CODES = (
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 stopped or not every op measured (a valid pack of this run lies at --out), "
    "4 environment, 5 verification failed, 6 stopped before there was a pack."
)
_INTERRUPTED = 130  # what typer makes of Ctrl-C where a verb does not handle it: some versions return it, some raise it
_USAGE: type[Exception] = typer.BadParameter.__mro__[1]


def _version(required: bool) -> None:
    if required:
        say(f"haotuner {__version__}")
        raise typer.Exit()


def _cmake_folder(required: bool) -> None:
    if required:
        from haotuner.runtime.__main__ import CLIB

        say(str(CLIB))
        raise typer.Exit()


def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    cmakedir: Annotated[
        bool,
        typer.Option("--cmakedir", callback=_cmake_folder, is_eager=True, help="Print the folder of the CMake package."),
    ] = False,
) -> None:
    """Tune an operator once for a whole range of shapes on a device; serve it from a pack."""


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The command with the verb that is asked for, or with all: a verb's imports take up to a second, so only it waits."""
    app = typer.Typer(
        name="haotuner",
        help="Tune an operator once for a whole range of shapes on a device; serve it from a pack.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    known = (*VERBS, *GROUPS)
    requested = tuple(arguments[:1]) or _completed(os.environ)
    for name in requested if set(requested) & set(known) else known:
        module = import_module(f"haotuner.cli.{name}")
        if name in GROUPS:
            group = getattr(module, f"{name}_app")
            for command in group.registered_commands:
                command.short_help = command.short_help or _summary(command.callback)
            app.add_typer(group, name=name, short_help=group.info.help)
        else:
            verb = getattr(module, name)
            app.command(epilog=EXIT_CODES, short_help=_summary(verb))(verb)
    return app


def _completed(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The verb of a line that a shell completes, in the words that typer's scripts pass."""
    words = (environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS") or "").split()
    return tuple(words[1:2]) if "_HAOTUNER_COMPLETE" in environment else ()


def _summary(verb: object) -> str | None:
    """The first paragraph of a verb's docstring; without it, lists of commands are cut after 45 characters."""
    text = inspect.getdoc(verb)
    return None if text is None else " ".join(text.partition("\n\n")[0].split())


def run(arguments: Sequence[str], make_app: Callable[[Sequence[str]], typer.Typer] = app_for) -> int:
    """Exit code of one command line, see ``EXIT_CODES``."""
    try:
        arguments = with_device_names(with_new_names(arguments))
        code = make_app(arguments)(arguments, standalone_mode=False, prog_name="haotuner")
        with writing():
            sys.stdout.flush()
        return _stopped(arguments) if code == _INTERRUPTED else int(code or 0)
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
    except MemoryError as error:
        tell(f"haotuner: more memory was asked for than there is: {error or 'none was left'}; ask for smaller sizes")
        return 4
    except _USAGE as error:
        error.show()  # type: ignore[attr-defined]
        return 2
    except typer.Exit as error:
        return _stopped(arguments) if error.exit_code == _INTERRUPTED else int(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _stopped(arguments)


def _stopped(arguments: Sequence[str]) -> int:
    """Exit code of a verb that Ctrl-C ended. `tune` that began says itself whether it left a pack (cli/stopping.py)."""
    tell("haotuner: stopped")
    return NOTHING_PUBLISHED if "tune" in arguments[:1] else STOPPED
