"""Staged writes (ours): records from many tasks that become visible together.

STAGE_RECORDS, COMMIT_STAGED and ABORT_STAGED are sent to the brokers that store the rows. OPEN_WRITE and DECIDE_WRITE
are sent to the write's coordinator ("home"), which decides whether it commits. ASK_WRITES and WRITES_DONE are sent by
the brokers with rows to the coordinator.

The parts of writes are the body of a command, as a sequence of msgpack pieces of some hundred parts. A write of many
tasks has many parts: they would not fit into a header, and reading all of them at once would block the event loop. Each
piece is [owner, [[part, rows], ...]]; the owner is a broker or a transaction.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt

from raymq.actors.errors import InvalidInput
from raymq.actors.request_limits import MAX_PARTS
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.append_commands import INT32, pack
from raymq.actors.wire.frame import Buffer, Command, Serialization
from raymq.actors.wire.response_validation import number, protocol_checked, text
from raymq.storage.cooperative_steps import Steps, run_steps

#: So many parts are in a piece, and one step reads one piece.
PARTS_PER_PIECE: Final = 500
#: The longest name of an owner or a part, in bytes.
_MAX_NAME: Final = 1_024
_MAX_ROWS: Final = 1 << 62

Parts = dict[str, dict[str, int]]


class TransactionAction(enum.Enum):
    """The action that a driver requests for a write."""

    COMMIT = "commit"
    ABORT = "abort"
    LOOK = "look"
    ACCEPT = "accept"


class TransactionReply(NamedTuple):
    """The state of a write, as its coordinator reports it.

    Attributes:
        decision: "open", "committed", "aborted"; "unknown": never opened on this coordinator, or ended long ago.
        rows: the number of rows of all committed parts.
        parts: for each broker that has not confirmed that all of its parts are in the log: each part with its rows.
        missing: by broker how many of its rows are missing, and why, as far as the brokers have reported.
        accepted: by broker how many missing rows the writer has accepted as lost.
        instead: an earlier write that was committed in place of this one of its series, and its number and rows; "" and
            zeros if there is none.
    """

    decision: str
    topic: str
    rows: int
    parts: Mapping[str, Mapping[str, int]]
    missing: Mapping[str, tuple[int, str]]
    instead: str = ""
    instead_number: int = 0
    instead_rows: int = 0
    accepted: Mapping[str, int] = MappingProxyType({})


class PartsInstruction(NamedTuple):
    """The coordinator's instruction for a broker's rows of a write.

    It is "wait", "append" (these parts), or "drop".
    """

    what: str
    parts: Mapping[str, int]


def stage_command(
    transaction: str,
    part: str,
    number: int,
    topic_queue: tuple[str, int],
    records: Buffer,
    sizes: npt.NDArray[np.int32],
    coordinator: str,
    *,
    delayed: bool = False,
) -> Command:
    """Return STAGE_RECORDS: store a chunk until the broker `coordinator` has decided the transaction.

    If the chunk is `delayed`, all its records have a delivery time, or all have the same delay level.
    """
    fields = {
        "transaction": transaction,
        "part": part,
        "number": number,
        "topic": topic_queue[0],
        "queue_id": topic_queue[1],
        "sizes": pack(sizes, INT32),
        "home": coordinator,
    }
    if delayed:
        fields["delayed"] = True
    return Command(RequestCode.STAGE_RECORDS, fields, records, serialization=Serialization.MSGPACK)


def commit_staged_command(transaction: str, parts: Mapping[str, int]) -> Command:
    """Return COMMIT_STAGED: make the chunks of `parts` visible. Repeatable.

    `parts` has the number of rows of each part on this broker.
    """
    body = parts_body({transaction: parts})
    return Command(RequestCode.COMMIT_STAGED, {"transaction": transaction}, body, serialization=Serialization.MSGPACK)


@protocol_checked
def read_commit_answer(answer: Command) -> tuple[int, str] | None:
    """Return how many rows are missing and why, from an answer to COMMIT_STAGED.

    Return None if no row is missing.
    """
    rows = number(answer.fields["missing"])
    return (rows, text(answer.fields["reason"])) if rows else None


def missing_field(missing: Mapping[str, tuple[int, str]]) -> list[list[Any]]:
    """Return missing rows and the reason, by broker or write, as a field."""
    return [[name, rows, reason] for name, (rows, reason) in missing.items()]


def _read_missing(items: Any) -> dict[str, tuple[int, str]]:
    return {text(name): (number(rows), text(reason)) for name, rows, reason in items}


def abort_staged_command(transaction: str) -> Command:
    """Return ABORT_STAGED: drop the transaction's chunks."""
    return Command(RequestCode.ABORT_STAGED, {"transaction": transaction}, serialization=Serialization.MSGPACK)


def open_write_command(transaction: str, topic: str, series: str, number: int) -> Command:
    """Return OPEN_WRITE: make this broker the coordinator of a write. Repeatable.

    The write is number `number` of `series`, if that is not "".
    """
    fields = {"transaction": transaction, "topic": topic, "series": series, "number": number}
    return Command(RequestCode.OPEN_WRITE, fields, serialization=Serialization.MSGPACK)


def decide_write_command(
    transaction: str, action: TransactionAction, parts: Mapping[str, Mapping[str, int]] | None = None
) -> Command:
    """Return DECIDE_WRITE: commit these parts, abort, or only return the state. Repeatable.

    `parts` has the parts by broker, each with its rows.
    """
    fields = {"transaction": transaction, "wish": action.value}
    return Command(RequestCode.DECIDE_WRITE, fields, parts_body(parts or {}), serialization=Serialization.MSGPACK)


