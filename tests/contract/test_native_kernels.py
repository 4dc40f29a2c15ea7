"""Test that the compiled kernels return what NumPy code returns, for valid and damaged records and columns."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.actors.protocol import MessageQueue
from raymq.client.message import Message, ReceivedMessage
from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.log.index_file import IndexFile
from raymq.storage.log.record_checker import RecordChecker
from raymq.storage.log.record_scan import record_sizes
from raymq.storage.records import native_kernels
from raymq.storage.records.columnar_encoder import join_messages, join_records
from raymq.storage.records.index_inputs import derive_index_inputs
from raymq.storage.records.property_columns import gather
from raymq.storage.records.record import MAX_PROPERTIES_BYTES, encode, encode_properties, pack_host
from raymq.storage.records.record_batch import BadRecord, Batch, parse, stamp
from raymq.storage.records.record_table import table_from_records
from raymq.storage.records.record_template import RecordTemplate
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator

raymq_native = pytest.importorskip("raymq_native")
pytestmark = pytest.mark.contract

T = TypeVar("T")

hosts = st.sampled_from([pack_host("10.0.0.1", 9), pack_host("::1", 9)])
texts = st.text(st.characters(exclude_characters="\x00\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
properties = st.one_of(
    st.dictionaries(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "KEY", "x"]), texts).map(encode_properties),
    st.lists(st.sampled_from([b"KEYS\x01", b"UNIQ_KEY\x01", b"TAGS\x01", b"\x02", b" ", b"k", b"\xc3"])).map(b"".join),
)
records = st.builds(
    lambda topic, queue, body, properties, host, flag: encode(
        topic, queue, body, properties, sys_flag=flag, born_timestamp_ms=1, born_host=host
    ),
    st.sampled_from(["t", "t", "t", "u", "%RETRY%" + "g" * 125, "not a topic"]),
    st.sampled_from([0, 0, 0, 3]),
    st.binary(max_size=200),
    properties,
    hosts,
    st.sampled_from([0, 0, 0x20, 1]),
)


@contextmanager
def use_kernels(kernels: Any) -> Iterator[None]:
    before = native_kernels.kernels
    native_kernels.use(kernels)
    try:
        yield
    finally:
        native_kernels.use(before)


def run_plain_and_native(call: Callable[[], T]) -> tuple[T, T]:
    """Return the results of a call without and with compiled code."""
    with use_kernels(None):
        plain = call()
    with use_kernels(raymq_native):
        return plain, call()


def batch_columns(batch: Batch) -> dict[str, object]:
    groups = [(g.topic, g.queue_id, None if g.members is None else g.members.tolist()) for g in batch.groups]
    names = ("sizes", "starts", "ends", "sys_flags", "body_at", "body_lengths", "properties_at", "headers")
    names += ("queue_offsets", "physical_offsets", "store_timestamps_ms")
    return {name: getattr(batch, name).tolist() for name in names} | {
        "groups": groups,
        "any_flags": batch.any_flags,
    }


def parse_or_error(data: bytes, sizes: Sequence[int], check_crc: bool) -> object:
    try:
        return batch_columns(parse(data, np.array(sizes, np.int32), check_crc=check_crc))
    except BadRecord as bad:
        return bad.args


@given(st.lists(records, min_size=1, max_size=8), st.booleans(), st.data())
def test_parse_groups_records_equally(made: list[bytes], check_crc: bool, data: st.DataObject) -> None:
    whole = bytearray(b"".join(made))
    sizes = [len(record) for record in made]
    for _ in range(data.draw(st.integers(0, 2), "changes")):
        whole[data.draw(st.integers(0, len(whole) - 1), "at")] = data.draw(st.integers(0, 255), "to")
    if data.draw(st.booleans(), "wrong size"):
        sizes[data.draw(st.integers(0, len(sizes) - 1))] += data.draw(st.sampled_from([-1, 1, 1 << 30, -(1 << 30)]))
    plain, native = run_plain_and_native(lambda: parse_or_error(bytes(whole), sizes, check_crc))
    assert native == plain


@given(st.lists(records, min_size=1, max_size=8))
def test_tags_and_keys_are_equal(made: list[bytes]) -> None:
    def derived() -> object:
        try:
            found = derive_index_inputs(parse(b"".join(made), np.array([len(r) for r in made], np.int32)))
        except BadRecord:
            return None
        return found.tags_codes.tolist(), found.key_hashes.tolist(), found.key_owners.tolist()

    plain, native = run_plain_and_native(derived)
    assert native == plain


@given(st.lists(records, min_size=1, max_size=8), st.data())
def test_stamped_copies_are_equal(made: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(made) - 1))
    last = data.draw(st.integers(first + 1, len(made)))
    offsets = np.arange(len(made)) * 7 + 5

    def stamped() -> object:
        try:
            batch = parse(b"".join(made), np.array([len(r) for r in made], np.int32))
        except BadRecord:
            return None
        begin, end = batch.part(first, last)
        target = bytearray(end - begin)
        places = stamp(memoryview(target), batch, first, last, offsets, 1 << 40, 1_700_000_000_000, -(1 << 60))
        return bytes(target), places.tolist()

    plain, native = run_plain_and_native(stamped)
    assert native == plain


def joined_bytes(made: tuple[bytearray, Any] | None) -> object:
    return made and (bytes(made[0]), made[1].tolist())


keys = UniqueKeyGenerator(b"0123456789")
columns = st.lists(
    st.tuples(st.binary(min_size=1, max_size=100), st.binary(max_size=40), st.integers(0, (1 << 48) - 1))
)


@given(columns, st.sampled_from(["t", "%DLQ%" + "g" * 130]), st.booleans(), st.integers(0, 2))
def test_columns_are_joined_equally(
    rows: list[tuple[bytes, bytes, int]], topic: str, with_properties: bool, skipped: int
) -> None:
    bodies = pa.array([body for body, _, _ in rows], pa.binary())[skipped:]  # also the end of a larger array
    property_column = (
        pa.array([property_column for _, property_column, _ in rows], pa.binary())[skipped:]
        if with_properties
        else None
    )
    numbers = np.array([number for _, _, number in rows][skipped:], np.int64)

    def join() -> object:
        source = (keys, numbers)
        return joined_bytes(
            join_records(topic, 3, bodies, property_column, keys=source, born_host=bytes(8), born_timestamp_ms=5)
        )

    plain, native = run_plain_and_native(join)
    assert native == plain


def numbered_message(body: bytes, own_properties: bytes, number: int) -> Message:
    message = Message("t", b"x")
    message.__setstate__({"body": body, "own_properties": own_properties, "_key": number})
    return message


@given(columns.filter(bool))
def test_lists_are_joined_equally(rows: list[tuple[bytes, bytes, int]]) -> None:
    messages, numbers = [numbered_message(*row) for row in rows], [number for _, _, number in rows]

    def join() -> object:
        source = (keys, numbers)
        return joined_bytes(join_messages("t", 0, messages, keys=source, born_host=bytes(8), born_timestamp_ms=5))

    plain, native = run_plain_and_native(join)
    assert native == plain


def test_too_long_properties_are_refused_equally() -> None:
    def refused() -> str:
        messages = [numbered_message(b"x", bytes(32_767), 1)]
        with pytest.raises(InvalidInput) as caught:
            join_messages("t", 0, messages, keys=(keys, [1]), born_host=bytes(8), born_timestamp_ms=5)
        return str(caught.value)

    plain, native = run_plain_and_native(refused)
    assert native == plain


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=12))
def test_slices_are_gathered_equally(data: bytes, cuts: list[int]) -> None:
    cuts = sorted(min(cut, len(data)) for cut in cuts[: len(cuts) // 2 * 2])
    starts, ends = np.array(cuts[::2], np.int64), np.array(cuts[1::2], np.int64)
    plain, native = run_plain_and_native(lambda: gather(pa.py_buffer(data), starts, ends, pa.binary()))
    native.validate(full=True)
    assert native.equals(plain)


@given(st.binary(max_size=700), st.integers(0, 20))
def test_checksum_equals_zlib_crc32(data: bytes, start: int) -> None:
    start = min(start, len(data))
    result = np.zeros(1, np.uint32)
    raymq_native.checksums(data, np.array([start]), np.array([len(data) - start]), result)
    assert result[0] == zlib.crc32(data[start:])


def test_undecoded_messages_are_not_tracked_by_gc() -> None:
    with use_kernels(raymq_native):
        offsets, bodies = np.arange(3), [b"a", b"b", b"c"]
        around: Any = SimpleNamespace()
        messages = ReceivedMessage.undecoded(MessageQueue("t", "b", 0), offsets, bodies, around)
    assert [(m.queue_offset, m.body) for m in messages] == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert not any(map(gc.is_tracked, messages))
    gc.collect()
    del messages


@given(st.lists(records, min_size=1, max_size=8), st.data())
def test_tables_are_equal(made: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(b"".join(made))
    if data.draw(st.booleans(), "changed"):
        whole[data.draw(st.integers(0, len(whole) - 1), "at")] ^= data.draw(st.integers(0, 255), "by")

    def table() -> pa.Table | str:
        try:
            found = table_from_records(bytes(whole), np.array([len(r) for r in made], np.int32), broker="b")
        except StoreCorrupt as error:
            return str(error)
        found.validate(full=True)
        return found

    plain, native = run_plain_and_native(table)
    assert native == plain  # tables are compared by their values


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1 << 40), st.booleans()), min_size=1), st.integers(1, 9))
def test_index_keys_are_put_equally(put: list[tuple[int, int, bool]], slots: int) -> None:
    """In one step or several, with slots that point beyond the header's count."""

    def filled() -> tuple[object, ...]:
        with TemporaryDirectory() as directory:
            file = IndexFile(Path(directory) / "1", slots, 300, writable=True)
            at = 0
            for stop in [*(n for n, (_, _, cut) in enumerate(put) if cut and n), len(put)]:
                part = put[at:stop]
                at = stop
                hashes = np.array([key for key, _, _ in part], np.int32)
                times = np.sort(np.array([when for _, when, _ in part], np.int64))
                file.put(hashes, np.arange(len(part)), times, len(part))
                if len(part) % 2:  # as after a crash before the header was written
                    file.count = max(1, file.count - 1)
            found = [list(file.find(key)) for key in range(41)]
            content = bytes(file._mapped().view)
            file.close()
            return content, found

    plain, native = run_plain_and_native(filled)
    assert native == plain


