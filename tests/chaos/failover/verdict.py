"""The result of a run: counts, recovery times of each kind of fault, and violations."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from tests.chaos.failover.allowed_losses import without_allowed_losses
from tests.chaos.failover.checks import outside_of_faults, violations
from tests.chaos.failover.recorded import OK, STAYS, Fault, Recorded

#: The maximum number of printed violations of each kind.
_MAX_PRINTED: Final = 5
#: The longest wanted pause of clients, in seconds, by the beginning of a fault's name.
GOALS: Final = {"SIGKILL of a broker": 5.0, "loss of a host": 10.0, "a host's": 10.0, "partition": 10.0}


#: The counted faults, by the beginning of a fault's name.
_COUNTED: Final = {
    "SIGKILL of a broker": "broker kills",
    "a host's processes": "kills of all on a host",
    "loss of a host": "losses of a host",
    "partition": "partitions",
}


@dataclass(frozen=True, slots=True)
class Recovery:
    """The effects of a kind of fault.

    Attributes:
        pauses: for each fault, the longest time without an acknowledgement of some broker.
        afters: for each fault, the longest time without an acknowledgement after its end; if all copies were
            affected, the fault's own time adds to it.
        slowdowns: for each fault, the machine's slowdown meanwhile.
        waits: for each fault, seconds from its end until all copies were in sync.
    """

    name: str
    pauses: list[float] = field(default_factory=list)
    afters: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    slowdowns: list[float] = field(default_factory=list)

    #: Whether another copy may take over.
    has_copies: bool = True

    @property
    def goal(self) -> float | None:
        """Return the longest wanted pause; None without a goal, or for a pair of faults."""
        return goal_of(self.name) if self.has_copies else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a run. It is good without violations and stuck faults."""

    seed: int
    settings: str
    seconds: float
    counts: dict[str, int]
    recoveries: list[Recovery]
    violations: dict[str, list[str]]
    stuck: list[str]
    alarms: list[str]

    @property
    def is_good(self) -> bool:
        return not self.violations and not self.stuck

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "seed": self.seed,
            "settings": self.settings,
            "seconds": round(self.seconds, 1),
            "good": self.is_good,
            "counts": self.counts,
            "recoveries": {
                each.name: {
                    "faults": len(each.pauses),
                    "pause_median": _rounded(median(each.pauses)),
                    "pause_longest": _rounded(max(each.pauses)),
                    "whole_again_longest": _rounded(max(each.waits, default=0.0)),
                    "goal": each.goal,
                    "pauses": [_rounded(pause) for pause in each.pauses],
                    "afters": [_rounded(after) for after in each.afters],
                    "slowdowns": [_rounded(times) for times in each.slowdowns],
                    "waits": [_rounded(wait) for wait in each.waits],
                }
                for each in self.recoveries
            },
            "violations": self.violations,
            "stuck": self.stuck,
            "alarms": self.alarms[:_MAX_PRINTED],
        }

    def table(self) -> str:
        """Return the text for a terminal."""
        counted = ", ".join(f"{number} {what}" for what, number in self.counts.items())
        lines = [f"seed {self.seed}, {self.settings}, {self.seconds:.0f} s: {counted}", title()]
        lines += [row(each) for each in self.recoveries]
        for name, texts in self.violations.items():
            lines.append(f"  VIOLATION {name}: {len(texts)}")
            lines += [f"    {each}" for each in texts[:_MAX_PRINTED]]
        lines += [f"  STUCK {each}" for each in self.stuck]
        lines += [f"  alarm: failed although nothing was broken: {each}" for each in self.alarms[:_MAX_PRINTED]]
        lines.append(f"  {'all promises kept' if self.is_good else 'NOT GOOD'}: seed {self.seed}")
        return "\n".join(lines)


def title() -> str:
    """Return the heading of the rows."""
    return (
        f"  {'fault':58} {'times':>5} {'pause s: median':>16} {'longest':>8} {'goal':>5} {'once healed':>12}"
        f" {'whole again s':>14} {'slowed':>7}"
    )


def row(of: Recovery) -> str:
    """Return one line about a kind of fault."""
    goal, longest = "" if of.goal is None else f"{of.goal:.0f}", max(of.pauses)
    missed = sum(pause > of.goal for pause in of.pauses) if of.goal is not None else 0
    slowed = f"{median(of.slowdowns):.1f}x" if of.slowdowns else ""
    note = f" missed {missed} times" if missed else ""
    return (
        f"  {of.name:58.58} {len(of.pauses):5d} {median(of.pauses):16.2f} {longest:8.2f} {goal:>5} "
        f"{max(of.afters, default=0.0):12.2f} {max(of.waits, default=0.0):14.2f} {slowed:>7}{note}"
    )


