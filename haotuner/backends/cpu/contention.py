"""Core contention: threads that were given one physical core between them, which no counter of the system shows.

On a shared host a call of two threads takes 1.8 to 2 times as long in spells of tens of milliseconds, at times of seconds:
both run all the time, on processors of their own, nothing waits and nothing is stolen, but each computes half as much, as
two hyperthreads of one core do. One thread alone notices nothing. Of 7,800 trials of two threads 16 to 20 % fell into such
spells. So beside every sample of several threads the worker times multiply-adds on all at once (native/timing.c): these
take 1.0 times as long as on one alone where cores are not shared, and 1.6 times where they are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

CROWDED = 1.3  # the valley between 1.0 and 1.6: 1.2 % of the trials lay between 1.25 and 1.4
FIRST_S = 1.0  # of patience: a spell may be waited for at once
MOST_S = 2.0  # that may come together in quiet times: no trial waits longer, whatever becomes of a budget meanwhile
SHARE = 0.25  # of the time that trials of several threads take may be spent on having them again: so often was it needed
PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.1  # half of the spells are over after two trials
ENOUGH = 3  # samples for a median
Answer = Mapping[str, Sequence[float]]


def core_contention(answer: Answer) -> float:
    """Slowdown of multiply-adds on all threads at once over one alone, a factor; 1 where that was not looked at."""
    together, alone = answer.get("together_us"), answer["compute_us"]
    if not together or not any(together) or not any(alone):
        return 1.0
    return statistics.median(together) / statistics.median(alone)


def clean(answer: Answer, limit: float) -> Answer:
    """Only the samples before and after which a look was within the limit, if there are enough; else the same."""
    if len(answer.get("together_us", ())) < ENOUGH:
        return answer
    alone = statistics.median(answer["compute_us"])
    looks = [us / alone for us in answer["together_us"]]
    indices = [
        i for i, (before, after) in enumerate(zip(looks[:1] + looks, looks, strict=False)) if max(before, after) <= limit
    ]
    return {name: [row[i] for i in indices] for name, row in answer.items()} if len(indices) >= ENOUGH else answer


class RetryPolicy:
    """Has crowded trials timed again, as long as that takes a fair share of the time.

    Crowded is what is so beside the least seen: where threads always share cores, as when all hyperthreads are asked for,
    that is what the machine gives. The first trial has to wait for that: a spell it began in would pass for the machine.
    """

    def __init__(self) -> None:
        self._left_s, self._least, self._known = FIRST_S, 1.0, False

    def least_crowded(self, time_once: Callable[[], Answer]) -> tuple[Answer, float]:
        """Clean part of the first answer that has enough of it, or the least crowded one; and its contention, a factor."""
        begin, first = time.monotonic(), time_once()
        if not any(first.get("together_us", ())):  # one thread's alone, whatever it was given: it says nothing of the others
            return first, 1.0
        result, pause = self._seen(first), PAUSE_S
        self._left_s = min(self._left_s + SHARE * (time.monotonic() - begin), MOST_S)
        while core_contention(result) > CROWDED * self._least and self._left_s > 0:
            begin = time.monotonic()
            time.sleep(pause)
            result, pause = min(result, self._seen(time_once()), key=core_contention), min(2 * pause, LONGEST_PAUSE_S)
            self._left_s -= time.monotonic() - begin
        if not self._known:
            self._least, self._known = max(1.0, core_contention(result)), True
        return result, core_contention(result) / self._least

    def _seen(self, answer: Answer) -> Answer:
        self._least = max(1.0, min(self._least, core_contention(answer)))  # less than alone is noise
        return clean(answer, CROWDED * self._least)
