"""The run on a GPU machine: inventory, then slices of work that resume where the last one stopped.

    python gpu_run.py --out results            # run it again until it says that everything is done

Exit codes: 0 everything is done, 3 stopped with work left (run it again), 4 this machine cannot run the bundle, 1 the GPU
or a worker was lost. The results are four files in one folder: ``journal.jsonl`` (every answer, what a later slice resumes
from), ``records.jsonl`` (for ``haotuner records import --format jsonl``), ``inventory.json``, ``report.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from haotuner.bundle import inventory, manifest, peers, policy, report, sanitizing, suites, trials
from haotuner.bundle.journal import Journal
from haotuner.bundle.manifest import Bundle
from haotuner.bundle.outcome import Provenance, known, note, record, right
from haotuner.bundle.overseer import Answer, Overseer
from haotuner.bundle.suites import Suite
from haotuner.bundle.trials import CHECK, Known, Task
from haotuner.errors import EnvironmentMissing, HaotunerError
from haotuner.records.codec import encode, line

SLICE_SECONDS = 450.0  # under eight minutes with the report and a margin for the last task
STOPPED = 3
STAGES = ("check", "peaks", "peers", "time", "subsets", "sanitize")


class Session:
    """One slice: the bundle, the machine, and the files that answers go to."""

    def __init__(self, bundle: Bundle, out: Path, python_path: str, deadline: float, only: str = "") -> None:
        self.bundle = bundle
        self.out = out
        self.deadline = deadline
        self.python_path = python_path
        self.suite: Suite = suites.read(bundle.root)
        self.inventory = inventory.take(bundle, python_path)
        (out / "inventory.json").write_text(json.dumps(self.inventory, indent=1))
        complaint = inventory.complaint(self.inventory)
        self.journal = Journal(out / "journal.jsonl")
        if complaint:
            self._refuse(complaint)
            raise EnvironmentMissing(complaint)
        facts = self.inventory["device"]
        try:
            self.arch = bundle.arch_for(facts["major"], facts["minor"])
        except HaotunerError as error:
            self._refuse(str(error))
            raise
        self.entries = tuple(entry for entry in bundle.kernels[self.arch] if only in entry.kernel)
        self.by_name = {entry.kernel: entry for entry in self.entries}
        # Not the card's UUID: a run goes on on another card of the same kind. Which card it was stands in the journal.
        machine = {name: str(facts[name]) for name in ("name", "driver", "units", "memory_bytes", "clock_khz")}
        self.fingerprint = policy.fingerprint(f"{bundle.judge} {self.arch}", machine)
        codes = {entry.kernel: entry.code for entry in bundle.kernels[self.arch]}
        self.known: Known = known(self.journal, self.fingerprint, codes)
        self.records = Journal(out / "records.jsonl")
        self.origin = Provenance(
            device_id=bundle.device_id(facts["name"]), fingerprint=self.fingerprint, session=f"gpu-{int(time.time())}"
        )
        self.overseer = Overseer(root=bundle.root, arch=self.arch, patience_s=self.suite.patience_s)
        self.uuid = str(facts["uuid"])
        begun = {"slice": self.origin.session, "arch": self.arch, "uuid": self.uuid}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.journal.append({**begun, "visible": visible, "smi": inventory.clocks(self.uuid)})

    def _refuse(self, complaint: str) -> None:
        """Say why nothing can run here in the journal, the only file that is open yet."""
        self.journal.append({"complaint": complaint, "when": time.time()})
        self.journal.close()

    def stage(self, name: str) -> bool:
        """Go on with one stage; whether it is finished."""
        if name == "peers":
            return all([self._peer(peer) for peer in peers.PEERS])  # each gets its turn
        if name == "sanitize":
            return self._sanitize()
        planned: list[Task] = {
            "check": lambda: trials.checks(self.entries, self.suite, self.known),
            "peaks": lambda: trials.peaks(self.arch, self.known),
            "time": lambda: trials.times(self.entries, self.suite, self.known),
            "subsets": lambda: trials.subsets(self.entries, self.suite, int(self.inventory["device"]["units"]), self.known),
        }[name]()
        return self._work(planned, self.overseer.run(planned, self.deadline))

    def _work(self, planned: Sequence[Task], answers: Iterable[Answer]) -> bool:
        done = 0
        for answer in answers:
            done += 1
            self._keep(answer.task, dict(answer.fields))
            if done % 200 == 0:
                print(f"  {done} of {len(planned)}", flush=True)
        return done == len(planned)

    def _keep(self, task: Task, answer: dict[str, Any]) -> None:
        """Journal an answer; what was timed and what failed is a record of its kernel too."""
        note(self.known, task, answer)
        self.journal.append({"fingerprint": self.fingerprint, "task": json.loads(task.key()), "answer": answer})
        if task.kernel not in self.by_name:
            return  # a ceiling or a peer is no micro-kernel
        if "samples_us" in answer or "failed" in answer or (task.stage == CHECK and not right(answer)):
            kept = record(task, answer, self.by_name[task.kernel], self.origin)
            self.records.append_text(line(encode(kept)))

    def _peer(self, peer: str) -> bool:
        missing = [entry for entry in self.journal if entry.get("missing") == peer]
        if missing:
            return True
        wanted = peers.tasks(peer, self.suite, self.known.done)
        l2_bytes = int(self.inventory["device"]["l2_bytes"])
        done = 0
        for task, answer in peers.answers(peer, wanted, self.suite, l2_bytes, self.deadline):
            if "missing" in answer:
                self.journal.append({"missing": peer, "why": answer["missing"]})
                return True
            self._keep(task, dict(answer))
            done += 1
        return done == len(wanted)

    def _sanitize(self) -> bool:
        ours = [line for line in self.journal if line.get("fingerprint") == self.fingerprint and "tool" in line]
        codes = {entry.kernel: entry.code for entry in self.entries}
        done = {(line["kernel"], line["tool"]) for line in ours if line["code"] == codes.get(line["kernel"])}
        wanted = len(sanitizing.sample(self.entries)) * len(sanitizing.TOOLS) if sanitizing.available() else len(done)
        found = sanitizing.sanitize(self.entries, self.overseer.told, self.python_path, done=done, deadline=self.deadline)
        for finding in found:
            done.add((finding.kernel, finding.tool))
            code = codes[finding.kernel]
            self.journal.append({"fingerprint": self.fingerprint, "code": code, **finding.fields()})
        return len(done) >= wanted

    def close(self) -> None:
        """Write the report and bring the files to the disk."""
        self.journal.append({"slice_end": self.origin.session, "smi": inventory.clocks(self.uuid)})
        self.journal.close()
        self.records.close()
        report.write(self.out, self.bundle, self.arch, self.fingerprint)


def main(root: Path, python_path: str, arguments: Sequence[str]) -> int:
    """One slice; an exit code."""
    parser = argparse.ArgumentParser(prog="gpu_run.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the results; run again to resume")
    parser.add_argument("--slice-seconds", type=float, default=SLICE_SECONDS)
    parser.add_argument("--stages", default=",".join(STAGES), help=f"of {','.join(STAGES)}, in this order")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose name contains it")
    parser.add_argument("--device", type=int, default=0, help="which GPU, in CUDA's order")
    wanted = parser.parse_args(arguments)
    stages = [stage for stage in STAGES if stage in wanted.stages.split(",")]
    wanted.out.mkdir(parents=True, exist_ok=True)
    if wanted.device:  # every process started from here sees this GPU alone, as its device 0
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[wanted.device] if wanted.device < len(visible) else str(wanted.device)
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        bundle = manifest.read(root)
        deadline = time.monotonic() + wanted.slice_seconds
        session = Session(bundle, wanted.out, python_path, deadline, wanted.only)
    except HaotunerError as error:
        print(f"gpu_run: {error}", file=sys.stderr)
        return error.exit_code
    finished = True
    try:
        for stage in stages:
            print(f"{stage} ...", flush=True)
            stage_done = session.stage(stage)
            print(f"{stage}: {'done' if stage_done else 'stopped, more to do'}", flush=True)
            finished = finished and stage_done
    except KeyboardInterrupt:
        finished = False
        print("gpu_run: interrupted; run it again to go on", file=sys.stderr)
    except HaotunerError as error:
        print(f"gpu_run: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        session.close()
    print(f"report: {wanted.out / 'report.md'}")
    return 0 if finished else STOPPED


def _interrupted(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
