"""Test changes of topics and groups by an administrator, and the progress of groups."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.actors.broker.core.reading.fetch_session import FetchSession
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.broker.core.topic_manager import TopicChange
from raymq.actors.errors import (
    GroupNotFound,
    InvalidInput,
    OffsetReset,
    PermissionDenied,
    TopicNotFound,
    UnknownAttribute,
)
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.protocol import MessageQueue
from raymq.client import Message
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.errors import StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.files.json_file import DataVersion
from raymq.storage.log.commit_log import CommitLog
from tests.faulty_calls import FaultyCalls
from tests.unit.actors.bench import Bench
from tests.validation import check_invariants


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def consumption(bench: Bench) -> ConsumeStats:
    return ConsumeStats(bench.core, ClientRegistry(bench.clock), Statistics(bench.clock))


def test_topic_change_survives_crash(bench: Bench) -> None:
    change = TopicChange("t", 3, 2, 4, True, {"+message.type": "FIFO"}, "MULTI_TAG", 1)
    bench.core.topics.change([change])
    bench.crash()
    known = bench.core.topics.get("t")
    assert (known.read_queues, known.write_queues, known.perm, known.order) == (3, 2, 4, True)
    assert known.attributes == {"message.type": "FIFO"}
    assert (known.to_json()["topicFilterType"], known.to_json()["topicSysFlag"]) == ("MULTI_TAG", 1)


@pytest.mark.parametrize("nth", range(1, 9))
def test_topic_delete_on_full_disk_leaves_no_offsets(bench: Bench, nth: int) -> None:
    bench.core.topics.create("t", 1)
    bench.core.ensure_group("g")
    bench.append(*(Message("t", b"%d" % n) for n in range(20)))
    bench.core.offsets.commit("g", "t", 0, 15)
    bench.core.ensure_group("poppers")
    asked = PopRequest("poppers", "t", range(1), 3, 1 << 20, 30_000, 16)
    popped_ms = bench.core.pop.receive(asked).pop_time_ms
    calls = FaultyCalls("write", nth, errno.ENOSPC)
    with replaced(calls), contextlib.suppress(StoreFull):
        bench.core.topics.delete("t")
    _, end = bench.core.bounds("t", 0) if "t" in bench.core.topics else (0, 0)
    assert (end, bench.core.offsets.get("g", "t", 0)) in ((20, 15), (0, None))
    if end == 0:  # an old handle acknowledges nothing of the new topic
        bench.core.topics.create("t", 1)
        bench.append(*(Message("t", b"%d" % n) for n in range(3)))
        bench.core.pop.acknowledge("poppers", "t", 0, popped_ms, [0, 1, 2])
        assert [list(queue.taken.offsets) for queue in bench.core.pop.receive(asked).queues] == [[0, 1, 2]]
    check_invariants(bench.core.pop)


def test_attributes_are_set_and_removed_one_by_one(bench: Bench) -> None:
    def altered(**attributes: str) -> Any:
        named = {name.replace("_", "."): value for name, value in attributes.items()}
        bench.core.topics.change([TopicChange("t", 1, 1, attributes=named)])
        return bench.core.topics.get("t").attributes

    def change(changes: dict[str, str]) -> Any:
        bench.core.topics.change([TopicChange("t", 1, 1, attributes=changes)])
        return bench.core.topics.get("t").attributes

    assert change({"+message.type": "DELAY", "+reserve.time": "5"}) == {"message.type": "DELAY", "reserve.time": "5"}
    assert altered() == {"message.type": "DELAY", "reserve.time": "5"}
    assert change({"-reserve.time": ""}) == {"message.type": "DELAY"}


@pytest.mark.parametrize(
    "bad",
    [
        TopicChange("bad name", 1, 1),
        TopicChange("t", 0, 1),
        TopicChange("t", 1, 100_000),
        TopicChange("t", 1, 1, 9),
        TopicChange("SELF_TEST_TOPIC", 1, 1),
        TopicChange("t", 1, 1, filter_type="NO_TAG"),
        TopicChange("t", 1, 1, attributes={"+colour": "red"}),
        TopicChange("t", 1, 1, attributes={"message.type": "FIFO"}),
        TopicChange("t", 1, 1, attributes={"+message.type": "LOUD"}),
        TopicChange("t", 1, 1, attributes={"+reserve.time": "soon"}),
    ],
)
def test_refused_topic_change_changes_nothing(bench: Bench, bad: TopicChange) -> None:
    before = bench.store.topic_configs.version
    with pytest.raises(InvalidInput):
        bench.core.topics.change([TopicChange("good", 1, 1), bad])
    assert "good" not in bench.core.topics
    assert bench.store.topic_configs.version == before


def test_unknown_attribute_has_system_error_code(bench: Bench) -> None:
    with pytest.raises(UnknownAttribute) as caught:
        bench.core.topics.change([TopicChange("t", 1, 1, attributes={"+colour": "red"})])
    assert caught.value.wire_code == "SYSTEM_ERROR"


def test_advertised_queues_follow_topic_changes(bench: Bench) -> None:
    topics = bench.core.topics
    version, table = topics.version, topics.advertised_queues()
    assert topics.changed_since(version) == {}
    topics.create("t", 2)
    assert topics.version != version
    assert topics.advertised_queues()["t"].write_queues == 2
    assert "t" not in table, "a table that was given never changes"
    assert topics.changed_since(version) == {"t": topics.advertised_queues()["t"]}
    between = topics.version
    topics.create("u", 1)
    topics.delete("t")
    assert topics.changed_since(version) == {"t": None, "u": topics.advertised_queues()["u"]}
    assert topics.changed_since(between) == topics.changed_since(version)
    assert topics.changed_since(DataVersion(version.counter - 1_000)) is None, "of before the start nothing is known"
    assert topics.changed_since(DataVersion(topics.version.counter + 1)) is None, "nor of what another broker said"


def test_topic_delete_removes_offsets(bench: Bench) -> None:
    bench.core.topics.create("t", 1)
    bench.core.ensure_group("g")
    bench.append(Message("t", b"1"))
    bench.core.offsets.commit("g", "t", 0, 1)
    assert bench.core.topics.delete("t")
    assert not bench.core.topics.delete("t")
    bench.core.topics.create("t", 1)
    assert bench.core.offsets.get("g", "t", 0) is None
    assert bench.core.bounds("t", 0) == (0, 0)


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "broker-a", "TBW102"])
def test_system_topics_cannot_be_deleted(bench: Bench, name: str) -> None:
    with pytest.raises(PermissionDenied):
        bench.core.topics.delete(name)


def test_group_change_keeps_other_settings(bench: Bench) -> None:
    groups = bench.core.group_settings
    assert groups.change([{"groupName": "g", "retryMaxTimes": 5, "retryQueueNums": 2, "consumeEnable": False}])
    assert not groups.change([{"groupName": "g", "notASetting": "x" * 1000}])
    bench.crash()
    known = bench.core.group_settings.get("g")
    assert (known.retry_max_times, known.retry_queues, known.consume_enable) == (5, 2, False)
    assert "notASetting" not in known.to_json()
    assert bench.core.topics.get("%RETRY%g").read_queues == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"groupName": "bad name"},
        {"groupName": "g", "retryMaxTimes": "5"},
        {"groupName": "g", "retryQueueNums": -1},
        {"groupName": "g", "consumeEnable": 1},
        {"groupName": "g", "attributes": ["x"]},
    ],
)
def test_invalid_group_change_is_refused(bench: Bench, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        bench.core.group_settings.change([{"groupName": "good"}, bad])
    assert bench.core.group_settings.all() == {}


def test_group_delete_removes_offsets_on_request(bench: Bench) -> None:
    bench.core.topics.create("t", 1)
    groups, offsets = bench.core.group_settings, bench.core.offsets
    for with_offsets in (False, True):
        groups.change([{"groupName": "g"}])
        offsets.commit("g", "t", 0, 0)
        groups.delete("g", with_offsets=with_offsets)
        assert offsets.get("g", "t", 0) == (None if with_offsets else 0)
        with pytest.raises(GroupNotFound):
            groups.get("g")


def test_group_can_be_denied_a_topic(bench: Bench) -> None:
    bench.core.group_settings.set_readable("g", "t", False)
    bench.crash()
    groups = bench.core.group_settings
    assert not groups.can_read("g", "t")
    assert groups.can_read("g", "u")
    groups.set_readable("g", "t", True)
    assert groups.can_read("g", "t")
    assert bench.store.group_configs.forbidden == {}


def queue(queue_id: int = 0, topic: str = "t") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def fill_topic(bench: Bench, messages: int) -> None:
    """Create topic t (2 queues), group g, and messages one second apart in queue 0."""
    bench.core.topics.create("t", 2)
    bench.core.ensure_group("g")
    for number in range(messages):
        bench.append(Message("t", b"%d" % number))
        bench.clock.advance(1)


def test_progress_of_group(bench: Bench, consumption: ConsumeStats) -> None:
    fill_topic(bench, 5)
    bench.core.offsets.commit("g", "t", 0, 3)
    found = run_steps(consumption.progress_steps("g"))
    assert set(found) == {queue(0), queue(1), queue(0, "%RETRY%g")}
    assert (found[queue(0)].committed, found[queue(0)].max_offset, found[queue(0)].lag) == (3, 5, 2)
    assert found[queue(0)].last_consumed_ms == 1_700_000_002_000
    assert found[queue(1)].committed is None
    assert set(run_steps(consumption.progress_steps("g", "t"))) == {queue(0), queue(1)}
    assert consumption.topics_of("g") == ["%RETRY%g", "t"]
    assert consumption.groups_of("t") == ["g"]
    for ask in (lambda: run_steps(consumption.progress_steps("none")), lambda: consumption.topics_of("none")):
        with pytest.raises(GroupNotFound):
            ask()
    with pytest.raises(TopicNotFound):
        run_steps(consumption.progress_steps("g", "none"))


def test_time_spans_of_group(bench: Bench, consumption: ConsumeStats) -> None:
    fill_topic(bench, 5)
    bench.core.offsets.commit("g", "t", 0, 3)
    start_ms = 1_700_000_000_000
    span = run_steps(consumption.time_span_steps("g", "t"))[queue(0)]
    assert (span.first_ms, span.last_ms, span.consumed_ms) == (start_ms, start_ms + 4000, start_ms + 2000)
    assert span.delay_ms == 2000
    empty = run_steps(consumption.time_span_steps("g", "t"))[queue(1)]
    assert (empty.first_ms, empty.last_ms, empty.consumed_ms, empty.delay_ms) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"timestamp_ms": 1_700_000_002_000}, {0: 2, 1: 0}),
        ({"timestamp_ms": -1}, {0: 5, 1: 0}),
        ({"timestamp_ms": 1_700_000_002_000, "queue_id": 0}, {0: 2}),
        ({"timestamp_ms": -1, "queue_id": 0, "offset": 4}, {0: 4}),
        ({"timestamp_ms": -1, "queue_id": 0, "back_only": True}, {0: 3}),
        ({"timestamp_ms": 0, "queue_id": 0, "back_only": True}, {0: 0}),
        ({"timestamp_ms": 0, "queue_id": 0, "offset": 5, "back_only": True}, {0: 5}),
    ],
)
def test_reset_by_time_or_offset(
    bench: Bench, consumption: ConsumeStats, asked: dict[str, Any], expected: dict[int, int]
) -> None:
    fill_topic(bench, 5)
    bench.core.offsets.commit("g", "t", 0, 3)
    assert run_steps(consumption.reset_steps("g", "t", **asked)) == {
        queue(number): offset for number, offset in expected.items()
    }
    for number, offset in expected.items():
        assert bench.core.offsets.get("g", "t", number) == offset


def test_invalid_reset_changes_nothing(bench: Bench, consumption: ConsumeStats) -> None:
    fill_topic(bench, 5)
    with pytest.raises(InvalidInput):
        run_steps(consumption.reset_steps("g", "t", timestamp_ms=-1, queue_id=0, offset=6))
    with pytest.raises(GroupNotFound):
        run_steps(consumption.reset_steps("none", "t", timestamp_ms=-1))
    with pytest.raises(TopicNotFound):
        run_steps(consumption.reset_steps("g", "none", timestamp_ms=-1))
    assert bench.core.offsets.get("g", "t", 0) is None


def test_reset_by_time_searches_offsets_in_steps(
    bench: Bench, consumption: ConsumeStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard against a loop stop by many damaged records in a row."""
    fill_topic(bench, 2_000)
    bench.core.offsets.commit("g", "t", 0, 3)
    monkeypatch.setattr(CommitLog, "has_record_header", lambda *_: False)
    steps = consumption.reset_steps("g", "t", timestamp_ms=1_700_000_001_000)
    for _ in range(5):
        next(steps)
    assert bench.core.offsets.get("g", "t", 0) == 3
    steps.close()
    assert bench.core.offsets.get("g", "t", 0) == 3, "who asked is gone"
    run_steps(consumption.reset_steps("g", "t", timestamp_ms=1_700_000_001_000))
    assert bench.core.offsets.get("g", "t", 0) == run_steps(bench.core.search_time("t", 0, 1_700_000_001_000)) != 3


