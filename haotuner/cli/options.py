"""Options of the command line: values that several verbs share, and options of before under their names of today."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from haotuner.cli.output import tell
from haotuner.errors import PackInvalid, UsageError

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; everything else goes to stderr.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only the result, and errors.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print more.")]
PackFolder = Annotated[Path, typer.Argument(metavar="PACK", help="The directory that `haotuner tune --out` wrote.")]


def peers_of(text: str) -> tuple[str, ...]:
    """Names of ``--peers``; none of ``none``. UsageError for a library that there is no peer of."""
    from haotuner.bench.field import HOST  # its imports take a second, which a server need not wait for

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if names == ("none",):
        return ()
    if not names or set(names) - HOST.peers.keys():
        odd = ", ".join(name for name in names if name not in HOST.peers)
        raise UsageError(f"--peers {text!r}: no peer {odd}; known are {', '.join(HOST.peers)}, or write none")
    return names


@contextlib.contextmanager
def facts_of(pack: Path) -> Iterator[None]:
    """PackInvalid for what haotuner never writes as a fact of a pack; only reading may happen inside the block."""
    try:
        yield
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise PackInvalid(
            f"{pack}: its manifest holds facts that haotuner does not write ({type(error).__name__}: {error}); "
            "tune again or restore the pack from where it came"
        ) from error


def seconds_of(text: str) -> float:
    """Seconds of ``60s``, ``5m``, ``1h`` or ``90``; UsageError otherwise."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(s|m|h|)", text.strip(), re.ASCII)
    if not match:
        raise UsageError(f"--budget {text!r}: write a time such as 60s, 5m or 1h")
    return float(match[1]) * UNITS_S[match[2]]


def threads_of(text: str) -> tuple[int, ...]:
    """Thread counts of ``1,2,all``; ``all`` is 0 here and means every core this process may use."""
    result = []
    for word in text.split(","):
        if word.strip() == "all":
            result.append(0)
        elif re.fullmatch(r"[0-9]{1,4}", word.strip(), re.ASCII) and int(word) > 0:
            result.append(int(word))
        else:
            raise UsageError(f"--threads {text!r}: write counts such as 1,2 or 1,all")
    return tuple(result)


# By verb: the old name and the new one. `--model` of tune was a cost model; everywhere else it names a model of the pack.
RENAMED = {
    "tune": {"--model": "--cost-model", "--weights": "--cache-state", "--against": "--peers"},
    "bench": {"--only": "--model", "--given": "--inputs", "--weights": "--cache-state", "--against": "--peers"},
    "explain": {"--only": "--model", "--given": "--inputs"},
}


_GPU = re.compile(r"gpu((?::[0-9]+)?(?:/[0-9]+)?)", re.IGNORECASE)


def with_device_names(arguments: Sequence[str]) -> list[str]:
    """A command line with ``--device gpu`` and ``gpu:1`` as ``cuda:0`` and ``cuda:1``, which other tools call so."""
    result = []
    for before, word in zip(["", *arguments], arguments, strict=False):
        name, equals, value = ("", "", word) if before == "--device" else word.partition("=")
        match = _GPU.fullmatch(value) if before == "--device" or (name == "--device" and equals) else None
        if match is not None:
            number = match[1] if match[1].startswith(":") else f":0{match[1]}"
            word = f"{name}{equals}cuda{number}"
        result.append(word)
    return result


def with_new_names(arguments: Sequence[str]) -> list[str]:
    """A command line with the options' names of today. A line on stderr for each old one."""
    renamed = RENAMED.get(arguments[0], {}) if arguments else {}
    result = []
    for word in arguments:
        name, equals, value = word.partition("=")
        if name in renamed:
            tell(f"{name} of haotuner {arguments[0]} is called {renamed[name]} now; the old name goes with the next release")
            word = f"{renamed[name]}{equals}{value}"
        result.append(word)
    return result