@given(st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=4), st.integers(0, 1 << 40))), st.integers(1, 9))
def test_index_keys_of_single_records_are_put_equally(put: list[tuple[list[int], int]], slots: int) -> None:
    def filled() -> tuple[object, ...]:
        with TemporaryDirectory() as directory:
            file = IndexFile(Path(directory) / "1", slots, 500, writable=True)
            for place, (hashes, when) in enumerate(put):
                file.put_few(hashes, place, when, place)
                if len(hashes) % 2:  # as after a crash before the header was written
                    file.count = max(1, file.count - 1)
            content = bytes(file._mapped().view)
            file.close()
            return content, file.header

    plain, native = run_plain_and_native(filled)
    assert native == plain


@given(st.binary(min_size=1, max_size=300), properties, st.integers(0, (1 << 48) - 1), st.integers(0, 1 << 50), hosts)
def test_single_record_is_encoded_equally(body: bytes, own: bytes, number: int, born_ms: int, host: bytes) -> None:
    keys = UniqueKeyGenerator(b"prefix" + bytes(4))
    template = RecordTemplate("t", host)
    plain, native = run_plain_and_native(lambda: template.encode_keyed(keys, number, body, own, born_ms))
    stored = f"UNIQ_KEY\x01{keys.text(number)}\x02".encode() + own
    assert native == plain == encode("t", 0, body, stored, born_timestamp_ms=born_ms, born_host=host)
    assert type(native) is type(plain) is bytearray


