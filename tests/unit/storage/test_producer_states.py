"""Test the saved states of producers: the position is never ahead of the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raymq.storage.files.json_file import DECODE_ERRORS
from raymq.storage.journal.journaled_table import Fields
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.tables import producer_states
from raymq.storage.tables.producer_states import ProducerStates, lane_events, position_event
from tests.state_journals import open_table, open_tables


@pytest.fixture(autouse=True)
def small_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_states, "EVENT_LANES", 2)


def row(lane: int, state: int, topic: str = "t") -> list[Any]:
    return [f"p{lane}", topic, lane, state, [[0, "t", 0, 0, 1]]]


def content(table: ProducerStates) -> tuple[dict[tuple[str, int], int], int]:
    return {(topic, queue_id): state for _, topic, queue_id, state, _ in table.rows()}, table.position


def test_saved_lanes_survive_restart_and_snapshot(tmp_path: Path) -> None:
    table = ProducerStates()
    journal = open_tables(tmp_path, table)
    table.put([row(lane, lane) for lane in range(5)])
    table.advance(700)
    table.put([["p1", "t", 1], row(2, 22)])
    expected = {("t", lane): state for lane, state in ((0, 0), (2, 22), (3, 3), (4, 4))}, 700
    assert content(table) == content(open_table(tmp_path, ProducerStates(), writable=False)) == expected
    journal.close(compact=True)
    assert content(open_table(tmp_path, ProducerStates())) == expected


def test_snapshot_has_no_position_ahead_of_its_rows() -> None:
    # Changes go on while a snapshot is written: it may have newer rows with an older position, never the reverse.
    table, copy = ProducerStates(), ProducerStates()
    for fields in (*lane_events([row(lane, 1, f"t{lane}") for lane in range(3)]), position_event(100)):
        table.apply(fields)
    for number, fields in enumerate(table.snapshot()):
        copy.apply(fields)
        if number == 0:
            for later in (*lane_events([row(lane, 2, f"t{lane}") for lane in range(3)]), position_event(200)):
                table.apply(later)
    assert copy.position == 100
    assert 2 in content(copy)[0].values()


def test_position_behind_lost_events_is_not_applied() -> None:
    table = ProducerStates()
    table.apply(position_event(100))
    for fields in (*lane_events([row(1, 1)]), position_event(200)):
        table.apply_after_loss(fields)
    assert content(table) == ({("t", 1): 1}, 100)


@pytest.mark.parametrize(("log_end", "position"), [(99, 99), (100, 100), (101, 100)])
def test_position_is_clamped_to_the_log(log_end: int, position: int) -> None:
    table = ProducerStates()
    table.apply(position_event(100))
    for fields in list(table.clamp(RecoveryBounds(log_end))):
        table.apply(fields)
    assert table.position == position


def test_deleted_topic_takes_its_lanes() -> None:
    table = ProducerStates()
    for fields in lane_events([row(1, 1), row(2, 2, "other")]):
        table.apply(fields)
    table.forget_topic("t", 50)
    table.forget_topic("none", 50)
    assert content(table)[0] == {("other", 2): 2}


@pytest.mark.parametrize(
    "fields", [(), ("x", 1), ("p", "a"), ("l", 7), ("l", [["p", "t", 0]]), ("l", [["p", "t", "q", b"x"]])]
)
def test_event_that_is_no_state_is_refused(fields: Fields) -> None:
    table = ProducerStates()
    with pytest.raises(DECODE_ERRORS):
        table.apply(fields)
    assert content(table) == ({}, 0)
