"""``report.json`` and ``report.md``: all that a run has found so far, from the files of its tasks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from haotuner.bundle.correctness import read
from haotuner.bundle.state import State
from haotuner.files import written_aside

Json = dict[str, Any]


def write(out: Path, state: State, inventory: Json) -> None:
    """Write both into the folder of the results, whole or not at all."""
    found = gather(out, state, inventory)
    for name, text in (("report.json", json.dumps(found, indent=1)), ("report.md", _markdown(found))):
        with written_aside(out / name) as aside:
            aside.write_text(text)


def gather(out: Path, state: State, inventory: Json) -> Json:
    """Everything in one document."""
    return {
        "tasks": {key: {"status": e.status, "seconds": e.seconds, "said": e.said} for key, e in state.items()},
        "inventory": inventory,
        "contract": read(out / "contract.jsonl"),
        "correctness": read(out / "correctness.jsonl"),
        "tuned": {path.parent.name: _tuned(path) for path in sorted(out.glob("packs/*/manifest.json"))},
        "served": [one for path in sorted(out.glob("serve/*.jsonl")) for one in read(path)],
        "race": {path.stem: _race(path) for path in sorted(out.glob("race/*.json"))},
        "sanitized": {path.stem: path.read_text(errors="replace")[-800:] for path in sorted(out.glob("sanitize/*.txt"))},
    }


def _tuned(path: Path) -> Json:
    document = json.loads(path.read_text())
    ops = [{key: op.get(key) for key in ("name", "measured", "regret", "kernels")} for op in document.get("ops", [])]
    return {"device": document["device"]["id"], "tuning": document.get("tuning", {}), "ops": ops}


def _race(path: Path) -> Json:
    document = json.loads(path.read_text())
    return {key: document[key] for key in ("rows", "groups", "missing_why", "versions", "watched", "seconds")}


def _markdown(found: Json) -> str:
    device = found["inventory"].get("device", {})
    lines = [
        f"# First run on {device.get('name', 'an unknown device')}",
        "",
        "| stage | tasks | not done |",
        "|---|---|---|",
    ]
    stages: dict[str, list[tuple[str, Json]]] = defaultdict(list)
    for key, task in found["tasks"].items():
        stages[key.partition("/")[0]].append((key.partition("/")[2], task))
    for stage, tasks in stages.items():
        counts = Counter(task["status"] for _, task in tasks)
        left = [f"{name}: {_short(task['said']) or 'broken off'}" for name, task in tasks if task["status"] != "done"]
        lines.append(f"| {stage} | {', '.join(f'{n} {s}' for s, n in counts.items())} | {'; '.join(left)} |")
    lines += ["", *_contract(found["contract"]), "", *_correctness(found["correctness"]), "", *_tuning(found["tuned"])]
    return "\n".join([*lines, "", *_served(found["served"]), "", *_races(found["race"])]) + "\n"


def _contract(answers: list[Json]) -> list[str]:
    wrong = [one for one in answers if one["failed"]]
    lines = ["## The driver", "", f"{len(answers) - len(wrong)} of {len(answers)} behaviours are as the manual says."]
    return [*lines, *(f"- `{one['name']}`: {_short(one['failed'])}" for one in wrong)]


def _correctness(answers: list[Json]) -> list[str]:
    lines = ["## Correctness", "", "| family | right | wrong |", "|---|---|---|"]
    families: dict[str, Counter[bool]] = defaultdict(Counter)
    for one in answers:
        families[one["family"]]["failed" in one] += 1
    lines += [f"| {family} | {count[False]} | {count[True]} |" for family, count in sorted(families.items())]
    wrong = [one for one in answers if "failed" in one]
    return [*lines, *(f"- `{one['kernel']}`: {one['failed']['reason']}, {_short(one['failed']['detail'])}" for one in wrong)]


def _tuning(packs: Json) -> list[str]:
    lines = ["## Tuning", "", "| pack | seconds | kernels | measured |", "|---|---|---|---|"]
    for name, pack in packs.items():
        for op in pack["ops"]:
            seconds = pack["tuning"].get("seconds")
            lines.append(f"| {name} | {seconds} | {len(op['kernels'] or ())} | {op['measured']} |")
    return lines


def _served(answers: list[Json]) -> list[str]:
    lines = ["## Serving", "", "| pack | right | left out | wrong |", "|---|---|---|---|"]
    packs: dict[str, Counter[str]] = defaultdict(Counter)
    for one in answers:
        packs[one["pack"]]["wrong" if one["failed"] else "left out" if "left_out" in one else "right"] += 1
    lines += [f"| {pack} | {count['right']} | {count['left out']} | {count['wrong']} |" for pack, count in packs.items()]
    lines += [f"- `{one['pack']}`, {one['check']}: {_short(one['failed'])}" for one in answers if one["failed"]]
    return lines


def _races(races: Json) -> list[str]:
    lines = ["## Race", "", "Peer's time over ours, geometric means; above 1 ours is faster.", ""]
    lines += ["| pack | weights | rows | best peer | each |", "|---|---|---|---|---|"]
    for name, race in races.items():
        for group in race["groups"]:
            each = ", ".join(f"{peer} {value:.2f}x" for peer, value in group["geomean_vs"].items())
            best = group["geomean_vs_best"]
            told = "-" if best is None else f"{best:.2f}x"
            lines.append(f"| {name} | {group['weights']} | {group['rows']} | {told} | {each} |")
    missing = {peer: why for race in races.values() for peer, why in race["missing_why"].items()}
    lines += [f"- missing: {peer} ({_short(why)})" for peer, why in missing.items()]
    for name, race in races.items():
        peers = list(dict.fromkeys(peer for row in race["rows"] for peer in row["peers_us"]))
        lines += [
            "",
            f"### {name}",
            "",
            f"| m | weights | ours us | {' | '.join(peers)} | plan |",
            "|---" * (len(peers) + 4) + "|",
        ]
        for row in race["rows"]:
            times = [row["ours_us"], *(row["peers_us"].get(peer) for peer in peers)]
            cells = ["-" if us is None else f"{us:.2f}" for us in times]
            note = " contended" if row["contended"] else ""
            lines.append(f"| {row['shape']['m']} | {row['weights']}{note} | {' | '.join(cells)} | {row['composition']} |")
    return lines


def _short(text: str) -> str:
    """The last line of a text, fit for a table."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].replace("|", "/")[:200] if lines else ""