def test_single_record_with_too_long_properties_is_refused() -> None:
    keys, template = UniqueKeyGenerator(), RecordTemplate("t", pack_host("10.0.0.1", 9))
    for kernels in (None, raymq_native):
        with use_kernels(kernels), pytest.raises(InvalidInput, match="properties"):
            template.encode_keyed(keys, 1, b"x", bytes(MAX_PROPERTIES_BYTES), 1)


@given(records, st.booleans(), st.integers(0, 300), st.integers(0, 255), st.booleans())
def test_single_records_are_checked_equally(record: bytes, check_crc: bool, at: int, byte: int, damaged: bool) -> None:
    changed = bytearray(record)
    if damaged:
        changed[at % len(changed)] = byte

    def single() -> object:
        checker = RecordChecker(150, 400)
        with suppress(InvalidInput):
            checker.one(memoryview(record), False)  # its topic is known from now on
        try:
            found = checker.one(memoryview(changed), check_crc)
        except InvalidInput as error:
            return str(error)
        return found[1:]

    plain, native = run_plain_and_native(single)
    assert native == plain


FIVE, TWO = np.zeros((5, 1), np.int64), np.zeros((2, 1), np.int32)
ONE, BEYOND = np.zeros(1, np.int64), np.array([1 << 40])
LISTS = (b"h" * 88, b"\x01t", b"key")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("scan", (b"x", np.array([1], np.int32), False, FIVE[:4], TWO)),
        ("scan", (b"x", np.array([1], np.int32), False, FIVE, TWO[:, :0])),
        ("derive", (b"x", BEYOND, BEYOND, 0, ONE.copy(), np.zeros(1, np.int32), ONE.copy())),
        ("derive", (b"x", -BEYOND, ONE, 0, ONE.copy(), np.zeros(1, np.int32), ONE.copy())),
        ("derive", (b"x", ONE, ONE, 0, ONE[:0].copy(), np.zeros(1, np.int32), ONE.copy())),
        ("stamp", (bytearray(99), bytes(99), np.array([0, 98]), TWO[:, 0].copy(), np.zeros(2, np.int64), 0, 0, 0)),
        ("stamp", (bytearray(98), bytes(99), ONE, TWO[0], ONE, 0, 0, 0)),
        ("stamp", (bytearray(99), bytes(99), np.array([0, 1 << 40]), TWO[:, 0].copy(), np.zeros(2, np.int64), 0, 0, 0)),
        ("checksums", (b"x", BEYOND, ONE, np.zeros(1, np.uint32))),
        ("checksums", (b"x", ONE, -BEYOND, np.zeros(1, np.uint32))),
        ("put_keys", (bytearray(4), bytearray(40), 0, TWO[0], ONE, TWO[0])),
        ("put_keys", (bytearray(4), bytearray(40), 2, TWO[0], ONE, TWO[0])),
        ("put_keys", (bytearray(4), bytearray(40), 1, TWO[0] - 1, ONE, TWO[0])),
        ("put_keys", (bytearray(3), bytearray(40), 1, TWO[0], ONE, TWO[0])),
        ("put_keys", (bytearray(4), bytearray(40), 1, TWO[0], ONE[:0], TWO[0])),
        ("put_few", (bytearray(60), 40, 44, 44, 1, [1], 0, 0)),
        ("put_few", (bytearray(60), 0, 20, 61, 1, [1], 0, 0)),
        ("put_few", (bytearray(60), -4, 20, 60, 1, [1], 0, 0)),
        ("put_few", (bytearray(60), 0, 20, 60, 1, [1, 2], 0, 0)),
        ("put_few", (bytearray(60), 0, 20, 60, 0, [1], 0, 0)),
        ("put_few", (bytearray(60), 0, 20, 60, 1, [-1], 0, 0)),
        ("put_few", (bytearray(60), 17, 20, 60, 1, [1], 0, 0)),
        ("join_one", (b"short", b"\x01t", b"key", 1, b"b", b"", 0)),
        ("gather", (b"x", ONE, BEYOND, np.zeros(2, np.int32), bytearray(9))),
        ("gather", (b"xy", ONE, ONE + 2, np.zeros(2, np.int32), bytearray(1))),
        ("bodies", (bytes(99), ONE, BEYOND, ONE)),
        ("gather_bodies", (bytes(99), ONE, BEYOND, ONE, np.zeros(2, np.int32), bytearray(9))),
        ("gather_bodies", (bytes(99), ONE, ONE + 88, ONE + 5, np.zeros(2, np.int32), bytearray(4))),
        ("gather_bodies", (bytes(99), -BEYOND, ONE + 88, ONE, np.zeros(2, np.int32), bytearray(4))),
        ("gather_bodies", (bytes(99), ONE, ONE + 88, -BEYOND, np.zeros(2, np.int32), bytearray(4))),
        ("heads", (bytes(99), BEYOND, TWO[0], TWO[1], *(ONE.copy() for _ in range(3)), np.zeros(32, np.uint8))),
        ("heads", (bytes(99), ONE + 12, TWO[0], TWO[1], *(ONE.copy() for _ in range(3)), np.zeros(32, np.uint8))),
        ("heads", (bytes(99), ONE, TWO[0] + 16, TWO[1], *(ONE.copy() for _ in range(3)), np.zeros(32, np.uint8))),
        ("heads", (bytes(99), ONE, TWO[0], TWO[1], *(ONE.copy() for _ in range(3)), np.zeros(31, np.uint8))),
        ("common_properties", (b"x", ONE, BEYOND, [b"n\x01"], ONE.reshape(1, 1).copy(), ONE.reshape(1, 1).copy())),
        ("common_properties", (b"x", ONE, ONE, [b"n\x01"], ONE[:0].reshape(0, 1).copy(), ONE.reshape(1, 1).copy())),
        ("bodies", (bytes(99), -BEYOND, ONE + 88, ONE)),
        ("bodies", (bytes(99), ONE, ONE + 88, ONE - 1)),
        ("join_messages", (b"short", b"\x01t", b"key", [], np.zeros(0, np.int32))),
        ("join_messages", (*LISTS, [Message("t", b"b")], np.zeros(2, np.int32))),
        ("join_columns", (*LISTS, ONE, np.array([0, 2], np.int32), b"x", None, None, np.zeros(1, np.int32))),
        ("join_columns", (*LISTS, ONE, np.array([1, 0], np.int32), b"x", None, None, np.zeros(1, np.int32))),
        ("filled", (ReceivedMessage, ("body", "queue", "queue_offset", "_around"), [b"x"], None, ONE[:0].copy(), None)),
    ],
)
def test_arguments_out_of_bounds_raise_value_error(function: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=r"length|outside|must be|bytes|fall|room"):
        getattr(raymq_native, function)(*arguments)


