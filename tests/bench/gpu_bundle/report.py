"""``report.json`` and ``report.md``: all that a run has found so far, from the files of its tasks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from haotuner.host.files import written_aside
from tests.bench.gpu_bundle.correctness import read
from tests.bench.gpu_bundle.state import State

Json = dict[str, Any]


def write(out: Path, state: State, inventory: Json) -> None:
    """Write both into the folder of the results, whole or not at all."""
    result = gather(out, state, inventory)
    for name, text in (("report.json", json.dumps(result, indent=1)), ("report.md", _markdown(result))):
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
        "served": [line for path in sorted(out.glob("serve/*.jsonl")) for line in read(path)],
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


def _markdown(result: Json) -> str:
    device = result["inventory"].get("device", {})
    lines = [
        f"# First run on {device.get('name', 'an unknown device')}",
        "",
        "| stage | tasks | not done |",
        "|---|---|---|",
    ]
    stages: dict[str, list[tuple[str, Json]]] = defaultdict(list)
    for key, task in result["tasks"].items():
        stages[key.partition("/")[0]].append((key.partition("/")[2], task))
    for stage, tasks in stages.items():
        counts = Counter(task["status"] for _, task in tasks)
        left = [f"{name}: {_short(task['said']) or 'broken off'}" for name, task in tasks if task["status"] != "done"]
        lines.append(f"| {stage} | {', '.join(f'{n} {s}' for s, n in counts.items())} | {'; '.join(left)} |")
    lines += ["", *_contract(result["contract"]), "", *_correctness(result["correctness"]), "", *_tuning(result["tuned"])]
    return "\n".join([*lines, "", *_served(result["served"]), "", *_races(result["race"])]) + "\n"


def _contract(answers: list[Json]) -> list[str]:
    wrong = [answer for answer in answers if answer["failed"]]
    lines = ["## The driver", "", f"{len(answers) - len(wrong)} of {len(answers)} behaviours are as the manual says."]
    return [*lines, *(f"- `{item['name']}`: {_short(item['failed'])}" for item in wrong)]


def _correctness(answers: list[Json]) -> list[str]:
    lines = ["## Correctness", "", "| family | right | wrong |", "|---|---|---|"]
    families: dict[str, Counter[bool]] = defaultdict(Counter)
    for answer in answers:
        families[answer["family"]]["failed" in answer] += 1
    lines += [f"| {family} | {count[False]} | {count[True]} |" for family, count in sorted(families.items())]
    wrong = [answer for answer in answers if "failed" in answer]
    return [
        *lines,
        *(f"- `{item['kernel']}`: {item['failed']['reason']}, {_short(item['failed']['detail'])}" for item in wrong),
    ]


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
    for answer in answers:
        packs[answer["pack"]]["wrong" if answer["failed"] else "left out" if "left_out" in answer else "right"] += 1
    lines += [f"| {pack} | {count['right']} | {count['left out']} | {count['wrong']} |" for pack, count in packs.items()]
    lines += [
        f"- `{answer['pack']}`, {answer['check']}: {_short(answer['failed'])}" for answer in answers if answer["failed"]
    ]
    return lines


def _races(races: Json) -> list[str]:
    lines = ["## Race", "", "Peer's time over ours, geometric means; above 1 ours is faster.", ""]
    lines += ["| pack | weights | rows | best peer | each |", "|---|---|---|---|---|"]
    for name, race in races.items():
        for group in race["groups"]:
            each = ", ".join(f"{peer} {value:.2f}x" for peer, value in group["geomean_vs"].items())
            best = group["geomean_vs_best"]
            text = "-" if best is None else f"{best:.2f}x"
            lines.append(f"| {name} | {group['weights']} | {group['rows']} | {text} | {each} |")
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
