"""Test the frame reader: any cuts, large frames in place, bounded memory, and any garbage."""

from __future__ import annotations

import random
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raymq.actors.errors import ProtocolError
from raymq.actors.wire import frame
from raymq.actors.wire.frame import FLAG_RESPONSE, Command, Serialization
from raymq.actors.wire.frame_reader import SCRATCH_BYTES, FrameReader
from tests.wire_server import encode_frame

MIB = 1024 * 1024
COMMANDS = st.builds(
    Command,
    code=st.integers(0, 0x7FFF),
    fields=st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=5),
    body=st.binary(max_size=300) | st.integers(0, 40_000).map(bytes),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    remark=st.none() | st.text(min_size=1, max_size=50),
    serialization=st.sampled_from(list(Serialization)),
)


def command_fields(command: Command) -> tuple[object, ...]:
    return command.code, command.fields, bytes(command.body), command.opaque, command.flag, command.remark


def has_utf8(command: Command) -> bool:
    try:
        "".join([*command.fields, *command.fields.values(), command.remark or ""]).encode()
    except UnicodeEncodeError:
        return False
    return True


@settings(max_examples=100, deadline=None)
@given(st.lists(COMMANDS.filter(has_utf8), max_size=5), st.lists(st.integers(1, 50_000), max_size=20))
def test_commands_survive_any_stream_cuts(commands: list[Command], cuts: list[int]) -> None:
    data = b"".join(map(encode_frame, commands))
    reader = FrameReader()
    received = []
    for size in [*cuts, len(data)]:
        piece, data = data[:size], data[size:]
        received += reader.feed(piece)
    pop = {3442: 200_050, 3443: 200_051, 3445: 200_053, 3446: 200_054, 3543: 200_151}
    for command in commands:
        if command.serialization is Serialization.ROCKETMQ and not command.flag & FLAG_RESPONSE:
            command.code = pop.get(command.code, command.code)
    assert list(map(command_fields, received)) == list(map(command_fields, commands))
    assert not reader.is_mid_frame


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
@pytest.mark.parametrize("serialization", list(Serialization))
def test_unpaired_surrogate_becomes_question_mark(text: str, serialization: Serialization) -> None:
    command = Command(1, {text: text}, remark=text, serialization=serialization)
    (received,) = FrameReader().feed(encode_frame(command))
    expected = text.replace("\ud800", "?").replace("\udfff", "?")
    assert (received.fields, received.remark) == ({expected: expected}, expected)


def test_large_body_is_received_in_place() -> None:
    data = encode_frame(Command(1, {"a": "b"}, bytes(range(256)) * 4096))
    reader = FrameReader()
    begun = SCRATCH_BYTES
    reader.buffer()[:begun] = data[:begun]
    reader.received(begun)
    assert reader.next() is None
    assert (reader.large_bytes, reader.memory_bytes) == (len(data) - 4, begun)
    place = reader.buffer()
    assert len(place) == 3 * (begun - 4), "one read may bring so much"
    place[:] = data[begun : begun + len(place)]
    reader.received(len(place))
    assert reader.next() is None
    rest = reader.buffer()
    rest[:] = data[-len(rest) :]
    reader.received(len(rest))
    received = reader.next()
    assert received is not None
    assert received.body == bytes(range(256)) * 4096
    assert isinstance(received.body, memoryview)
    assert received.body.obj is rest.obj, "not copied"
    assert reader.next() is None
    assert reader.large_bytes == 0


