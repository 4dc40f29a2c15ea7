"""Test the totals and the status of a group; unknown is never 0."""

from __future__ import annotations

import pytest

from raymq.client import MessageQueue
from raymq.client.results import GroupProgress, QueueProgress
from raymq.console.cluster_sampler import GroupFigures, group_figures, sum_known
from raymq.console.group_status import group_status
from raymq.console.overview_page import backlog


def progress(*queues: QueueProgress) -> GroupProgress:
    return GroupProgress({MessageQueue("t", "broker-a", number): each for number, each in enumerate(queues)})


def figures(*queues: QueueProgress, rate: float | None = None) -> GroupFigures:
    return group_figures(progress(*queues), rate, 0, 100.0)


CAUGHT_UP = QueueProgress(5, 5, 0, "me", True, 0, 0, 0.0)
BEHIND = QueueProgress(5, 9, 4, "me", True, 1, 3, 90.0)
LEFT_ALONE = QueueProgress(5, 9, 4, None, None, 0, 4, 90.0)
UNKNOWN = QueueProgress(None, None, None, None)
NEVER_COMMITTED = QueueProgress(None, 7, None, None, True)
EMPTY_AND_NEVER_COMMITTED = QueueProgress(None, 0, None, None, True)
NOT_SUBSCRIBED = QueueProgress(0, 100, 100, None, False, 0, 100, 900.0)


def test_totals_are_sums_of_what_is_known() -> None:
    found = figures(BEHIND, CAUGHT_UP, NOT_SUBSCRIBED)
    assert (found.lag, found.lag_partly_unknown, found.in_flight, found.ready) == (4, False, 1, 3)
    assert (found.oldest_age, found.has_members, found.owners) == (90.0, True, ["me"])


def test_number_in_flight_is_unknown_if_it_is_for_a_queue_with_a_lag() -> None:
    read_by_a_pull_consumer = QueueProgress(5, 9, 4, None, None, None, 4, 90.0)
    found = figures(read_by_a_pull_consumer, CAUGHT_UP)
    assert (found.lag, found.in_flight, found.ready) == (4, None, 4)


@pytest.mark.parametrize(
    ("queues", "lag", "partly"),
    [
        ((UNKNOWN,), None, False),
        ((), None, False),
        ((BEHIND, UNKNOWN), 4, True),
        ((BEHIND, NEVER_COMMITTED), 4, True),
        ((BEHIND, EMPTY_AND_NEVER_COMMITTED), 4, False),
    ],
)
def test_unknown_lag_is_not_zero(queues: tuple[QueueProgress, ...], lag: int | None, partly: bool) -> None:
    found = figures(*queues)
    assert (found.lag, found.lag_partly_unknown) == (lag, partly)


@pytest.mark.parametrize(
    ("queues", "is_complete"), [((BEHIND, NEVER_COMMITTED), True), ((BEHIND, UNKNOWN), False), ((UNKNOWN,), False)]
)
def test_figures_say_whether_every_broker_answered(queues: tuple[QueueProgress, ...], is_complete: bool) -> None:
    assert figures(*queues).is_complete is is_complete


def test_sum_of_nothing_known_is_unknown() -> None:
    assert sum_known([None, None]) is None
    assert sum_known([]) is None
    assert sum_known([None, 0]) == 0


@pytest.mark.parametrize(
    ("found", "level", "text"),
    [
        (None, "unknown", "not sampled yet"),
        (figures(UNKNOWN), "unknown", "lag unknown"),
        (figures(CAUGHT_UP, UNKNOWN), "unknown", "lag partly unknown"),
        (figures(CAUGHT_UP), "good", "caught up"),
        (figures(QueueProgress(5, 5, 0, None, None)), "idle", "no member"),
        (figures(LEFT_ALONE), "bad", "no member connected"),
        (figures(BEHIND, rate=2.0), "busy", "working"),
        (figures(BEHIND, rate=None), "busy", "working"),
        (figures(QueueProgress(5, 9, 4, "me", True, 1, 3, 0.5), rate=0.0), "good", "keeps up"),
        (figures(BEHIND, rate=0.0), "bad", "does not move"),
    ],
)
def test_status_in_a_word(found: GroupFigures | None, level: str, text: str) -> None:
    status = group_status(found)
    assert (status.level, status.text) == (level, text)


def test_backlog_lists_what_stands_still_first() -> None:
    groups = {
        "fine": figures(CAUGHT_UP),
        "busy": figures(BEHIND, rate=1.0),
        "lonely": figures(LEFT_ALONE),
        "odd": figures(UNKNOWN),
    }
    assert [name for name, _ in backlog(groups)] == ["lonely", "odd", "busy"]
