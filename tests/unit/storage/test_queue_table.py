"""Test that operations on one topic's queues do not visit other topics."""

from __future__ import annotations

from typing import Any, cast

from raymq.storage.log.queue_table import QueueTable


class Counting(dict[str, set[int]]):
    """Count the iterations over all topics."""

    walks = 0

    def __iter__(self) -> Any:
        self.walks += 1
        return super().__iter__()


def test_topic_is_found_and_taken_without_visiting_others() -> None:
    table = QueueTable()
    table._ids = counting = Counting()
    for number in range(100):
        for queue_id in (3, 0, 1):
            table[f"t{number}", queue_id] = cast("Any", (number, queue_id))
    assert table.of("t7") == [0, 1, 3]
    assert table.of("none") == table.take("none") == []
    assert sorted(table.take("t7")) == [(7, 0), (7, 1), (7, 3)]
    assert table.of("t7") == []
    assert counting.walks == 0
    assert ("t7", 3) not in table
    assert len(table) == 3 * 99
    assert table.topics() == sorted(f"t{number}" for number in range(100) if number != 7)