def accept_write_command(transaction: str, missing: Mapping[str, int]) -> Command:
    """Return DECIDE_WRITE: accept that so many rows of these brokers are lost. Repeatable."""
    fields = {"transaction": transaction, "wish": TransactionAction.ACCEPT.value, "accepted": counts_field(missing)}
    return Command(RequestCode.DECIDE_WRITE, fields, parts_body({}), serialization=Serialization.MSGPACK)


def counts_field(rows: Mapping[str, int]) -> list[list[Any]]:
    """Return the number of rows by broker as a field."""
    return [[name, count] for name, count in rows.items()]


@protocol_checked
def read_transaction_reply(answer: Command) -> TransactionReply:
    """Return the state in an answer to OPEN_WRITE or DECIDE_WRITE."""
    fields = answer.fields
    return TransactionReply(
        text(fields["decision"]),
        text(fields["topic"]),
        number(fields["rows"]),
        read_parts(answer.body),
        _read_missing(fields["missing"]),
        text(fields["instead"]),
        number(fields["instead_number"]),
        number(fields["instead_rows"]),
        # Older versions have no such field.
        {text(name): number(rows) for name, rows in fields.get("accepted", [])},
    )


def transaction_reply_fields(reply: TransactionReply) -> dict[str, Any]:
    """Return the fields that `read_transaction_reply` reads; the parts are in the body."""
    return {
        "decision": reply.decision,
        "topic": reply.topic,
        "rows": reply.rows,
        "missing": missing_field(reply.missing),
        "instead": reply.instead,
        "instead_number": reply.instead_number,
        "instead_rows": reply.instead_rows,
        "accepted": counts_field(reply.accepted),
    }


def ask_writes_command(broker: str, idle: Mapping[str, float]) -> Command:
    """Return ASK_WRITES: request instructions for `broker`'s rows of these writes.

    `idle` has the seconds since rows were last added to each write.
    """
    fields = {"broker": broker, "writes": [[name, max(0.0, seconds)] for name, seconds in idle.items()]}
    return Command(RequestCode.ASK_WRITES, fields, serialization=Serialization.MSGPACK)


@protocol_checked
def read_instructions(answer: Command) -> dict[str, PartsInstruction]:
    """Return the instruction for each write in an answer to ASK_WRITES."""
    parts = read_parts(answer.body)
    return {text(name): PartsInstruction(text(what), parts.get(name, {})) for name, what in answer.fields["orders"]}


def instructions_answer(orders: Mapping[str, PartsInstruction]) -> tuple[dict[str, Any], bytes]:
    """Return the fields and the body that `read_instructions` reads."""
    pairs = [[name, order.what] for name, order in orders.items()]
    return {"orders": pairs}, parts_body({name: order.parts for name, order in orders.items()})


def writes_done_command(
    broker: str, transactions: Sequence[str], missing: Mapping[str, tuple[int, str]] | None = None
) -> Command:
    """Return WRITES_DONE: `broker` has its parts of these writes in its log, on disk. Repeatable.

    Args:
        missing: by write how many rows are not in the log, and why.
    """
    fields = {"broker": broker, "transactions": list(transactions), "missing": missing_field(missing or {})}
    return Command(RequestCode.WRITES_DONE, fields, serialization=Serialization.MSGPACK)


def parts_body(parts: Mapping[str, Mapping[str, int]]) -> bytes:
    """Return the parts of each owner, with their row counts, as a body.

    An owner without parts is left out.

    Raises:
        InvalidInput: there are more than `MAX_PARTS`.
    """
    check_count(sum(map(len, parts.values())))
    packer = msgpack.Packer()
    pieces: list[bytes] = []
    for owner, each in parts.items():
        rows = list(each.items())
        begins = range(0, len(rows), PARTS_PER_PIECE)
        pieces.extend(packer.pack([owner, rows[at : at + PARTS_PER_PIECE]]) for at in begins)
    return b"".join(pieces)


def check_count(parts: int) -> None:
    """Raise InvalidInput if there are more parts than a write may have."""
    if parts > MAX_PARTS:
        raise InvalidInput(
            "parts",
            f"at most {MAX_PARTS:,} of one write",
            parts,
            remedy="have fewer tasks write: DataFrame.coalesce before bridge.write",
        )


def read_parts_steps(body: Buffer) -> Steps[Parts]:
    """Read a body that `parts_body` made, in steps.

    Raises:
        InvalidInput: the body is invalid, or has more than `MAX_PARTS`.
    """
    parts: Parts = {}
    count = 0
    unpacker = msgpack.Unpacker(
        raw=False,
        max_buffer_size=max(len(body), 1),
        max_array_len=PARTS_PER_PIECE,
        max_str_len=_MAX_NAME,
        max_bin_len=0,
        max_ext_len=0,
        max_map_len=0,
    )
    unpacker.feed(body)
    while unpacker.tell() < len(body):
        if parts:
            yield None
        try:
            owner, rows = unpacker.unpack()
            known = parts.setdefault(_name(owner), {})
            known.update((_name(part), _rows(row_count)) for part, row_count in rows)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise InvalidInput("body", "parts with their rows", str(error)[:200]) from None
        count += len(rows)
        check_count(count)
    return parts


def read_parts(body: Buffer) -> Parts:
    """Read a body like `read_parts_steps`, but at once."""
    return run_steps(read_parts_steps(body))


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not a text")
    return value


def _rows(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_ROWS:
        raise ValueError("not a valid number of rows")
    return value
