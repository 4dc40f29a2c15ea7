"""Each check of the chaos suite finds what was planted for it in a made-up run, and nothing in one that was kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.failover.adding_up import added_up
from tests.chaos.failover.checks import CHECKS, CLOCK_JUMP, GRACE_SECONDS, outside_of_faults, violations
from tests.chaos.failover.excuses import BEFORE_SECONDS, excused
from tests.chaos.failover.recorded import (
    OK,
    REFUSED,
    STAYS,
    UNKNOWN,
    Acknowledged,
    Committed,
    Event,
    Fault,
    HistoryFile,
    Place,
    Recorded,
    Reigned,
    Seen,
    Sent,
    SentBack,
    Stored,
)
from tests.chaos.failover.verdict import as_json, elections, judge, pause, silence


def at(offset: int, topic: str = "t", queue: int = 0) -> Place:
    return Place(topic, "broker-a", queue, offset)


def sent(number: int, place: Place | None = None, outcome: str = OK, **more: object) -> Sent:
    return Sent(number, "t", number, number + 0.5, outcome, place=place, **more)  # type: ignore[arg-type]


def seen(number: int, place: Place, how: str = "pull", began: float = 50.0, **more: object) -> Seen:
    return Seen(number, place, f"by {how}", how, began, began + 0.1, **more)  # type: ignore[arg-type]


def offset(at_offset: int, began: float, *, writes: bool, outcome: str = OK) -> Committed:
    return Committed("g", "t", "broker-a", 0, at_offset, began, began + 0.1, outcome, writes)


FAULT = Fault("SIGKILL", "h1", 2.0, 3.0)
#: Nothing is wrong with it: a copy, a commit and a failure that a fault explains, and a message that came again.
KEPT: tuple[Event, ...] = (
    sent(1, at(0), key="k"),
    sent(2, at(1), key="k"),
    sent(3, at(3), key="k"),
    sent(4, None, UNKNOWN),
    sent(5, None, REFUSED),
    sent(6, None, due=1_000.0),
    sent(30, at(4), key="k"),
    FAULT,
    *(Stored(number, at(number - 1)) for number in (1, 2)),
    Stored(2, at(2)),
    Stored(3, at(3)),
    Stored(30, at(4)),
    Stored(4, at(5)),
    Stored(6, at(6), 1_000.0),
    *(seen(number, place) for number, place in ((1, at(0)), (2, at(1)), (3, at(3)), (6, at(6)), (30, at(4)))),
    seen(1, at(0), "pop", 50.0, until=55.0),
    seen(1, at(0), "pop", 60.0, until=65.0),
    *(
        seen(number, place, "pop", 50.0, until=55.0)
        for number, place in ((2, at(1)), (3, at(3)), (6, at(6)), (30, at(4)))
    ),
    *(seen(number, place, "push") for number, place in ((1, at(0)), (2, at(1)), (3, at(3)), (6, at(6)), (30, at(4)))),
    Acknowledged(1, at(0), "by pop", 61.0, 61.5, OK),
    Acknowledged(2, at(1), "by pop", 61.0, 61.5, UNKNOWN),
    seen(2, at(1), "pop", 70.0),
    offset(-1, 1.0, writes=False),
    offset(5, 2.0, writes=True),
    offset(9, 3.0, writes=True, outcome=UNKNOWN),
    offset(5, 4.0, writes=False),
    Reigned(1.0, "broker-a", 1, 1, 2),
    Reigned(2.0, "broker-a", 2, 0, 2),
    Reigned(3.0, "broker-a", 2, 3, 1),
)

#: What is put into it, by the check that has to find it. What it is put in the place of goes.
PLANTED: dict[str, tuple[Event, ...]] = {
    "acknowledged and lost": (sent(7, None),),
    "not where it was told to be": (sent(7, at(7, queue=1)), Stored(7, at(7, queue=2))),
    "refused, or never sent, and there": (Stored(5, at(7)),),
    "more copies than are explained": (sent(40, at(7)), Stored(40, at(7)), Stored(40, at(8))),
    "order of a key": (sent(2_0, at(8), key="l"), sent(2_1, at(7), key="l"), Stored(20, at(8)), Stored(21, at(7))),
    "a place used twice": (sent(40, at(4)),),
    "seen by a consumer and gone": (seen(99, at(0)),),
    "a group's offset went back": (offset(4, 5.0, writes=False),),
    "delivered before its time": (sent(7, None, due=2_000.0), Stored(7, at(7), 1_999.9)),
    "done and given out again": (seen(1, at(0), "pop", 80.0),),
    "never popped": (sent(40, at(7)), Stored(40, at(7)), seen(40, at(7), "push")),
    "never pushed": (sent(40, at(7)), Stored(40, at(7)), seen(40, at(7), "pop")),
    "never pulled": (sent(40, at(7)), Stored(40, at(7)), seen(40, at(7), "pop")),
    "lent twice": (seen(3, at(3), "pop", 52.0, until=57.0),),
    "a reader sent back": (SentBack("g", "t", "broker-a", 0, 7, 50.0, "outside 0..0"),),
    "two masters": (Reigned(4.0, "broker-a", 2, 1, 2),),
}


def test_every_check_has_something_planted_for_it() -> None:
    assert PLANTED.keys() == CHECKS.keys()


def test_a_run_that_was_kept_has_no_violation() -> None:
    assert violations(Recorded.of(*KEPT)) == {}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name: str) -> None:
    found = violations(Recorded.of(*KEPT, *PLANTED[name]))
    assert name in found
    assert len(found[name]) == 1


@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("refused, or never sent, and there", (Stored(77, at(7)),)),
        ("more copies than are explained", (sent(2, at(1), once=True), Stored(2, at(2)), Stored(2, at(1)))),
        ("more copies than are explained", (sent(2, at(1)), *(Stored(2, at(each)) for each in range(4)))),
        ("a place used twice", (sent(8, at(1)), sent(9, at(1)))),
        ("a place used twice", (seen(8, at(1)), seen(9, at(1)))),
        ("a group's offset went back", (offset(7, 1.0, writes=True), offset(-1, 2.0, writes=False))),
        ("a group's offset went back", (offset(7, 1.0, writes=False), offset(6, 2.0, writes=False))),
        ("two masters", (Reigned(1.0, "g", 3, 1, 1), Reigned(2.0, "g", 2, 1, 1))),
    ],
)
def test_other_forms_of_it_are_found(name: str, events: tuple[Event, ...]) -> None:
    assert CHECKS[name](Recorded.of(*events, FAULT))


def test_a_copy_is_explained_by_a_fault_and_a_while_behind_it() -> None:
    late = sent(2, at(1))
    late = replace(late, began=FAULT.healed + GRACE_SECONDS - 0.1, ended=FAULT.healed + GRACE_SECONDS)
    run = [FAULT, late, Stored(2, at(1)), Stored(2, at(2))]
    assert violations(Recorded.of(*run)) == {}
    run[1] = replace(late, began=late.began + 1.0, ended=late.ended + 1.0)
    assert "more copies than are explained" in violations(Recorded.of(*run))


def test_a_delayed_message_is_early_where_it_was_seen_or_stored_early() -> None:
    run = [replace(sent(7, None), due=2_000.0), Stored(7, at(7), 2_000.0)]
    early, in_time = (seen(7, at(7), wall=wall) for wall in (1_999.9, 2_000.0))
    assert violations(Recorded.of(*run, in_time)) == {}
    assert "delivered before its time" in violations(Recorded.of(*run, early))
    run[1] = Stored(7, at(7), 1_990.0)
    assert "delivered before its time" in violations(Recorded.of(*run, in_time))
    set_clock = Fault(f"{CLOCK_JUMP} + SIGKILL", "h1", 6.0, 9.0)
    assert violations(Recorded.of(*run, in_time, set_clock)) == {}
    assert violations(Recorded.of(*run, early, set_clock)) == {}, "its time is one of the broker's clock"


def test_what_fails_while_nothing_is_broken_is_an_alarm() -> None:
    fine, early, late = sent(3, None, REFUSED), sent(1, None, UNKNOWN), sent(90, None, REFUSED)
    assert outside_of_faults(Recorded.of(fine, early, late, FAULT)) == [early, late]


def test_a_history_survives_its_process_and_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "history")
    file.write(KEPT)
    file.close()
    with (tmp_path / "history").open("a", encoding="utf-8") as stream:
        stream.write('["Sent", 8, "t"')
    assert Recorded.read(tmp_path / "history") == Recorded.of(*KEPT)


def test_async_excuses_what_is_said_shortly_before_another_one_is_master() -> None:
    """Here at 3.0 replica 3 becomes master. Messages are named by the time of their sends."""
    masters = [Reigned(0.5, "broker-a", 1, 1, 2), Reigned(2.9, "broker-a", 2, 0, 2), Reigned(3.0, "broker-a", 2, 3, 1)]
    said = [sent(1, at(0)), sent(2, at(1)), offset(2, 2.0, writes=True), offset(1, 4.0, writes=False)]
    taken = [Stored(1, at(0)), sent(30, at(1)), Stored(30, at(1))]
    left, lost = excused(Recorded.of(*masters, *said, *taken))
    assert violations(left) == {}
    assert lost == 1
    same = [replace(each, master=1) for each in masters if each.master]
    assert {"acknowledged and lost", "a place used twice", "a group's offset went back"} <= violations(
        excused(Recorded.of(*same, *said, *taken))[0]
    ).keys(), "nobody else became master"
    early = [replace(each, at=each.at + BEFORE_SECONDS) for each in masters]
    assert "acknowledged and lost" in violations(excused(Recorded.of(*early, *said, *taken))[0])
    seen_before = seen(2, at(1), began=2.6)
    assert "seen by a consumer and gone" in violations(excused(Recorded.of(*masters, *said, *taken, seen_before))[0])


def test_runs_are_added_up() -> None:
    one = judge(Recorded.of(*KEPT), seed=7, seconds=1.0, waits=[2.0])
    kill = [
        Fault("SIGKILL of a broker + loss of a host", f"broker of h1 + h2{stays}", 2.0, 3.0) for stays in ("", STAYS)
    ]
    two = judge(Recorded.of(*KEPT, *kill), seed=8, seconds=1.0)
    assert (two.counts["broker kills"], two.counts["losses of a host"]) == (2, 1)
    told = added_up([json.loads(as_json(each)) for each in (one, two)])
    assert "all: 14 sent, 10 acknowledged" in told
    assert told.count("SIGKILL of a broker + loss of a host") == 1
    assert "NOT GOOD" not in told


def test_a_pause_is_the_longest_time_without_an_acknowledgement() -> None:
    fault = Fault("f", "h", 10.0, 12.0)
    assert pause([9.0, 10.5, 13.0, 13.5, 30.0], fault, until=20.0) == 6.5
    assert pause([9.0, 10.5, 13.0, 13.5, 30.0], fault, until=13.2) == 2.5
    assert pause([9.0, 13.0, 30.0], fault, until=20.0) == 7.0
    assert pause([9.0, 30.0], fault, until=20.0) == 20.0
    assert pause([9.0], fault, until=20.0) == float("inf")
    assert silence([9.0, 13.0], since=12.0, until=20.0) == 1.0
    assert silence([9.0, 30.0], since=12.0, until=20.0) == 8.0
    assert silence([9.0], since=12.0, until=20.0) == 8.0


def test_the_verdict_counts_and_names_the_seed() -> None:
    verdict = judge(Recorded.of(*KEPT, *PLANTED["two masters"]), seed=7, seconds=1.0, waits=[2.0])
    assert not verdict.is_good
    assert verdict.counts == {
        "sent": 7,
        "acknowledged": 5,
        "unknown": 1,
        "refused": 1,
        "stored": 7,
        "delivered": 17,
        "faults": 1,
        "elections": 1,
    }
    assert elections(Recorded.of(*KEPT)) == 1
    assert "NOT GOOD: seed 7" in verdict.table()
    assert verdict.to_json()["violations"].keys() == {"two masters"}
    assert judge(Recorded.of(*KEPT), seed=7, seconds=1.0).is_good
