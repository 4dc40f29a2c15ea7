"""Exclude losses that `replication: async` allows: what a master acknowledged shortly before it was replaced.

It had not waited for the replica that became master. Everything else holds as with `sync`: what a consumer has seen,
what was refused, copies, positions, times, masters. So a run gets the same checks, without the acknowledgements that
are excluded here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tests.chaos.failover.recorded import OK, UNKNOWN, Acknowledged, Committed, Recorded, Sent

#: A replica that lags longer is not in sync and not elected: 2.5 s, a change of the set, a lease, an election.
BEFORE_SECONDS: Final = 15.0


def without_allowed_losses(run: Recorded) -> tuple[Recorded, int]:
    """Return the run without excluded acknowledgements, and how many acknowledged messages are lost by that."""
    changes = _changes_of_master(run)
    everywhere = sorted(at for times in changes.values() for at in times)
    at = {each.place: each.number for each in run.stored}
    there = {each.number for each in run.stored}

    def is_excused(ended: float, broker: str | None) -> bool:
        times = everywhere if broker is None else changes.get(broker, [])
        following = bisect_left(times, ended)
        return following < len(times) and times[following] - ended <= BEFORE_SECONDS

    def sent(each: Sent) -> Sent:
        lies = each.number in there if each.place is None else at.get(each.place) == each.number
        if each.outcome != OK or lies or not is_excused(each.ended, each.place.broker if each.place else None):
            return each
        return replace(each, outcome=UNKNOWN, place=None, why="lost: another master had not got it")

    def said(each: Committed) -> Committed:
        return replace(each, outcome=UNKNOWN) if is_excused(each.ended, each.broker) else each

    def done(each: Acknowledged) -> Acknowledged:
        return replace(each, outcome=UNKNOWN) if is_excused(each.ended, each.place.broker) else each

    left = replace(
        run,
        sent=[sent(each) for each in run.sent],
        committed=[said(each) for each in run.committed],
        acknowledged=[done(each) for each in run.acknowledged],
    )
    return left, _acknowledged(run.sent) - _acknowledged(left.sent)


def _acknowledged(sent: Sequence[Sent]) -> int:
    return sum(each.outcome == OK for each in sent)


def _changes_of_master(run: Recorded) -> dict[str, list[float]]:
    """Return by group when the register first had another master."""
    master: dict[str, int] = {}
    found: dict[str, list[float]] = defaultdict(list)
    for each in run.reigned:
        if each.master and master.setdefault(each.group, each.master) != each.master:
            found[each.group].append(each.at)
            master[each.group] = each.master
    return found
