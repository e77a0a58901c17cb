"""Options of before under their names of today, for one release."""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.cli.output import tell

# By verb: the old name and the new one. `--model` of tune was a cost model; everywhere else it names a model of the pack.
RENAMED = {
    "tune": {"--model": "--cost-model", "--weights": "--cache-state", "--against": "--peers"},
    "bench": {"--only": "--model", "--given": "--inputs", "--weights": "--cache-state", "--against": "--peers"},
    "explain": {"--only": "--model", "--given": "--inputs"},
}


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
