"""Property tests over random records and operations: the codec, and a store against a model in plain Python."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raymq.storage.errors import OffsetOutOfRange, QueueNotFound, StoreCorrupt
from raymq.storage.files.file_calls import replaced
from raymq.storage.records import record as layout
from raymq.storage.records.record_batch import BadRecord, parse
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig
from tests.faulty_calls import UnsyncedCalls
from tests.store_records import SMALL, append, make_record

pytestmark = pytest.mark.crash

names = st.text("abcXYZ019_-%|", min_size=1, max_size=127)
texts = st.text(st.characters(blacklist_characters="\0\1\2", blacklist_categories=["Cs"]), max_size=30)
hosts = st.one_of(st.ip_addresses(v=4).map(str), st.sampled_from(["::1", "2001:db8::1", "fe80::1:2:3"]))


@st.composite
def stored_records(draw: st.DrawFn) -> tuple[bytes, dict[str, object]]:
    fields = {
        "topic": draw(names),
        "queue_id": draw(st.integers(0, 2**31 - 1)),
        "body": draw(st.binary(min_size=1, max_size=300)),
        "properties": draw(st.dictionaries(st.text("abcDEF", min_size=1, max_size=9), texts.filter(bool), max_size=5)),
        "born_timestamp_ms": draw(st.integers(0, 2**62)),
        "born_host": (draw(hosts), draw(st.integers(0, 65535))),
    }
    record = layout.encode(
        fields["topic"],  # type: ignore[arg-type]
        fields["queue_id"],  # type: ignore[arg-type]
        fields["body"],  # type: ignore[arg-type]
        layout.encode_properties(fields["properties"]),  # type: ignore[arg-type]
        born_timestamp_ms=fields["born_timestamp_ms"],  # type: ignore[arg-type]
        born_host=fields["born_host"],  # type: ignore[arg-type]
    )
    return record, fields


@given(stored_records())
def test_encoded_record_decodes_to_same_fields(encoded: tuple[bytes, dict[str, object]]) -> None:
    record, fields = encoded
    decoded = layout.decode(record)
    assert decoded.size == layout.measure(record, 0, len(record)) == len(record)
    for name in ("topic", "queue_id", "body", "born_timestamp_ms", "properties"):
        assert getattr(decoded, name) == fields[name]


@given(st.lists(stored_records(), min_size=1, max_size=30))
def test_batch_parse_matches_single_records(encoded: list[tuple[bytes, dict[str, object]]]) -> None:
    records = [record for record, _ in encoded]
    batch = parse(b"".join(records), np.array([len(record) for record in records], np.int32))
    found: dict[int, tuple[str, int]] = {}
    for group in batch.groups:
        members = range(len(batch)) if group.members is None else group.members.tolist()
        found.update(dict.fromkeys(members, (group.topic, group.queue_id)))
    assert [found[i] for i in range(len(records))] == [(fields["topic"], fields["queue_id"]) for _, fields in encoded]


@given(stored_records(), st.data())
def test_batch_parse_accepts_no_damage_single_decode_refuses(
    encoded: tuple[bytes, dict[str, object]], data: st.DataObject
) -> None:
    record = bytearray(encoded[0])
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] ^= data.draw(st.integers(1, 255))
    try:
        single = layout.measure(record, 0, len(record)) == len(record)
    except StoreCorrupt:
        single = False
    try:
        parse(bytes(record), np.array([len(record)], np.int32))
        many = True
    except BadRecord:
        many = False
    # A batch also checks names of topics and queues, and the record's size.
    assert single or not many
    body_at = layout.OFFSET_BODY + (12 if ":" in str(encoded[1]["born_host"]) else 0)
    if body_at <= at < body_at + len(encoded[1]["body"]):  # type: ignore[arg-type]
        assert not single


@given(st.binary(max_size=400))
def test_decode_of_random_bytes_raises_only_store_corrupt(content: bytes) -> None:
    try:
        layout.decode(content)
    except StoreCorrupt as error:
        assert error.reason  # noqa: PT017


class StoreMachine(RuleBasedStateMachine):
    """Two topics of two queues each; the model is a list of bodies for each queue."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.calls = replaced(UnsyncedCalls())
        self.calls.__enter__()
        self.queues: dict[tuple[str, int], list[bytes]] = {}
        self.log: list[bytes] = []
        self.committed: dict[tuple[str, int], int] = {}
        self.configured: set[str] = set()
        self.lives = 0
        self.number = 0
        self.store = Store.open(self.directory, SMALL)

    @property
    def directory(self) -> Path:
        return self.root / str(self.lives)

    topic_queues = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1))

    @rule(topic_queues=st.lists(topic_queues, min_size=1, max_size=30), size=st.sampled_from([1, 20, 200]))
    def append(self, topic_queues: list[tuple[str, int]], size: int) -> None:
        records, expected = [], []
        for topic, queue_id in topic_queues:
            body = b"%d:" % self.number + bytes(size)
            records.append(make_record(body, topic=topic, queue_id=queue_id, keys=f"k{self.number}", tags=f"t{size}"))
            queue = self.queues.setdefault((topic, queue_id), [])
            expected.append(len(queue))
            queue.append(body)
            self.log.append(body)
            self.number += 1
        assert append(self.store, *records).queue_offsets.tolist() == expected

    @rule(
        topic_queue=topic_queues,
        at=st.integers(-2, 40),
        count=st.integers(1, 60),
        max_bytes=st.sampled_from([None, 1, 500]),
    )
    def read(self, topic_queue: tuple[str, int], at: int, count: int, max_bytes: int | None) -> None:
        expected = self.queues.get(topic_queue)
        try:
            with self.store.read(*topic_queue, at, count, max_bytes) as lease:
                found = [record.body for record in lease.messages()]
                assert lease.next_offset == at + len(found)
        except QueueNotFound:
            assert expected is None
            return
        except OffsetOutOfRange as error:
            assert expected is not None
            assert not 0 <= at <= len(expected)
            assert (error.min_offset, error.max_offset) == (0, len(expected))  # noqa: PT017 - one of several outcomes
            return
        assert expected is not None
        assert found == expected[at : at + len(found)]
        assert found or at == len(expected)
        assert len(found) == min(count, len(expected) - at) or max_bytes is not None

    @precondition(lambda self: self.number)
    @rule(data=st.data())
    def query(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.number - 1))
        found = [r.body for t in ("a", "b") for r in self.store.query(t, f"k{number}", 0, 1 << 60, 5)]
        assert [body.split(b":")[0] for body in found] == ([b"%d" % number] if self._is_alive(number) else [])

    def _is_alive(self, number: int) -> bool:
        return any(body.startswith(b"%d:" % number) for queue in self.queues.values() for body in queue)

    @rule(topic_queue=topic_queues, offset=st.integers(0, 50))
    def commit(self, topic_queue: tuple[str, int], offset: int) -> None:
        offset = min(offset, len(self.queues.get(topic_queue, ())))
        self.store.consumer_offsets.commit("g", *topic_queue, offset)
        self.committed[topic_queue] = offset

    @rule(name=st.sampled_from(["x", "y", "z"]))
    def configure(self, name: str) -> None:
        self.store.topic_configs.put(TopicConfig(name, 1, 1))
        self.configured.add(name)

    @rule()
    def save_checkpoint(self) -> None:
        self.store._save_checkpoint()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.directory, SMALL)
        assert self.store.recovery.clean

    @rule()
    def crash(self) -> None:
        """Kill the process: the next one finds a copy of the files at this moment."""
        before = self.directory
        self.lives += 1
        shutil.copytree(before, self.directory)
        self.store.close()
        shutil.rmtree(before)
        self.store = Store.open(self.directory, SMALL)
        assert not self.store.recovery.clean
        assert self.store.recovery.truncated_bytes == 0

    @rule(what=st.sampled_from(["consumequeue", "index", "raymq/state.json", "checkpoint"]))
    def lose_derived_files(self, what: str) -> None:
        self.store.close()
        path = self.directory / what
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        self.store = Store.open(self.directory, SMALL)

    @invariant()
    def agrees(self) -> None:
        assert self.store.recovery.corruption == []
        assert {(t, q) for t in self.store.topics() for q in self.store.queues(t)} == set(self.queues)
        for topic_queue, expected in self.queues.items():
            assert (self.store.min_offset(*topic_queue), self.store.max_offset(*topic_queue)) == (0, len(expected))
        for topic_queue, offset in self.committed.items():
            assert self.store.consumer_offsets.get("g", *topic_queue) == offset
        assert set(self.store.topic_configs.all()) == self.configured

    def teardown(self) -> None:
        assert [record.body for record in self.store.walk(0)] == self.log
        self.store.close()
        self.calls.__exit__(None, None, None)
        shutil.rmtree(self.root)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
