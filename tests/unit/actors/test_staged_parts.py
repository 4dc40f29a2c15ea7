"""Test how the parts of a staged write are sent in bodies and read in steps."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.staged_commits import resolve_writes
from raymq.actors.errors import InvalidInput, ProtocolError
from raymq.actors.request_limits import MAX_PARTS
from raymq.actors.wire.commands import staged_write_commands as wire
from raymq.actors.wire.commands.staged_write_commands import (
    PARTS_PER_PIECE,
    PartsInstruction,
    TransactionAction,
    TransactionReply,
    parts_body,
    read_parts,
    read_parts_steps,
)
from raymq.actors.wire.frame import Command, Serialization, decode, encode
from tests.unit.actors.bench import Bench

#: The size of the largest header that is read.
HEADER_BYTES = 1 << 20


def make_parts(count: int, prefix: str = "") -> dict[str, int]:
    return {f"{prefix}{number:032x}": number for number in range(count)}


def round_trip(command: Command) -> Command:
    """Return the command as the other end reads it."""
    return decode((encode(command) + bytes(command.body))[4:], HEADER_BYTES)


def answer(fields: dict[str, object], body: bytes) -> Command:
    return round_trip(Command(0, fields, body, serialization=Serialization.MSGPACK))


@pytest.mark.parametrize("count", [0, 1, PARTS_PER_PIECE, PARTS_PER_PIECE + 1, 70_000, MAX_PARTS])
def test_parts_are_sent_and_read(count: int) -> None:
    parts = make_parts(count)
    by_broker = {"broker-a": make_parts(count // 2), "broker-b": make_parts(count - count // 2)} if count else {}
    decided = round_trip(wire.decide_write_command("tx", TransactionAction.COMMIT, by_broker))
    assert read_parts(decided.body) == {broker: each for broker, each in by_broker.items() if each}
    committed = round_trip(wire.commit_staged_command("tx", parts))
    assert read_parts(committed.body) == ({"tx": parts} if parts else {})
    fate = TransactionReply("committed", "t", sum(parts.values()), {"b": parts} if parts else {}, {"c": (3, "lost")})
    assert wire.read_transaction_reply(answer(wire.transaction_reply_fields(fate), parts_body(fate.parts))) == fate
    instructions = {"tx": PartsInstruction("append", parts), "ty": PartsInstruction("wait", {})}
    assert wire.read_instructions(answer(*wire.instructions_answer(instructions))) == instructions


def test_too_many_parts_error_names_limit_and_remedy() -> None:
    with pytest.raises(InvalidInput, match="coalesce"):
        wire.commit_staged_command("tx", make_parts(MAX_PARTS + 1))
    body = parts_body({"a": make_parts(MAX_PARTS)}) + parts_body({"b": make_parts(1)})
    with pytest.raises(InvalidInput, match="200,000"):
        read_parts(body)


def test_parts_are_read_one_piece_per_step() -> None:
    steps = read_parts_steps(parts_body({"a": make_parts(20_000), "b": make_parts(3)}))
    assert sum(1 for _ in steps) == 20_000 // PARTS_PER_PIECE


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        b"\x00",
        msgpack.packb(["a"]),
        msgpack.packb([1, []]),
        msgpack.packb(["a", 5]),
        msgpack.packb(["a", None]),
        msgpack.packb(["a", "part"]),
        msgpack.packb(["a", [["p"]]]),
        msgpack.packb(["a", [["p", -1]]]),
        msgpack.packb(["a", [["p", True]]]),
        msgpack.packb(["a", [["p", 1 << 63]]]),
        msgpack.packb(["a", [[b"p", 1]]]),
        msgpack.packb(["a", [[["p"], 1]]]),
        msgpack.packb(["a", [["p" * 2_000, 1]]]),
        msgpack.packb(["a", [["p", 1]] * (PARTS_PER_PIECE + 1)]),
        msgpack.packb(["a", [["p", 1]]])[:-1],
        msgpack.packb(["a", [["p", 1]]]) + b"\x92",
        b"\x91" * 5_000,
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_malformed_parts_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_parts(body)
    with pytest.raises(ProtocolError):
        wire.read_instructions(answer({"orders": []}, body))


def test_instructions_have_at_most_max_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave further parts to a later request."""
    monkeypatch.setattr("raymq.actors.broker.staged_commits.MAX_PARTS", 10)
    bench = Bench(tmp_path)
    core: BrokerCore = bench.core
    for transaction, count in (("t1", 6), ("t2", 6), ("t3", 4)):
        core.writes.open(transaction, "t")
        core.writes.commit(transaction, {"b": make_parts(count)})
    open_transactions = dict.fromkeys(("t1", "t2", "t3"), 9.0)
    assert [order.what for order in resolve_writes(core, "b", open_transactions).values()] == [
        "append",
        "wait",
        "append",
    ]
    core.writes.mark_finished("t1", "b")
    assert resolve_writes(core, "b", open_transactions)["t2"].what == "append"
    bench.store.close()
