"""Check over a whole run what clients saw: one function per promise. No I/O.

Each returns violations of its promise, in words that name messages, places and times; nothing if it was kept. They use
only what clients saw: no broker is asked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tests.chaos.failover.recorded import OK, REFUSED, Fault, Place, Recorded, Sent

#: How long after a fault's end its effects may still show: new connections, a growing in-sync set.
GRACE_SECONDS: Final = 15.0
#: The name of the fault after which a broker's clock is wrong.
CLOCK_JUMP: Final = "clock jump"
#: The longest delay of the load's messages.
LONGEST_DELAY_SECONDS: Final = 10.0
#: Pops are compared from so long before the end of their invisible time on.
_LENT_SECONDS: Final = 20.0
#: The most tries of one send, each of which may have stored a copy whose answer was lost.
MAX_TRIES: Final = 3

Check = Callable[[Recorded], list[str]]


def acknowledged_and_lost(run: Recorded) -> list[str]:
    """Check that every acknowledged message is stored at the end."""
    there = {each.number for each in run.stored}
    return [f"{_text(each)} is nowhere" for each in run.sent if each.outcome == OK and each.number not in there]


def acknowledged_and_moved(run: Recorded) -> list[str]:
    """Check that an acknowledged message is at its acknowledged position, unless it was delayed."""
    at = {each.place: each.number for each in run.stored}
    return [
        f"{_text(each)} was to lie at {_at(each.place)}, where {_number(at.get(each.place))} is"
        for each in run.sent
        if each.outcome == OK and each.place is not None and at.get(each.place) != each.number
    ]


def refused_and_there(run: Recorded) -> list[str]:
    """Check that no refused and no unknown message is stored."""
    refused = {each.number: each for each in run.sent if each.outcome == REFUSED}
    sent = {each.number for each in run.sent}
    found = []
    for each in run.stored:
        if each.number in refused:
            found.append(f"{_text(refused[each.number])} lies at {_at(each.place)}")
        elif each.number not in sent:
            found.append(f"message {each.number}, which nobody sent, lies at {_at(each.place)}")
    return found


def unexplained_copies(run: Recorded) -> list[str]:
    """Check for one copy of each message, unless a try was unanswered in a fault; idempotent sends always have one."""
    copies = Counter(each.number for each in run.stored)
    found = []
    for each in run.sent:
        count = copies[each.number]
        if count < 2:
            continue
        if each.once:
            found.append(f"{_text(each)}, whose producer numbers what it sends, is there {count} times")
        elif count > MAX_TRIES:
            found.append(f"{_text(each)} is there {count} times, which {MAX_TRIES} tries do not explain")
        elif not in_fault(run.faults, each.began, each.ended):
            found.append(f"{_text(each)} is there {count} times, although nothing was broken then")
    return found


def order_of_keys(run: Recorded) -> list[str]:
    """Check that of two acknowledged messages of a key in one queue the later one has the larger offset."""
    last: dict[tuple[str, tuple[str, str, int]], Sent] = {}
    found = []
    for each in sorted((each for each in run.sent if each.key and each.outcome == OK), key=lambda each: each.began):
        if each.place is None:
            continue
        where = (each.key, each.place.line)
        before = last.get(where)
        if before is not None and before.place is not None and before.place.offset >= each.place.offset:
            found.append(f"{_text(each)} at {_at(each.place)} is not behind {_text(before)} at {_at(before.place)}")
        last[where] = each
    return found


def places_used_twice(run: Recorded) -> list[str]:
    """Check that no two messages were ever reported at one position, as two masters at a time would do."""
    known: dict[Place, tuple[int, str]] = {}
    found = []
    reported = [(each.place, each.number, f"{_text(each)} acknowledged") for each in run.sent if each.place is not None]
    reported += [(each.place, each.number, f"message {each.number} seen at {each.ended:.3f}") for each in run.seen]
    for place, number, words in reported:
        assert place is not None
        other, by = known.setdefault(place, (number, words))
        if other != number:
            found.append(f"{_at(place)}: {by}, and {words}")
    return found


def seen_and_gone(run: Recorded) -> list[str]:
    """Check that every message that a consumer got is at its position at the end."""
    at = {each.place: each.number for each in run.stored}
    topics = {each.place.topic for each in run.stored}
    return [
        f"message {each.number}, {each.how} by {each.group} from {_at(each.place)} at {each.ended:.3f}, is not there "
        f"any more: {_number(at.get(each.place))} is"
        for each in run.seen
        if each.place.topic in topics and at.get(each.place) != each.number
    ]


def offsets_that_go_back(run: Recorded) -> list[str]:
    """Check that a group's offset is never lower than one that was written or read before."""
    known: dict[tuple[str, str, str, int], list[tuple[float, int]]] = defaultdict(list)
    for each in sorted(run.committed, key=lambda each: each.ended):
        if each.outcome == OK and each.offset >= 0:
            known[each.line].append((each.ended, each.offset))
    highest: dict[tuple[str, str, str, int], int] = {}
    position: Counter[tuple[str, str, str, int]] = Counter()
    found = []
    for each in sorted(run.committed, key=lambda each: each.began):
        if each.writes or each.outcome != OK:
            continue
        before = known[each.line]
        while position[each.line] < len(before) and before[position[each.line]][0] <= each.began:
            highest[each.line] = max(highest.get(each.line, -1), before[position[each.line]][1])
            position[each.line] += 1
        least = highest.get(each.line, -1)
        if each.offset < least:
            has = "none" if each.offset < 0 else f"{each.offset}"
            found.append(f"{each.group} in {each.line[1:]}: {least} was told, and at {each.began:.3f} it has {has}")
    return found


