"""Test that store directories of a real RocketMQ broker give RocketMQ's answers.

Where ours differ on purpose the test says how and why; everything else is equal.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from raymq.storage.errors import MessageExpired, MessageNotFound, OffsetOutOfRange, QueueNotFound
from raymq.storage.log.checkpoint import Checkpoint
from raymq.storage.records import message_id
from raymq.storage.records.body_compression import decompress
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from raymq.storage.verify import verify
from tests import golden_stores as golden
from tests.golden_stores import Answers


@pytest.mark.parametrize("name", golden.NAMES)
def test_opening_read_only_changes_no_byte(tmp_path: Path, name: str) -> None:
    directory = golden.unpack(name, tmp_path)
    raw = golden.answers(name)["raw"]
    as_written = {file["path"]: (file["size"], file["sha256"]) for file in raw["files"]}
    assert golden.fingerprints(directory) == as_written
    with Store.open(directory, golden.config(name), read_only=True) as store:
        assert store.recovery.clean == (not raw["abort"])
        assert store.recovery.corruption == []
        assert store.max_physical_offset == raw["commitlog"]["end"]
        assert len(list(store.walk(0))) == raw["commitlog"]["records"]
        checkpoint = Checkpoint.load(directory / "checkpoint")
        assert list(raw["checkpoint"].values()) == [
            checkpoint.physical_ms,
            checkpoint.logic_ms,
            checkpoint.index_ms,
            checkpoint.master_flushed_offset,
            checkpoint.confirm_offset,
        ]
        found = verify(directory)
        assert (found.records, found.bad) == (raw["commitlog"]["records"], [])
    assert golden.fingerprints(directory) == as_written


def test_recovery_of_a_golden_store_reports_no_corruption(opened: tuple[Store, Answers]) -> None:
    store, expected = opened
    assert store.recovery.clean == (not expected["raw"]["abort"])
    assert (store.recovery.truncated_bytes, store.recovery.corruption) == (0, [])
    assert store.min_physical_offset == expected["min_physical_offset"]
    assert store.max_physical_offset == expected["max_physical_offset"]


def test_queues_and_entries_equal_rocketmqs(opened: tuple[Store, Answers]) -> None:
    store, expected = opened
    assert store.topics() == sorted({queue["topic"] for queue in expected["queues"]})
    known = {topic: store.queues(topic) for topic in store.topics()}
    assert sum(map(len, known.values())) == len(expected["queues"])
    for queue in expected["queues"]:
        at = queue["topic"], queue["queue"]
        assert queue["queue"] in known[queue["topic"]]
        assert (store.min_offset(*at), store.max_offset(*at)) == (queue["min"], queue["max"])
        entries = store.entries(*at, queue["min"], 1 << 30)
        assert [list(entry) for entry in zip(*(part.tolist() for part in entries), strict=True)] == queue["entries"]


def check_fields(record: Record, message: Answers) -> None:
    fields = {
        **golden.record_fields(record),
        "version": record.version,
        "body_length": len(record.body),
        "body_sha256": hashlib.sha256(record.body).hexdigest(),
    }
    assert fields == {name: message[name] for name in fields}
    # A batch's members keep the unique key that their sender knows; RocketMQ shows the batch's for all of them.
    own = golden.own_unique_key(message)
    assert record.unique_key == own
    assert record.properties == message["properties"] | ({"UNIQ_KEY": own} if own else {})
    content = decompress(record.body, record.sys_flag)
    if "content_sha256" in message:
        assert len(content) == message["content_length"]
        assert hashlib.sha256(content).hexdigest() == message["content_sha256"]
    else:
        assert content is record.body


def test_messages_by_place_and_id_equal_rocketmqs(opened: tuple[Store, Answers]) -> None:
    store, expected = opened
    assert [record.physical_offset for record in store.walk(0)] == [m["physical_offset"] for m in expected["messages"]]
    for message in expected["messages"]:
        check_fields(store.read_at(message["physical_offset"]), message)
        host, port, physical_offset = message_id.decode(message["message_id"])
        assert (f"{host}:{port}", physical_offset) == (message["store_host"], message["physical_offset"])


def test_messages_by_queue_offset_equal_rocketmqs(opened: tuple[Store, Answers]) -> None:
    store, expected = opened
    by_place = {message["physical_offset"]: message for message in expected["messages"]}
    seen = set()
    for queue in expected["queues"]:
        offset = queue["min"]
        while offset < queue["max"]:
            with store.read(queue["topic"], queue["queue"], offset, 7) as lease:
                for number, record in enumerate(lease.messages(), offset):
                    assert record.queue_offset == number
                    check_fields(record, by_place[record.physical_offset])
                    seen.add(record.physical_offset)
                assert bytes(lease.records) == b"".join(store.raw_at(r.physical_offset) for r in lease.messages())
                offset = lease.next_offset
    assert seen == by_place.keys()


def test_tags_codes_equal_rocketmqs(opened: tuple[Store, Answers]) -> None:
    store, expected = opened
    for message in expected["messages"]:
        at = message["topic"], message["queue"], message["queue_offset"]
        assert store.entries(*at, 1)[2].tolist() == [message["tags_code"]]
        found = store.read(*at, 1, tags_codes={message["tags_code"]})
        assert [record.physical_offset for record in found.messages()] == [message["physical_offset"]]


def test_offsets_by_time_equal_rocketmqs(opened: tuple[Store, Answers]) -> None:
    store, expected = opened
    assert len(expected["queries"]["by_time"]) > 50
    for request in expected["queries"]["by_time"]:
        at = request["topic"], request["queue"], request["timestamp"]
        if request["queue"] not in store.queues(request["topic"]):
            # RocketMQ returns 0 for a queue that does not exist; RayMQ raises an error.
            assert request["lower"] == request["upper"] == 0
            with pytest.raises(QueueNotFound):
                store.offset_at_time(*at)
            continue
        assert store.offset_at_time(*at) == request["lower"]
        assert store.offset_at_time(*at, boundary="upper") == request["upper"]


def test_reads_beyond_bounds_match_rocketmqs_statuses(opened: tuple[Store, Answers]) -> None:
    # Each status of RocketMQ's `getMessage` has a counterpart in RayMQ.
    store, expected = opened
    statuses = set()
    for request in expected["queries"]["get"]:
        at = request["topic"], request["queue"], request["offset"]
        statuses.add(request["status"])
        match request["status"]:
            case "FOUND":
                with store.read(*at, request["max"]) as lease:
                    found = [record.physical_offset for record in lease.messages()]
                    # RocketMQ limits an answer to 256 KiB or 8 messages "from disk"; RayMQ has no such limit.
                    assert found[: len(request["physical_offsets"])] == request["physical_offsets"]
                    assert lease.next_offset == request["offset"] + len(found)
            case "OFFSET_TOO_SMALL" | "OFFSET_OVERFLOW_BADLY":
                with pytest.raises(OffsetOutOfRange) as caught:
                    store.read(*at)
                bounds = caught.value.min_offset, caught.value.max_offset
                assert bounds == (request["min"], request["max_offset"])
                assert request["next_begin"] == bounds[request["status"] == "OFFSET_OVERFLOW_BADLY"]
            case "OFFSET_OVERFLOW_ONE":
                with store.read(*at) as lease:
                    assert (len(lease), lease.next_offset) == (0, request["next_begin"])
            case "NO_MESSAGE_IN_QUEUE":
                with pytest.raises(QueueNotFound):
                    store.read(*at)
            case unknown:
                raise AssertionError(unknown)
    assert len(statuses) == 5


def test_places_outside_the_log_raise_errors(opened: tuple[Store, Answers]) -> None:
    store, expected = opened
    places = [message["physical_offset"] + 1 for message in expected["messages"][:20]]
    places += [blank["physical_offset"] for blank in expected["blanks"]]
    for place in [*places, expected["max_physical_offset"]]:
        with pytest.raises(MessageNotFound):
            store.read_at(place)
    with pytest.raises(MessageExpired):
        store.read_at(expected["min_physical_offset"] - 1)