def test_unsupported_value_types_return_none() -> None:
    sizes = np.zeros(1, np.int32)
    for element in Message("t", b"b"), Message("t", b"b", unique_key="key"), b"no message":
        assert raymq_native.join_messages(*LISTS, [element], sizes) is None


def test_kernels_of_other_interface_version_are_refused() -> None:
    with pytest.raises(ValueError, match="interface"):
        native_kernels.use(SimpleNamespace(INTERFACE=native_kernels.INTERFACE + 1))  # type: ignore[arg-type]


@given(st.lists(records, max_size=8), st.integers(0, 1 << 40), st.data())
def test_log_records_are_found_equally(made: list[bytes], place: int, data: st.DataObject) -> None:
    log, sizes = bytearray(), [len(record) for record in made]
    for record in made:
        log += record[:28] + (place + len(log)).to_bytes(8, "big") + record[36:]
    for _ in range(data.draw(st.integers(0, 2), "changes") if log else 0):
        log[data.draw(st.integers(0, len(log) - 1), "at")] = data.draw(st.integers(0, 255), "to")
    content = memoryview(log)[: len(log) - data.draw(st.integers(0, len(log)), "cut")]
    plain, native = run_plain_and_native(lambda: record_sizes(content, place).tolist())
    assert native == plain
    assert len(plain) <= len(sizes)
