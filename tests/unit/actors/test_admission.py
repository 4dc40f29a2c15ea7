"""Test each limit of a broker's appends, and the refusal beyond it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.actors.broker.core.appending.admission import BEAT_SECONDS, Admission, AdmissionLimits, refusal_cause
from raymq.actors.errors import RayMQError, ServerBusy, StoreFailed, StoreFull, TopicNotFound
from tests.unit.actors.clock import FakeClock
from tests.validation import validated

LIMITS = AdmissionLimits(bytes_under_way=1_000, appends_under_way=3)


@pytest.fixture
def admission(clock: FakeClock) -> Iterator[Admission]:
    with validated(Admission(clock, LIMITS)) as made:
        yield made


def test_appends_under_way_are_bounded(admission: Admission) -> None:
    for _ in range(3):
        admission.enter(1)
    with pytest.raises(ServerBusy) as caught:
        admission.enter(1)
    assert caught.value.wire_code == "SYSTEM_BUSY"
    assert caught.value.bound == "appends_under_way"
    assert caught.value.retriable
    admission.leave(1)
    admission.enter(1)


def test_bytes_under_way_are_bounded(admission: Admission) -> None:
    admission.enter(600)
    with pytest.raises(ServerBusy) as caught:
        admission.enter(401)
    assert caught.value.bound == "bytes_under_way"
    admission.enter(400)
    assert (admission.bytes_under_way, admission.appends_under_way) == (1_000, 2)


def test_single_append_of_any_size_is_admitted(admission: Admission) -> None:
    admission.enter(5_000)
    admission.leave(5_000)


@pytest.mark.parametrize(("late", "refused"), [(0.0, False), (0.199, False), (0.201, True), (5.0, True)])
def test_requests_that_waited_too_long_are_refused(
    admission: Admission, clock: FakeClock, late: float, refused: bool
) -> None:
    admission.beat()
    clock.advance(BEAT_SECONDS + late)
    if refused:
        with pytest.raises(ServerBusy, match="requests wait"):
            admission.enter(1)
        admission.beat()  # late: waiting requests are looked at only now
        with pytest.raises(ServerBusy, match="requests wait"):
            admission.enter(1)
        clock.advance(BEAT_SECONDS)
        admission.beat()
    admission.enter(1)
    admission.leave(1)


def test_stalled_append_reports_busy_page_cache(admission: Admission, clock: FakeClock) -> None:
    admission.beat()
    admission.enter(1)
    began = clock()
    clock.advance(1.1)
    admission.appended(began)
    with pytest.raises(ServerBusy, match="page cache busy"):
        admission.enter(1)
    admission.beat()
    clock.advance(BEAT_SECONDS)
    admission.beat()
    admission.enter(1)
    for _ in range(2):
        admission.leave(1)


def test_admission_without_beats_accepts_late_appends(admission: Admission, clock: FakeClock) -> None:
    clock.advance(1_000)
    admission.enter(1)
    admission.leave(1)


def test_refused_append_changes_no_counters(admission: Admission) -> None:
    admission.enter(1_000)
    before = (admission.bytes_under_way, admission.appends_under_way)
    with pytest.raises(ServerBusy):
        admission.enter(1)
    assert (admission.bytes_under_way, admission.appends_under_way) == before


@pytest.mark.parametrize(
    ("refusal", "cause"),
    [
        (ServerBusy("late", bound="age"), "age"),
        (ServerBusy("busy"), "SYSTEM_BUSY"),
        (StoreFull("full"), "disk_full"),
        (StoreFailed("failed"), "disk_failed"),
        (TopicNotFound("t"), "TOPIC_NOT_EXIST"),
    ],
)
def test_refusal_cause_of_each_error(refusal: RayMQError, cause: str) -> None:
    assert refusal_cause(refusal) == cause