def before_its_time(run: Recorded) -> list[str]:
    """Check that no delayed message is delivered early, by the clocks of its consumer and its broker.

    A delivery time is one of the broker's wall clock: a clock change may move the delivery.
    """
    set_clocks = [each for each in run.faults if CLOCK_JUMP in each.name]
    due = {
        each.number: each
        for each in run.sent
        if each.due and not in_fault(set_clocks, each.began, each.ended + LONGEST_DELAY_SECONDS)
    }
    earliest: dict[int, float] = {}
    for seen in run.seen:
        if seen.number in due and seen.wall:
            earliest[seen.number] = min(seen.wall, earliest.get(seen.number, seen.wall))
    for stored in run.stored:
        if stored.number in due:
            earliest[stored.number] = min(stored.stored, earliest.get(stored.number, stored.stored))
    return [
        f"{_text(due[number])} was to wait until {due[number].due:.3f} and was there at {at:.3f}"
        for number, at in earliest.items()
        if at < due[number].due - 0.001
    ]


def done_and_given_again(run: Recorded) -> list[str]:
    """Check that an acknowledged popped message is not delivered by a pop that begins later.

    This holds for one copy; of a message that is stored once also for its retry copies.
    """
    copies = Counter(each.number for each in run.stored)

    def which(number: int, place: Place) -> Place | int:
        return number if copies[number] == 1 else place

    done: dict[tuple[str, Place | int], float] = {}
    for each in run.acknowledged:
        if each.outcome == OK:
            key = each.group, which(each.number, each.place)
            done[key] = min(each.ended, done.get(key, each.ended))
    found = []
    for seen in run.seen:
        at = done.get((seen.group, which(seen.number, seen.place)))
        if seen.how == "pop" and at is not None and seen.began > at:
            found.append(
                f"message {seen.number} at {_at(seen.place)} was done at {at:.3f} and given out again by a call that "
                f"began at {seen.began:.3f}"
            )
    return found


def popped_and_lost(run: Recorded) -> list[str]:
    """Check that each group that pops a topic got every acknowledged message."""
    return _not_given(run, "pop")


def pushed_and_lost(run: Recorded) -> list[str]:
    """Check that each group that listens to a topic got every acknowledged message."""
    return _not_given(run, "push")


def pulled_and_lost(run: Recorded) -> list[str]:
    """Check that a consumer that pulls a topic's queues in order got every acknowledged message."""
    return _not_given(run, "pull")


