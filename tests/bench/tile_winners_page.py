"""``python -m tests.bench.tile_winners_page --data FILE [--out PAGE]``: the page on known winners of vLLM.

``FILE``: JSON Lines of vLLM's tile tables, or a folder of its files.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.bench.markdown import markdown_table
from tests.bench.tile_winners import (
    FIRST,
    Candidates,
    Standing,
    Unranked,
    candidates_of,
    first_shares,
    refusals_by_law,
    standings,
    tile_tables,
)

BAR = 0.8  # of winners within the first candidates
HEAD = """# Known winners of vLLM among our candidates

Made by `python -m tests.bench.tile_winners_page --data FILE`. A winner is a tile that vLLM ships for a device, a problem and
a number of tokens. Its counterpart is the nearest candidate in tile, then in warps; the depth of the ring is not compared.
*First 5 %*: share of winners whose counterpart is among the first 5 % of all candidates, refused ones included. Candidates
expected within 0.1 % of each other are equal. *Learned*: ranked by the expectation and the density of winners on other
devices; *architecture out*: on other architectures alone. *Time*: expected for the counterpart over the least of all
candidates, median. Products of fp8 are ranked among kernels of signed bytes."""
COLUMNS = ["", "winners", "analysis", "learned, device out", "learned, architecture out", "median rank", "time"]


def rows_of(label: Callable[[Standing], str], items: Sequence[Standing]) -> Iterator[list[str]]:
    """A line for each group of winners."""
    groups: dict[str, list[Standing]] = {}
    for item in items:
        groups.setdefault(label(item), []).append(item)
    for name, group in groups.items():
        shares = first_shares(group)
        rank, lost = np.median([item.learned for item in group]), np.median([item.lost for item in group])
        yield [name, str(len(group)), *(f"{share:.3f}" for share in shares), f"{100 * rank:.1f} %", f"{lost:.2f}x"]


def page(items: Sequence[Standing], unranked: Sequence[Unranked], others: Sequence[str]) -> str:
    """The page: by device, by tokens, what selection refuses, and what is not ranked."""
    ordered = sorted(items, key=lambda item: (item.table.kind, item.device_id, item.table.dtype, item.tokens))
    by_device = rows_of(lambda item: f"{item.table.kind} {item.table.dtype or 'bf16'}, {item.device_id}", ordered)
    by_tokens = rows_of(lambda item: f"{item.table.kind}, {_range(item.tokens)} tokens", ordered)
    lines = [HEAD, "", *markdown_table(COLUMNS, [*rows_of(lambda _: "**all**", items), *by_device])]
    lines += ["## By tokens", "", *markdown_table(COLUMNS, sorted(by_tokens, key=_order))]
    laws = refusals_by_law(items)
    refused = [[law, str(count), f"{count / len(items):.3f}", _example(law, items)] for law, count in laws.most_common()]
    lines += ["## What selection refuses", ""]
    lines += [f"Of {len(items)} winners, {sum(laws.values())} have no counterpart that selection lets in.", ""]
    lines += markdown_table(["law", "winners", "share", "for example"], refused) if refused else []
    reasons = Counter(item.why for item in unranked) + Counter(others)
    lines += ["## Not ranked", "", *markdown_table(["tables", "why"], [[str(n), why] for why, n in reasons.most_common()])]
    share = first_shares(items)[1]
    verdict = "met" if share >= BAR else "missed"
    lines += [
        f"The bar, {BAR:.0%} of winners within the first {FIRST:.0%} with their device left out, is {verdict}: {share:.1%}."
    ]
    return "\n".join(lines) + "\n"


def _range(tokens: int) -> str:
    low = next(low for low in (1024, 256, 64, 16, 1) if tokens >= low)
    return {1: "1 to 15", 16: "16 to 63", 64: "64 to 255", 256: "256 to 1,023", 1024: "1,024 and more"}[low]


def _order(row: Sequence[str]) -> tuple[str, int]:
    kind, _, tokens = row[0].partition(", ")
    return kind, int(tokens.split()[0].replace(",", ""))


def _example(law: str, items: Sequence[Standing]) -> str:
    item = next(item for item in items if item.refused == law)
    best = item.table.best_by_m[item.tokens]
    tile = "x".join(str(best[f"BLOCK_SIZE_{axis}"]) for axis in "MNK")
    return f"{tile}, {best['num_warps']} warps, {item.tokens} tokens on {item.device_id}"


def main() -> None:
    """Rank, write the page, print its verdict."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--data", type=Path, required=True)
    words.add_argument("--out", type=Path)
    options = words.parse_args()
    begun = time.monotonic()
    tables, others = tile_tables(options.data)
    every = [candidates_of(table) for table in tables]
    ranked = [item for item in every if isinstance(item, Candidates)]
    items = standings(ranked, print)
    text = page(items, [item for item in every if isinstance(item, Unranked)], others)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
        print(f"{options.out}: {len(items)} winners, {time.monotonic() - begun:.0f} s")
    print(text.splitlines()[-1] if options.out else text)


if __name__ == "__main__":
    main()