@pytest.mark.parametrize("arrow", [True, False])
def test_reader_memory_follows_received_bytes(arrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover fault 13.21: allocate by received, not announced bytes, with and without Arrow."""
    if not arrow:
        monkeypatch.delitem(sys.modules, "pyarrow")
    reader = FrameReader()
    data = encode_frame(Command(1, body=bytes(range(256)) * 60_000))
    position = 0
    while position < len(data):
        place = reader.buffer()
        assert len(place) <= reader.memory_bytes or len(place) == SCRATCH_BYTES
        assert reader.memory_bytes <= max(SCRATCH_BYTES, 4 * position)
        count = min(len(place), len(data) - position, 50_000)
        place[:count] = data[position : position + count]
        reader.received(count)
        position += count
        received = reader.next()
        assert (received is None) == (position < len(data))
    assert received is not None
    assert received.body == bytes(range(256)) * 60_000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 400_000), max_size=4), st.lists(st.integers(1, 300_000), max_size=40))
def test_large_frames_survive_any_cuts_and_late_reads(bodies: list[int], cuts: list[int]) -> None:
    data = b"".join(encode_frame(Command(n, body=bytes(size))) for n, size in enumerate(bodies))
    reader, received = FrameReader(), []
    for number, cut in enumerate([*cuts, *[len(data)] * 40]):
        place = reader.buffer()
        count = min(cut, len(place), len(data))
        place[:count] = data[:count]
        reader.received(count)
        data = data[count:]
        while (number % 2 or reader.large_bytes or not data) and (command := reader.next()) is not None:
            received.append((command.code, len(command.body)))
    assert received == list(enumerate(bodies))


def test_body_owns_its_memory() -> None:
    reader = FrameReader()
    (small,) = reader.feed(encode_frame(Command(1, body=b"first")))
    (large,) = reader.feed(encode_frame(Command(1, body=b"x" * MIB)))
    list(reader.feed(encode_frame(Command(1, body=b"other" * 100_000))))
    assert (small.body, bytes(large.body)) == (b"first", b"x" * MIB)


def test_announced_frame_length_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader()
        list(reader.feed((16 * MIB).to_bytes(4, "big")))
        assert tracemalloc.get_traced_memory()[0] < SCRATCH_BYTES + 64 * 1024
        for _ in range(1000):
            list(reader.feed(b"\0"))
            assert not reader.next()
        # The frame's own memory is allocated now, untouched; nothing else grows.
        assert tracemalloc.get_traced_memory()[1] < 17 * MIB
    finally:
        tracemalloc.stop()


HEADS = st.binary(max_size=64) | st.builds(
    lambda form, length, rest: bytes([form]) + length.to_bytes(3, "big") + rest,
    st.integers(0, 4),
    st.integers(0, 80),
    st.binary(max_size=100) | st.text(max_size=60).map(str.encode),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def read_all(data: bytes) -> list[Command]:
    """Read bytes as a server with a small frame limit, up to a ProtocolError."""
    reader = FrameReader(1 << 16, 1 << 15)
    found = []
    try:
        for command in reader.feed(data):
            found.append(command)
            # Each readable command can be answered.
            encode_frame(command.response(1, command.fields, remark=command.remark))
    except ProtocolError:
        pass
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(HEADS, max_size=3))
def test_arbitrary_frames_raise_only_protocol_error(heads: list[bytes]) -> None:
    read_all(b"".join(len(head).to_bytes(4, "big") + head for head in heads))


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {"code": JSON},
        optional={"opaque": JSON, "flag": JSON, "remark": JSON, "extFields": JSON, "language": JSON, "version": JSON},
    )
)
def test_arbitrary_json_headers_raise_only_protocol_error(header: dict[str, object]) -> None:
    import json

    text = json.dumps(header).encode()
    read_all((4 + len(text)).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text)


@settings(max_examples=100, deadline=None)
@given(st.lists(JSON, min_size=4, max_size=6))
def test_arbitrary_msgpack_headers_raise_only_protocol_error(header: list[object]) -> None:
    import msgpack

    try:
        data = msgpack.packb(header)
    except (OverflowError, UnicodeEncodeError):
        return
    read_all((4 + len(data)).to_bytes(4, "big") + (2 << 24 | len(data)).to_bytes(4, "big") + data)


@pytest.mark.parametrize("depth", [1000, 15_000])
@pytest.mark.parametrize(("form", "opening"), [(0, b"["), (2, b"\x91")])
def test_nested_headers_do_not_overflow_the_stack(depth: int, form: int, opening: bytes) -> None:
    header = opening * depth
    assert read_all((4 + depth).to_bytes(4, "big") + (form << 24 | depth).to_bytes(4, "big") + header) == []


def mutate_frames(count: int, seed: int) -> None:
    """Mutate real frames `count` times: change, cut, double and insert bytes."""
    rng = random.Random(seed)
    base = [
        encode_frame(Command(code, fields, b"body" * size, opaque=-7, remark=remark, serialization=serialization))
        for serialization in Serialization
        for code, fields, size, remark in (
            (105, {"topic": "orders", "acceptStandardJsonOnly": "true"}, 0, None),
            (310, {letter: letter * 9 for letter in "abcdefghijklmn"}, 30, "remark \N{BULLET}"),
            (200_050, {}, 1, ""),
        )
    ]
    for _ in range(count):
        data = bytearray(b"".join(rng.choices(base, k=rng.randint(1, 3))))
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(data))
            kind = rng.randrange(5)
            if kind < 2:
                data[at] = rng.randrange(256)
            elif kind == 2:
                data[at : at + 4] = rng.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0"])
            elif kind == 3:
                del data[at : at + rng.randint(1, 9)]
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
            if not data:
                break
        read_all(bytes(data))


def test_mutated_frames_raise_only_protocol_error() -> None:
    mutate_frames(3_000, seed=7)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_million_mutated_frames_do_not_leak_memory() -> None:
    import psutil

    own = psutil.Process()
    mutate_frames(20_000, seed=1)
    before = own.memory_info().rss
    for seed in range(2, 51):
        mutate_frames(20_000, seed)
    grown = own.memory_info().rss - before
    print(f"grown by {grown / MIB:.1f} MiB")
    assert grown < 16 * MIB


@pytest.mark.parametrize("serialization", list(Serialization))
def test_retained_header_does_not_stop_reader(monkeypatch: pytest.MonkeyPatch, serialization: Serialization) -> None:
    """Cover CPython 3.11.2, which sometimes keeps the argument of a call for ever.

    A bytearray with a view of it cannot be resized.
    """
    kept = []
    decoder = frame._DECODERS[serialization]

    def keeping(header: bytes | memoryview) -> Command:
        kept.append(header)
        return decoder(header)

    monkeypatch.setitem(frame._DECODERS, serialization, keeping)
    reader = FrameReader()
    data = b"".join(encode_frame(Command(1, opaque=n, body=b"x" * n, serialization=serialization)) for n in range(100))
    assert [
        command.opaque for at in range(0, len(data), 1000) for command in reader.feed(data[at : at + 1000])
    ] == list(range(100))
    assert kept