def _not_given(run: Recorded, how: str) -> list[str]:
    given: dict[str, set[int]] = defaultdict(set)
    topics: dict[str, set[str]] = defaultdict(set)
    for each in run.seen:
        if each.how == how:
            given[each.group].add(each.number)
            topics[each.group].add(each.place.topic)
    return [
        f"{_text(each)} was never given to {group}"
        for group, numbers in given.items()
        for each in run.sent
        if each.topic in topics[group] and each.outcome == OK and each.number not in numbers
    ]


def lent_twice(run: Recorded) -> list[str]:
    """Check that a popped message is not delivered again within its invisible time, unless a fault happened."""
    given: dict[tuple[str, Place], float] = {}
    found = []
    for each in sorted((each for each in run.seen if each.how == "pop"), key=lambda each: each.ended):
        until = given.get((each.group, each.place))
        if until is not None and each.ended < until and not in_fault(run.faults, until - _LENT_SECONDS, each.ended):
            found.append(
                f"message {each.number} at {_at(each.place)} was lent until {until:.3f}, and again at {each.ended:.3f}"
            )
        given[each.group, each.place] = each.until
    return found


def readers_sent_back(run: Recorded) -> list[str]:
    """Check that no reader's offset is reset: what it read had been confirmed."""
    return [
        f"{each.group} at {_at(Place(each.topic, each.broker, each.queue, each.offset))} was sent back at {each.at:.3f}"
        f": {each.why}"
        for each in run.sent_back
    ]


def two_masters(run: Recorded) -> list[str]:
    """Check that the register has one master for each epoch, and that epochs only grow."""
    masters: dict[tuple[str, int], int] = {}
    latest: dict[str, int] = {}
    found = []
    for each in run.reigned:
        if each.epoch < latest.get(each.group, 0):
            found.append(f"{each.group}: epoch {each.epoch} after {latest[each.group]} at {each.at:.3f}")
        latest[each.group] = max(each.epoch, latest.get(each.group, 0))
        if each.master and masters.setdefault((each.group, each.epoch), each.master) != each.master:
            found.append(f"{each.group}: epoch {each.epoch} is of {masters[each.group, each.epoch]} and {each.master}")
    return found


#: All checks, by the title of their violations.
CHECKS: Final[dict[str, Check]] = {
    "acknowledged and lost": acknowledged_and_lost,
    "not where it was told to be": acknowledged_and_moved,
    "refused, or never sent, and there": refused_and_there,
    "more copies than are explained": unexplained_copies,
    "order of a key": order_of_keys,
    "a place used twice": places_used_twice,
    "seen by a consumer and gone": seen_and_gone,
    "a group's offset went back": offsets_that_go_back,
    "delivered before its time": before_its_time,
    "done and given out again": done_and_given_again,
    "never popped": popped_and_lost,
    "never pushed": pushed_and_lost,
    "never pulled": pulled_and_lost,
    "lent twice": lent_twice,
    "a reader sent back": readers_sent_back,
    "two masters": two_masters,
}


def violations(run: Recorded) -> dict[str, list[str]]:
    """Return the violations of every check that found some."""
    found = {name: check(run) for name, check in CHECKS.items()}
    return {name: texts for name, texts in found.items() if texts}


def in_fault(faults: Iterable[Fault], began: float, ended: float) -> bool:
    """Check whether a fault lasted during an interval, or had ended shortly before it."""
    return any(each.began <= ended and began <= each.healed + GRACE_SECONDS for each in faults)


def outside_of_faults(run: Recorded) -> Sequence[Sent]:
    """Return sends that failed without a fault: an alarm, not a violation."""
    return [each for each in run.sent if each.outcome != OK and not in_fault(run.faults, each.began, each.ended)]


def _text(sent: Sent) -> str:
    key = f" of key {sent.key}" if sent.key else ""
    return f"message {sent.number}{key} to {sent.topic} ({sent.outcome}, {sent.began:.3f} to {sent.ended:.3f})"


def _at(place: Place | None) -> str:
    return "nowhere" if place is None else f"{place.topic}@{place.broker}:{place.queue}+{place.offset}"


def _number(number: int | None) -> str:
    return "nothing" if number is None else f"message {number}"