def goal_of(name: str) -> float | None:
    """Return the longest wanted pause of a fault with copies; None without a goal, or for a pair of faults."""
    return None if " + " in name else next((goal for begins, goal in GOALS.items() if name.startswith(begins)), None)


def judge(
    run: Recorded,
    *,
    seed: int,
    seconds: float,
    settings: str = "",
    is_sync: bool = True,
    waits: Sequence[float] = (),
    slowdowns: Sequence[float] = (),
    stuck: Sequence[str] = (),
    besides: Sequence[tuple[str, Sequence[str]]] = (),
) -> Verdict:
    """Judge a run.

    Args:
        settings: a description of the cluster.
        is_sync: whether an acknowledgement waits for replicas.
        besides: violations from other sources than the clients' history.
    """
    left, lost = (run, 0) if is_sync else without_allowed_losses(run)
    found = violations(left)
    for name, texts in besides:
        if texts:
            found[name] = list(texts)
    outcomes = Counter(each.outcome for each in run.sent)
    counts = {
        "sent": len(run.sent),
        "acknowledged": outcomes[OK],
        "unknown": outcomes["unknown"],
        "refused": outcomes["refused"],
        "stored": len(run.stored),
        "delivered": len(run.seen),
        "faults": len(run.faults),
        **_done(run),
        "elections": elections(run),
    }
    if not is_sync:
        counts["acknowledged, and gone with a master"] = lost
    return Verdict(
        seed,
        settings,
        seconds,
        counts,
        recoveries(run, waits, slowdowns),
        found,
        list(stuck),
        [f"message {each.number} to {each.topic} at {each.ended:.3f}: {each.why}" for each in outside_of_faults(run)],
    )


def _done(run: Recorded) -> dict[str, int]:
    """Count the counted faults, alone or in a pair."""
    counts: Counter[str] = Counter()
    for fault in run.faults:
        for name, target in zip(fault.name.split(" + "), fault.target.split(" + "), strict=False):
            counts[next((what for begins, what in _COUNTED.items() if name.startswith(begins)), "")] += (
                STAYS not in target
            )
    return {what: counts[what] for what in _COUNTED.values() if counts[what]}


def elections(run: Recorded) -> int:
    """Return the number of masters after each group's first."""
    reigns = {(each.group, each.epoch) for each in run.reigned if each.master}
    return len(reigns) - len({group for group, _ in reigns})


def recoveries(run: Recorded, waits: Sequence[float] = (), slowdowns: Sequence[float] = ()) -> list[Recovery]:
    """Return the recoveries by kind of fault, in the order of first occurrence."""
    has_copies = bool(run.reigned)  # without states there is no register
    acknowledged: dict[str, list[float]] = defaultdict(list)
    for each in run.sent:
        if each.outcome == OK and each.place is not None:
            acknowledged[each.place.broker].append(each.ended)
    for times in acknowledged.values():
        times.sort()
    found: dict[str, Recovery] = {}
    for number, fault in enumerate(run.faults):
        until = run.faults[number + 1].began if number + 1 < len(run.faults) else float("inf")
        recovery = found.setdefault(fault.name, Recovery(fault.name, has_copies=has_copies))
        recovery.pauses.append(max((pause(times, fault, until) for times in acknowledged.values()), default=0.0))
        recovery.afters.append(
            max((silence(times, fault.healed, until) for times in acknowledged.values()), default=0.0)
        )
        if number < len(waits):
            recovery.waits.append(waits[number])
        if number < len(slowdowns):
            recovery.slowdowns.append(slowdowns[number])
    return list(found.values())


def pause(times: Sequence[float], fault: Fault, until: float) -> float:
    """Return the longest time without an acknowledgement between a fault's beginning and the next one's."""
    longest, before = 0.0, fault.began
    for at in times:
        if at < fault.began:
            continue
        if before >= until:
            break
        # A pause that continues into the next fault counts for that one, unless this one had no acknowledgement at all.
        longest = max(longest, (at if before == fault.began else min(at, until)) - before)
        before = at
    return longest if before > fault.began else float("inf")


def silence(times: Sequence[float], since: float, until: float) -> float:
    """Return how long nothing was acknowledged after a moment, at most until another one."""
    following = bisect_left(times, since)
    return (min(times[following], until) if following < len(times) else until) - since


def _rounded(seconds: float) -> float | None:
    return round(seconds, 2) if seconds != float("inf") else None


def as_json(verdict: Verdict) -> str:
    """Return the verdict as one line of JSON."""
    return json.dumps(verdict.to_json())
