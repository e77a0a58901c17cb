"""``python -m haotuner.pack verify DIR``: verification in the base install, where the haotuner command is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from haotuner.pack.verify import verify


def main(arguments: list[str]) -> int:
    """Exit code 0 when sound, 5 when not, 2 on wrong usage."""
    plain = [a for a in arguments if a != "--json"]
    if len(plain) != 2 or plain[0] != "verify":
        print("usage: python -m haotuner.pack verify DIR [--json]", file=sys.stderr)
        return 2
    problems = verify(Path(plain[1]))
    if "--json" in arguments:
        print(json.dumps({"ok": not problems, "problems": problems}))
    else:
        for problem in problems:
            print(problem, file=sys.stderr)
        print(f"{plain[1]}: {'verified' if not problems else f'{len(problems)} problems'}")
    return 0 if not problems else 5


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
