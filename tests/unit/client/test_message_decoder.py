"""Test that lazily decoded messages equal those decoded at once."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
import tracemalloc
import zlib

import numpy as np
import pytest

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch_commands import Fetched
from raymq.actors.wire.headers.pop_headers import ReceiptHandle
from raymq.client.message import Message, ReceivedMessage
from raymq.client.message_decoder import FEW_RECORDS, decode_messages
from raymq.client.receipt import Receipt
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records.record import (
    OFFSET_QUEUE_OFFSET,
    OFFSET_SYS_FLAG,
    QUEUE_AND_PHYSICAL_OFFSET,
    SYS_FLAG_COMPRESSED,
    decode,
    encode,
)

pytestmark = pytest.mark.usefixtures("batch_code")

QUEUE = MessageQueue("t", "broker-a", 0)
COUNT = FEW_RECORDS * 3
BORN_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x50"


def fetched_part(count: int = COUNT, body: bytes = b"body-%d") -> Fetched:
    messages = [
        Message("t", body % n, tags=f"tag{n}" if n % 2 else None, keys=["k", f"k{n}"], properties={"n": str(n)})
        for n in range(count)
    ]
    records = [bytearray(message.encode(1_700_000_000_000 + n, BORN_HOST)) for n, message in enumerate(messages)]
    sizes = np.array([len(record) for record in records], np.int32)
    offsets = np.arange(count) * 3 + 1_000  # as after a filter
    for record, offset in zip(records, offsets.tolist(), strict=True):
        QUEUE_AND_PHYSICAL_OFFSET.pack_into(record, OFFSET_QUEUE_OFFSET, offset, 0)
    return Fetched(0, count, 0, count, memoryview(b"".join(records)), sizes, offsets, None)


def decoded_at_once(fetched: Fetched) -> list[ReceivedMessage]:
    ends = np.cumsum(fetched.sizes).tolist()
    starts = [0, *ends[:-1]]
    return [ReceivedMessage.from_record(decode(fetched.records, start), QUEUE.broker) for start in starts]


@pytest.mark.parametrize("count", [1, FEW_RECORDS, COUNT])
def test_lazily_decoded_messages_equal_decoded_ones(count: int) -> None:
    fetched = fetched_part(count)
    late, whole = decode_messages(fetched, QUEUE), decoded_at_once(fetched)
    assert [dataclasses.asdict(message) for message in late] == [dataclasses.asdict(message) for message in whole]
    assert repr(late) == repr(whole)


def test_bodies_of_equal_length_are_decoded() -> None:
    fetched = fetched_part(body=b"%09d")
    late = decode_messages(fetched, QUEUE)
    assert repr(late) == repr(decoded_at_once(fetched))
    assert {type(message.body) for message in late} == {bytes}


@pytest.mark.parametrize("body", [b"body-%d", b"%09d"])
def test_flipped_bit_raises_store_corrupt(body: bytes) -> None:
    fetched = fetched_part(body=body)
    damaged = bytearray(fetched.records)
    damaged[damaged.index(body % 71) + 2] ^= 1
    with pytest.raises(StoreCorrupt) as caught:
        decode_messages(dataclasses.replace(fetched, records=memoryview(damaged)), QUEUE)
    assert caught.value.offset == fetched.sizes[:71].sum()


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ReceivedMessage)])
def test_any_field_can_be_read_first(field: str) -> None:
    fetched = fetched_part()
    late, whole = decode_messages(fetched, QUEUE)[7], decoded_at_once(fetched)[7]
    assert getattr(late, field) == getattr(whole, field)
    assert dataclasses.asdict(late) == dataclasses.asdict(whole)


def test_messages_can_be_copied_and_pickled() -> None:
    fetched = fetched_part()
    whole = dataclasses.asdict(decoded_at_once(fetched)[5])
    for copied in (copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))):
        assert dataclasses.asdict(copied(decode_messages(fetched, QUEUE)[5])) == whole
    assert dataclasses.replace(decode_messages(fetched, QUEUE)[5], reconsume_times=3).reconsume_times == 3


def test_received_messages_compare_and_hash_by_position() -> None:
    fetched = fetched_part()
    first, second = decode_messages(fetched, QUEUE), decoded_at_once(fetched)
    assert first == second
    assert {*first, *second} == set(first)
    assert len({*first, *second}) == len(first)
    assert first[5] != dataclasses.replace(second[5], queue=MessageQueue("t", "broker-b", 0))
    assert first[5] != dataclasses.replace(second[5], queue_offset=0)
    assert first[5] != dataclasses.replace(second[5], unique_key=None)
    foreign = [dataclasses.replace(message, unique_key=None) for message in first]
    assert len(set(foreign)) == len(foreign)
    assert first[0] != first[0].queue


def test_receipt_stays_with_the_message_outside_its_fields() -> None:
    fetched = fetched_part()
    receipt = Receipt(ReceiptHandle(0, 1, 2, 0, "0", "broker-a", 0, 5))
    message = ReceivedMessage.from_record(decode(fetched.records, 0), QUEUE.broker, receipt)
    assert "receipt" not in dataclasses.asdict(message)
    assert "receipt" not in repr(message)
    for copied in (copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))):
        assert copied(message).receipt == receipt
    assert message.with_failure().receipt is receipt
    assert decode_messages(fetched, QUEUE)[0].receipt is None


def test_received_message_is_frozen() -> None:
    message = decode_messages(fetched_part(), QUEUE)[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.body = b""  # type: ignore[misc]
    with pytest.raises(AttributeError, match="priority"):
        message.priority  # type: ignore[attr-defined] # noqa: B018


def test_many_threads_can_read_at_once() -> None:
    fetched = fetched_part()
    messages, whole = decode_messages(fetched, QUEUE), decoded_at_once(fetched)
    start = threading.Barrier(4)
    seen: list[list[str]] = []

    def look() -> None:
        start.wait(10)
        seen.append([message.properties["n"] + str(message.keys) for message in messages])

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen == [[message.properties["n"] + str(message.keys) for message in whole]] * 4


@pytest.mark.parametrize("count", [1, COUNT])
def test_body_that_fails_to_decompress_is_returned_as_is(count: int) -> None:
    fetched = fetched_part(count)
    records = bytearray(fetched.records)
    records[OFFSET_SYS_FLAG + 3] |= SYS_FLAG_COMPRESSED
    messages = decode_messages(dataclasses.replace(fetched, records=memoryview(records)), QUEUE)
    assert [message.body for message in messages] == [b"body-%d" % n for n in range(count)]


def test_bodies_are_decompressed_on_first_access(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 13.21: a fetch of 8 MiB of compressed bodies took gigabytes of memory."""
    plain = bytes(16 << 20)
    record = encode("t", 0, zlib.compress(plain, 9), b"", born_timestamp_ms=1, born_host=("127.0.0.1", 1))
    flagged = bytearray(record)
    flagged[OFFSET_SYS_FLAG + 3] |= SYS_FLAG_COMPRESSED
    sizes = np.full(200, len(flagged), np.int32)
    fetched = Fetched(0, 200, 0, 200, memoryview(bytes(flagged) * 200), sizes, np.arange(200), None)
    tracemalloc.start()
    try:
        messages = decode_messages(fetched, QUEUE)
        assert [message.tags for message in messages] == [None] * 200
        assert tracemalloc.get_traced_memory()[1] < 200 * 2 * len(flagged) + (8 << 20)
    finally:
        tracemalloc.stop()
    assert messages[0].body == plain
    assert messages[0].body is messages[0].body
    again = pickle.loads(pickle.dumps(messages[1]))
    assert again == messages[1]
    assert again.body == plain
