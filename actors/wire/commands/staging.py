"""Staged writes (ours): records that many tasks bring, and that become visible together when their home says so.

STAGE_RECORDS, COMMIT_STAGED and ABORT_STAGED go to the brokers that have the rows; OPEN_WRITE and DECIDE_WRITE to the
write's home, which decides; ASK_WRITES and WRITES_DONE from those brokers to the home.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.append import INT32, pack
from raymq.actors.wire.commands.staged_parts import parts_body, read_parts
from raymq.actors.wire.frame import Buffer, Command, Serialization
from raymq.actors.wire.told import number, reader, text


class WriteWish(enum.Enum):
    """What a driver wants of a write."""

    COMMIT = "commit"
    ABORT = "abort"
    LOOK = "look"
    ACCEPT = "accept"


class WriteFate(NamedTuple):
    """What the home of a write says of it.

    Attributes:
        decision: "open", "committed", "aborted"; "unknown": never opened there, or long over.
        rows: of all parts that are committed.
        parts: of each broker that has not said that it has all of it in the log: each part with its rows.
        missing: by broker how many of its rows are not there, and why, as far as the brokers have said so.
        accepted: by broker how many missing rows the writer does without.
        instead: an earlier write that stands for this one of its series, and its number and rows; "" and zeros: none.
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


class Order(NamedTuple):
    """What the home has a broker do with its rows of a write: "wait", "append" these parts, or "drop" them."""

    what: str
    parts: Mapping[str, int]


def stage_command(
    transaction: str,
    part: str,
    number: int,
    topic_queue: tuple[str, int],
    records: Buffer,
    sizes: npt.NDArray[np.int32],
    home: str,
    *,
    delayed: bool = False,
) -> Command:
    """STAGE_RECORDS: keep a chunk until the broker `home` has decided about its transaction.

    All records of one that is `delayed` have a time to be delivered at, or all have the same delay level.
    """
    fields = {
        "transaction": transaction,
        "part": part,
        "number": number,
        "topic": topic_queue[0],
        "queue_id": topic_queue[1],
        "sizes": pack(sizes, INT32),
        "home": home,
    }
    if delayed:
        fields["delayed"] = True
    return Command(RequestCode.STAGE_RECORDS, fields, records, serialization=Serialization.MSGPACK)


def commit_staged_command(transaction: str, parts: Mapping[str, int]) -> Command:
    """COMMIT_STAGED: make the chunks of `parts`, each of so many rows here, visible. May be repeated."""
    body = parts_body({transaction: parts})
    return Command(RequestCode.COMMIT_STAGED, {"transaction": transaction}, body, serialization=Serialization.MSGPACK)


@reader
def read_appended(answer: Command) -> tuple[int, str] | None:
    """The answer to COMMIT_STAGED: how many rows are not there, and why; None: all are."""
    rows = number(answer.fields["missing"])
    return (rows, text(answer.fields["reason"])) if rows else None


def missing_field(missing: Mapping[str, tuple[int, str]]) -> list[list[Any]]:
    """Rows that are not there and why, by a broker or a write."""
    return [[name, rows, reason] for name, (rows, reason) in missing.items()]


def _read_missing(told: Any) -> dict[str, tuple[int, str]]:
    return {text(name): (number(rows), text(reason)) for name, rows, reason in told}


def abort_staged_command(transaction: str) -> Command:
    """ABORT_STAGED: forget the transaction's chunks."""
    return Command(RequestCode.ABORT_STAGED, {"transaction": transaction}, serialization=Serialization.MSGPACK)


def open_write_command(transaction: str, topic: str, series: str, number: int) -> Command:
    """OPEN_WRITE: this broker is the home of a write, the `number`th one of `series`, if that is not "". Repeatable."""
    fields = {"transaction": transaction, "topic": topic, "series": series, "number": number}
    return Command(RequestCode.OPEN_WRITE, fields, serialization=Serialization.MSGPACK)


def decide_write_command(
    transaction: str, wish: WriteWish, parts: Mapping[str, Mapping[str, int]] | None = None
) -> Command:
    """DECIDE_WRITE: commit these parts (by broker, each with its rows), or abort, or only look. May be repeated."""
    fields = {"transaction": transaction, "wish": wish.value}
    return Command(RequestCode.DECIDE_WRITE, fields, parts_body(parts or {}), serialization=Serialization.MSGPACK)


def accept_write_command(transaction: str, missing: Mapping[str, int]) -> Command:
    """DECIDE_WRITE: the writer does without so many rows of these brokers. May be repeated."""
    fields = {"transaction": transaction, "wish": WriteWish.ACCEPT.value, "accepted": counts_field(missing)}
    return Command(RequestCode.DECIDE_WRITE, fields, parts_body({}), serialization=Serialization.MSGPACK)


def counts_field(rows: Mapping[str, int]) -> list[list[Any]]:
    """How many rows, by broker."""
    return [[name, count] for name, count in rows.items()]


@reader
def read_fate(answer: Command) -> WriteFate:
    """The answer to OPEN_WRITE and DECIDE_WRITE."""
    fields = answer.fields
    return WriteFate(
        text(fields["decision"]),
        text(fields["topic"]),
        number(fields["rows"]),
        read_parts(answer.body),
        _read_missing(fields["missing"]),
        text(fields["instead"]),
        number(fields["instead_number"]),
        number(fields["instead_rows"]),
        # Older versions told none.
        {text(name): number(rows) for name, rows in fields.get("accepted", [])},
    )


def fate_fields(fate: WriteFate) -> dict[str, Any]:
    """What `read_fate` reads, but for the parts, which are in the body."""
    return {
        "decision": fate.decision,
        "topic": fate.topic,
        "rows": fate.rows,
        "missing": missing_field(fate.missing),
        "instead": fate.instead,
        "instead_number": fate.instead_number,
        "instead_rows": fate.instead_rows,
        "accepted": counts_field(fate.accepted),
    }


def ask_writes_command(broker: str, idle: Mapping[str, float]) -> Command:
    """ASK_WRITES: what is `broker` to do with its rows of these writes, to which nothing was added for so long?"""
    fields = {"broker": broker, "writes": [[name, max(0.0, seconds)] for name, seconds in idle.items()]}
    return Command(RequestCode.ASK_WRITES, fields, serialization=Serialization.MSGPACK)


@reader
def read_orders(answer: Command) -> dict[str, Order]:
    """The answer to ASK_WRITES."""
    parts = read_parts(answer.body)
    return {text(name): Order(text(what), parts.get(name, {})) for name, what in answer.fields["orders"]}


def orders_answer(orders: Mapping[str, Order]) -> tuple[dict[str, Any], bytes]:
    """The fields and the body that `read_orders` reads."""
    told = [[name, order.what] for name, order in orders.items()]
    return {"orders": told}, parts_body({name: order.parts for name, order in orders.items()})


def writes_done_command(
    broker: str, transactions: Sequence[str], missing: Mapping[str, tuple[int, str]] | None = None
) -> Command:
    """WRITES_DONE: `broker` has all of its parts of these writes in its log, on disk. May be repeated.

    Args:
        missing: by write how many rows are not, and why.
    """
    fields = {"broker": broker, "transactions": list(transactions), "missing": missing_field(missing or {})}
    return Command(RequestCode.WRITES_DONE, fields, serialization=Serialization.MSGPACK)
