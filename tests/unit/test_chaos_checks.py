"""Test that each check of the chaos suite finds its planted violation, and no other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.failover.allowed_losses import BEFORE_SECONDS, without_allowed_losses
from tests.chaos.failover.checks import CHECKS, CLOCK_JUMP, GRACE_SECONDS, outside_of_faults, violations
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
from tests.chaos.failover.sum_runs import summarize
from tests.chaos.failover.verdict import as_json, elections, judge, pause, silence


def place_at(number: int, topic: str = "t", queue: int = 0) -> Place:
    return Place(topic, "broker-a", queue, number)


def sent_event(number: int, place: Place | None = None, outcome: str = OK, **more: object) -> Sent:
    return Sent(number, "t", number, number + 0.5, outcome, place=place, **more)  # type: ignore[arg-type]


def seen_event(number: int, place: Place, how: str = "pull", began: float = 50.0, **more: object) -> Seen:
    return Seen(number, place, f"by {how}", how, began, began + 0.1, **more)  # type: ignore[arg-type]


def commit_event(at_offset: int, began: float, *, writes: bool, outcome: str = OK) -> Committed:
    return Committed("g", "t", "broker-a", 0, at_offset, began, began + 0.1, outcome, writes)


FAULT = Fault("SIGKILL", "h1", 2.0, 3.0)
#: A valid run: a duplicate, a commit and a failure that a fault explains, and a redelivered message.
VALID_RUN: tuple[Event, ...] = (
    sent_event(1, place_at(0), key="k"),
    sent_event(2, place_at(1), key="k"),
    sent_event(3, place_at(3), key="k"),
    sent_event(4, None, UNKNOWN),
    sent_event(5, None, REFUSED),
    sent_event(6, None, due=1_000.0),
    sent_event(30, place_at(4), key="k"),
    FAULT,
    *(Stored(number, place_at(number - 1)) for number in (1, 2)),
    Stored(2, place_at(2)),
    Stored(3, place_at(3)),
    Stored(30, place_at(4)),
    Stored(4, place_at(5)),
    Stored(6, place_at(6), 1_000.0),
    *(
        seen_event(number, place)
        for number, place in ((1, place_at(0)), (2, place_at(1)), (3, place_at(3)), (6, place_at(6)), (30, place_at(4)))
    ),
    seen_event(1, place_at(0), "pop", 50.0, until=55.0),
    seen_event(1, place_at(0), "pop", 60.0, until=65.0),
    *(
        seen_event(number, place, "pop", 50.0, until=55.0)
        for number, place in ((2, place_at(1)), (3, place_at(3)), (6, place_at(6)), (30, place_at(4)))
    ),
    *(
        seen_event(number, place, "push")
        for number, place in ((1, place_at(0)), (2, place_at(1)), (3, place_at(3)), (6, place_at(6)), (30, place_at(4)))
    ),
    Acknowledged(1, place_at(0), "by pop", 61.0, 61.5, OK),
    Acknowledged(2, place_at(1), "by pop", 61.0, 61.5, UNKNOWN),
    seen_event(2, place_at(1), "pop", 70.0),
    commit_event(-1, 1.0, writes=False),
    commit_event(5, 2.0, writes=True),
    commit_event(9, 3.0, writes=True, outcome=UNKNOWN),
    commit_event(5, 4.0, writes=False),
    Reigned(1.0, "broker-a", 1, 1, 2),
    Reigned(2.0, "broker-a", 2, 0, 2),
    Reigned(3.0, "broker-a", 2, 3, 1),
)

#: Events that are added to the valid run, by the check that has to find them.
PLANTED_VIOLATIONS: dict[str, tuple[Event, ...]] = {
    "acknowledged and lost": (sent_event(7, None),),
    "not where it was told to be": (sent_event(7, place_at(7, queue=1)), Stored(7, place_at(7, queue=2))),
    "refused, or never sent, and there": (Stored(5, place_at(7)),),
    "more copies than are explained": (sent_event(40, place_at(7)), Stored(40, place_at(7)), Stored(40, place_at(8))),
    "order of a key": (
        sent_event(2_0, place_at(8), key="l"),
        sent_event(2_1, place_at(7), key="l"),
        Stored(20, place_at(8)),
        Stored(21, place_at(7)),
    ),
    "a place used twice": (sent_event(40, place_at(4)),),
    "seen by a consumer and gone": (seen_event(99, place_at(0)),),
    "a group's offset went back": (commit_event(4, 5.0, writes=False),),
    "delivered before its time": (sent_event(7, None, due=2_000.0), Stored(7, place_at(7), 1_999.9)),
    "done and given out again": (seen_event(1, place_at(0), "pop", 80.0),),
    "never popped": (sent_event(40, place_at(7)), Stored(40, place_at(7)), seen_event(40, place_at(7), "push")),
    "never pushed": (sent_event(40, place_at(7)), Stored(40, place_at(7)), seen_event(40, place_at(7), "pop")),
    "never pulled": (sent_event(40, place_at(7)), Stored(40, place_at(7)), seen_event(40, place_at(7), "pop")),
    "lent twice": (seen_event(3, place_at(3), "pop", 52.0, until=57.0),),
    "a reader sent back": (SentBack("g", "t", "broker-a", 0, 7, 50.0, "outside 0..0"),),
    "two masters": (Reigned(4.0, "broker-a", 2, 1, 2),),
}


def test_every_check_has_a_planted_violation() -> None:
    assert PLANTED_VIOLATIONS.keys() == CHECKS.keys()


def test_valid_run_has_no_violation() -> None:
    assert violations(Recorded.of(*VALID_RUN)) == {}


@pytest.mark.parametrize("name", PLANTED_VIOLATIONS)
def test_planted_violation_is_found(name: str) -> None:
    found = violations(Recorded.of(*VALID_RUN, *PLANTED_VIOLATIONS[name]))
    assert name in found
    assert len(found[name]) == 1


@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("refused, or never sent, and there", (Stored(77, place_at(7)),)),
        (
            "more copies than are explained",
            (sent_event(2, place_at(1), once=True), Stored(2, place_at(2)), Stored(2, place_at(1))),
        ),
        (
            "more copies than are explained",
            (sent_event(2, place_at(1)), *(Stored(2, place_at(each)) for each in range(4))),
        ),
        ("a place used twice", (sent_event(8, place_at(1)), sent_event(9, place_at(1)))),
        ("a place used twice", (seen_event(8, place_at(1)), seen_event(9, place_at(1)))),
        ("a group's offset went back", (commit_event(7, 1.0, writes=True), commit_event(-1, 2.0, writes=False))),
        ("a group's offset went back", (commit_event(7, 1.0, writes=False), commit_event(6, 2.0, writes=False))),
        ("two masters", (Reigned(1.0, "g", 3, 1, 1), Reigned(2.0, "g", 2, 1, 1))),
    ],
)
def test_other_forms_of_violations_are_found(name: str, events: tuple[Event, ...]) -> None:
    assert CHECKS[name](Recorded.of(*events, FAULT))


def test_duplicate_is_allowed_during_and_shortly_after_a_fault() -> None:
    late = sent_event(2, place_at(1))
    late = replace(late, began=FAULT.healed + GRACE_SECONDS - 0.1, ended=FAULT.healed + GRACE_SECONDS)
    run = [FAULT, late, Stored(2, place_at(1)), Stored(2, place_at(2))]
    assert violations(Recorded.of(*run)) == {}
    run[1] = replace(late, began=late.began + 1.0, ended=late.ended + 1.0)
    assert "more copies than are explained" in violations(Recorded.of(*run))


def test_early_delayed_message_is_a_violation() -> None:
    run = [replace(sent_event(7, None), due=2_000.0), Stored(7, place_at(7), 2_000.0)]
    early, in_time = (seen_event(7, place_at(7), wall=wall) for wall in (1_999.9, 2_000.0))
    assert violations(Recorded.of(*run, in_time)) == {}
    assert "delivered before its time" in violations(Recorded.of(*run, early))
    run[1] = Stored(7, place_at(7), 1_990.0)
    assert "delivered before its time" in violations(Recorded.of(*run, in_time))
    set_clock = Fault(f"{CLOCK_JUMP} + SIGKILL", "h1", 6.0, 9.0)
    assert violations(Recorded.of(*run, in_time, set_clock)) == {}
    assert violations(Recorded.of(*run, early, set_clock)) == {}, "its time is one of the broker's clock"


def test_failure_outside_of_faults_is_reported() -> None:
    fine, early, late = sent_event(3, None, REFUSED), sent_event(1, None, UNKNOWN), sent_event(90, None, REFUSED)
    assert outside_of_faults(Recorded.of(fine, early, late, FAULT)) == [early, late]


def test_history_file_with_a_truncated_line_can_be_read(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "history")
    file.write(VALID_RUN)
    file.close()
    with (tmp_path / "history").open("a", encoding="utf-8") as stream:
        stream.write('["Sent", 8, "t"')
    assert Recorded.read(tmp_path / "history") == Recorded.of(*VALID_RUN)


def test_async_allows_losses_shortly_before_an_election() -> None:
    """At 3.0 replica 3 becomes master; messages are numbered by their send times."""
    masters = [Reigned(0.5, "broker-a", 1, 1, 2), Reigned(2.9, "broker-a", 2, 0, 2), Reigned(3.0, "broker-a", 2, 3, 1)]
    said = [
        sent_event(1, place_at(0)),
        sent_event(2, place_at(1)),
        commit_event(2, 2.0, writes=True),
        commit_event(1, 4.0, writes=False),
    ]
    taken = [Stored(1, place_at(0)), sent_event(30, place_at(1)), Stored(30, place_at(1))]
    left, lost = without_allowed_losses(Recorded.of(*masters, *said, *taken))
    assert violations(left) == {}
    assert lost == 1
    same = [replace(each, master=1) for each in masters if each.master]
    assert {"acknowledged and lost", "a place used twice", "a group's offset went back"} <= violations(
        without_allowed_losses(Recorded.of(*same, *said, *taken))[0]
    ).keys(), "nobody else became master"
    early = [replace(each, at=each.at + BEFORE_SECONDS) for each in masters]
    assert "acknowledged and lost" in violations(without_allowed_losses(Recorded.of(*early, *said, *taken))[0])
    seen_before = seen_event(2, place_at(1), began=2.6)
    assert "seen by a consumer and gone" in violations(
        without_allowed_losses(Recorded.of(*masters, *said, *taken, seen_before))[0]
    )


def test_results_of_runs_are_summed() -> None:
    one = judge(Recorded.of(*VALID_RUN), seed=7, seconds=1.0, waits=[2.0])
    kill = [
        Fault("SIGKILL of a broker + loss of a host", f"broker of h1 + h2{stays}", 2.0, 3.0) for stays in ("", STAYS)
    ]
    two = judge(Recorded.of(*VALID_RUN, *kill), seed=8, seconds=1.0)
    assert (two.counts["broker kills"], two.counts["losses of a host"]) == (2, 1)
    report = summarize([json.loads(as_json(each)) for each in (one, two)])
    assert "all: 14 sent, 10 acknowledged" in report
    assert report.count("SIGKILL of a broker + loss of a host") == 1
    assert "NOT GOOD" not in report


def test_pause_is_the_longest_time_without_acknowledgement() -> None:
    fault = Fault("f", "h", 10.0, 12.0)
    assert pause([9.0, 10.5, 13.0, 13.5, 30.0], fault, until=20.0) == 6.5
    assert pause([9.0, 10.5, 13.0, 13.5, 30.0], fault, until=13.2) == 2.5
    assert pause([9.0, 13.0, 30.0], fault, until=20.0) == 7.0
    assert pause([9.0, 30.0], fault, until=20.0) == 20.0
    assert pause([9.0], fault, until=20.0) == float("inf")
    assert silence([9.0, 13.0], since=12.0, until=20.0) == 1.0
    assert silence([9.0, 30.0], since=12.0, until=20.0) == 8.0
    assert silence([9.0], since=12.0, until=20.0) == 8.0


def test_verdict_has_counts_and_seed() -> None:
    verdict = judge(Recorded.of(*VALID_RUN, *PLANTED_VIOLATIONS["two masters"]), seed=7, seconds=1.0, waits=[2.0])
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
    assert elections(Recorded.of(*VALID_RUN)) == 1
    assert "NOT GOOD: seed 7" in verdict.table()
    assert verdict.to_json()["violations"].keys() == {"two masters"}
    assert judge(Recorded.of(*VALID_RUN), seed=7, seconds=1.0).is_good