def test_reset_changes_all_queues_or_none(bench: Bench, consumption: ConsumeStats) -> None:
    bench.core.topics.create("wide", 1_000)
    bench.core.make_group("g")
    for number in range(1_000):
        bench.append(Message("wide", b"x"), queue_id=number)
    steps = consumption.reset_steps("g", "wide", timestamp_ms=-1)
    for _ in range(9):
        next(steps)
    steps.close()
    assert {bench.core.offsets.get("g", "wide", number) for number in range(1_000)} == {None}
    run_steps(consumption.reset_steps("g", "wide", timestamp_ms=-1))
    assert {bench.core.offsets.get("g", "wide", number) for number in range(1_000)} == {1}


def test_offsets_are_copied_between_groups(bench: Bench, consumption: ConsumeStats) -> None:
    fill_topic(bench, 5)
    bench.core.ensure_group("h")
    bench.core.offsets.commit("g", "t", 0, 3)
    run_steps(consumption.copy_offsets_steps("g", "h", None))
    assert bench.core.offsets.get("h", "t", 0) == 3
    assert bench.core.offsets.get("h", "%RETRY%g", 0) is None
    with pytest.raises(GroupNotFound):
        run_steps(consumption.copy_offsets_steps("g", "none", "t"))


def test_offsets_of_removed_queues_are_not_copied(bench: Bench, consumption: ConsumeStats) -> None:
    """Guard against a copy that stopped at removed queues on every try."""
    fill_topic(bench, 5)
    bench.core.ensure_group("h")
    for topic in ("a", "z"):
        bench.core.topics.create(topic, 4)
        for queue_id in range(4):
            bench.append(Message(topic, b"x"), queue_id=queue_id)
            bench.core.offsets.commit("g", topic, queue_id, 1)
    bench.core.topics.change([TopicChange("a", 2, 2)])
    run_steps(consumption.copy_offsets_steps("g", "h", None))
    assert bench.store.consumer_offsets.of("h", "a") == {0: 1, 1: 1}
    assert bench.store.consumer_offsets.of("h", "z") == dict.fromkeys(range(4), 1)


def test_fetch_reports_reset_until_followed(bench: Bench) -> None:
    fill_topic(bench, 5)
    bench.core.reset_offset("g", "t", 0, 2)

    def fetched(offset: int, group: str | None = "g") -> Any:
        (part,) = FetchSession(bench.core, [FetchSpec("t", 0, offset)], 10, 1 << 20, group).read_available()
        return part.error.offset if isinstance(part.error, OffsetReset) else part.offsets.tolist()

    assert (fetched(4), fetched(4)) == (2, 2)
    assert not bench.core.offsets.commit("g", "t", 0, 5), "who has not gone there cannot know what it commits"
    assert fetched(4, None) == [4]
    assert fetched(2) == [2, 3, 4]
    assert fetched(4) == [4]
    assert bench.core.offsets.commit("g", "t", 0, 5)


def test_commit_may_overrule_reset(bench: Bench) -> None:
    fill_topic(bench, 5)
    bench.core.reset_offset("g", "t", 0, 2)
    assert bench.core.offsets.commit("g", "t", 0, 4, overrules_reset=True)
    assert bench.core.offsets.get("g", "t", 0) == 4
    assert bench.core.offsets.follow_reset("g", "t", 0, 0) is None
