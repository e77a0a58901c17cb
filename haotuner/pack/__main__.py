"""``python -m haotuner.pack verify DIR``, ``merge DIR DIR --out DIR``: the base install has no other command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from haotuner.errors import HaotunerError
from haotuner.pack.merge import merge
from haotuner.verify.pack_check import LARGEST_FLOPS, not_verified, verify


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 when sound or merged, 2 on wrong usage, 5 when a pack is damaged, otherwise that of the error."""
    reader = argparse.ArgumentParser(prog="python -m haotuner.pack", description="Check packs and put packs together.")
    verbs = reader.add_subparsers(dest="verb", required=True)
    verify_parser = verbs.add_parser("verify", help="files, CPU, and numbers against float64")
    verify_parser.add_argument("pack", type=Path, metavar="DIR")
    verify_parser.add_argument("--json", action="store_true")
    verify_parser.add_argument(
        "--most-flops", type=float, help=f"of one check [default: {LARGEST_FLOPS:g}, shared by many ops]"
    )
    more = verbs.add_parser("merge", help="one pack from packs tuned for different instruction sets")
    more.add_argument("packs", type=Path, nargs="+", metavar="DIR")
    more.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = reader.parse_args(arguments)
    if options.verb == "verify":
        return _verify(options.pack, options.json, options.most_flops)
    try:
        merge(options.packs, options.out)
    except HaotunerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{options.out}: {len(options.packs)} levels, each served where it is the widest that the CPU has")
    return 0


def _verify(pack: Path, as_json: bool, most_flops: float | None) -> int:
    problems = verify(pack, most_flops=most_flops)
    if as_json:
        print(json.dumps({"ok": not problems, "problems": problems}))
    else:
        for problem in problems:
            print(problem, file=sys.stderr)
        for why in [] if problems else not_verified(pack):
            print(f"{pack}: {why}", file=sys.stderr)
        print(f"{pack}: {'verified' if not problems else f'{len(problems)} problem' + 's' * (len(problems) > 1)}")
    return 0 if not problems else 5


if __name__ == "__main__":
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # tvm_ffi imports it where it is: 1.5 s for nothing
    sys.exit(main(sys.argv[1:]))
