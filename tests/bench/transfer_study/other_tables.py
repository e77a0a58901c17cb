"""What a folder of public measurements holds beside Kernel Tuner's caches: solvers' times, winners without times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haotuner.cli.output import tell
from tests.bench.transfer_study import solvers_verb, winners_verb

if TYPE_CHECKING:  # LightGBM and pandas take a second to import
    from haotuner.records.clblast import Winners
    from haotuner.records.miopen import SolverTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Tables that are no records."""

    solvers: list[SolverTable]
    winners: Winners | None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.solvers or self.winners)

    def judged(self, problems: int, progress: Callable[[str], None]) -> dict[str, Any]:
        """Scores of both kinds, as one JSON document with a key for each kind that is there."""
        from tests.bench.transfer_study.winners.evaluate import evaluate_winners

        document: dict[str, Any] = {}
        if self.solvers:
            document["solvers"] = solvers_verb.judged(self.solvers, (), True, problems, 0, progress)
        if self.winners and len(self.winners.vendors()) > 1:
            document["winners"] = evaluate_winners(self.winners, tell=progress)
        return document


def others_in(folder: Path, *, quiet: bool, verbose: bool) -> Others:
    """The find databases of MIOpen and the first table of winners in a folder and those below it."""
    result = Others(
        solvers=solvers_verb.find_databases(folder, quiet=quiet, verbose=verbose),
        winners=winners_verb.winner_tables(folder, quiet=quiet, verbose=verbose),
    )
    if result.winners and len(result.winners.vendors()) < 2 and not quiet:
        tell("left out: winners of one vendor, where two are needed")
    return result


def sections(document: Mapping[str, Any], *, devices: bool) -> Iterator[str]:
    """Lines of Markdown; ``devices`` adds a row for each device whose winner is known."""
    if "solvers" in document:
        yield from solvers_verb.section(document["solvers"])
    if "winners" in document:
        yield from winners_verb.section(document["winners"], devices=devices)
