"""Staged writes (ours): records that many tasks bring, and that become visible together when their home says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.context import BrokerContext, integer, text
from raymq.actors.broker.core.appending.staged_delays import waiting_chunk
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.writes.deciding import Fate
from raymq.actors.broker.handlers.by_name import by_name
from raymq.actors.broker.write_follower import orders
from raymq.actors.errors import InvalidInput
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.append import read_sizes
from raymq.actors.wire.commands.staged_parts import parts_body, parts_in
from raymq.actors.wire.commands.staging import WriteFate, WriteWish, fate_fields, orders_answer
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.actors.wire.stepwise import in_steps, stepwise
from raymq.storage.steps import Steps

#: Why rows are missing, in characters.
_MOST_REASON: Final = 1_000


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core = context.core

    def stage(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        topic_queue, records, sizes = yield from _to_stage(core, request)
        home = text(request, "home")
        core.homes.check_known(home)
        transaction, part, number = text(request, "transaction"), text(request, "part"), integer(request, "number")
        keep = core.staging.staging(transaction, part, number, topic_queue, records, sizes, home)
        return _when_kept(keep, request)

    async def commit(_: ServerConnection, request: Command) -> Command:
        transaction = text(request, "transaction")
        parts = await stepwise(parts_in(request.body))
        done = await context.commits.commit(transaction, parts.get(transaction, {}))
        rows, reason = done.missing or (0, "")
        return request.response(ResponseCode.SUCCESS, {"added": done.added, "missing": rows, "reason": reason})

    async def abort(_: ServerConnection, request: Command) -> Command:
        await context.commits.abort(text(request, "transaction"))
        return request.response(ResponseCode.SUCCESS)

    async def open_write(_: ServerConnection, request: Command) -> Command:
        names = text(request, "transaction"), text(request, "topic"), text(request, "series")
        return await told(request, core.writes.open, *names, integer(request, "number"))

    async def decide(_: ServerConnection, request: Command) -> Command:
        transaction = text(request, "transaction")
        try:
            wish = WriteWish(text(request, "wish"))
        except ValueError:
            raise InvalidInput(
                "wish", f"one of {[wish.value for wish in WriteWish]}", request.fields.get("wish")
            ) from None
        if wish is WriteWish.COMMIT:
            return await told(request, core.writes.commit, transaction, await stepwise(parts_in(request.body)))
        if wish is WriteWish.ACCEPT:
            lost = {str(name): _count(count) for name, count in _rows(request, "accepted", 2)}
            return await told(request, core.writes.accept, transaction, lost)
        return await told(request, core.writes.abort if wish is WriteWish.ABORT else core.writes.look, transaction)

    async def told(request: Command, decide: Callable[..., Fate], *arguments: Any) -> Command:
        """The answer that tells what a method of the core's `writes` says: it may have many parts."""
        return await context.commits.decide(lambda: _told(request, decide(*arguments)))

    async def ask(_: ServerConnection, request: Command) -> Command:
        idle = {str(name): _seconds(seconds) for name, seconds in _rows(request, "writes", 2)}
        broker = text(request, "broker")
        fields, body = await context.commits.decide(lambda: orders_answer(orders(core, broker, idle)))
        return request.response(ResponseCode.SUCCESS, fields, body)

    async def done(_: ServerConnection, request: Command) -> Command:
        names = request.fields.get("transactions")
        if not isinstance(names, list):
            raise InvalidInput("transactions", "a list of names", names)
        rows = _rows(request, "missing", 3) if "missing" in request.fields else []
        missing = {str(name): (_count(count), str(reason)[:_MOST_REASON]) for name, count, reason in rows}
        for name in map(str, names):
            await context.commits.decide(core.writes.finished, name, text(request, "broker"), missing.get(name))
        return request.response(ResponseCode.SUCCESS)

    return by_name(
        core.name,
        {
            RequestCode.STAGE_RECORDS: in_steps(stage),
            RequestCode.COMMIT_STAGED: commit,
            RequestCode.ABORT_STAGED: abort,
            RequestCode.OPEN_WRITE: open_write,
            RequestCode.DECIDE_WRITE: decide,
            RequestCode.ASK_WRITES: ask,
            RequestCode.WRITES_DONE: done,
        },
    )


def _to_stage(core: BrokerCore, request: Command) -> Steps[tuple[tuple[str, int], memoryview, npt.NDArray[np.int32]]]:
    """Queue, records and sizes of a chunk as they are to be kept: those of one that is delayed as they will wait."""
    topic_queue = text(request, "topic"), integer(request, "queue_id")
    records, sizes = memoryview(request.body), read_sizes(request)
    core.check_writable(*topic_queue)
    if not request.fields.get("delayed"):
        return topic_queue, records, sizes
    core.store.check(records, sizes, topic_queue)
    return (yield from waiting_chunk(core.schedule, core.timers, topic_queue, records, sizes))


async def _when_kept(keep: Callable[[], None], request: Command) -> Command:
    await asyncio.to_thread(keep)
    return request.response(ResponseCode.SUCCESS)


def _told(request: Command, fate: Fate) -> Command:
    record, instead = fate.record, fate.instead
    parts = {} if record is None else {broker: record.parts[broker] for broker in record.unfinished}
    told = WriteFate(
        "unknown" if fate.decision is None else fate.decision.value,
        "" if record is None else record.topic,
        0 if record is None else record.rows,
        parts,
        {} if record is None else record.missing,
        *(("", 0, 0) if instead is None else (instead.transaction, instead.number, instead.rows)),
        accepted={} if record is None else record.accepted,
    )
    return request.response(ResponseCode.SUCCESS, fate_fields(told), parts_body(parts))


def _rows(request: Command, name: str, width: int) -> list[list[Any]]:
    """A list of lists of so many values."""
    value = request.fields.get(name)
    if not isinstance(value, list) or not all(isinstance(row, list) and len(row) == width for row in value):
        raise InvalidInput(name, f"a list of lists of {width} values", value)
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise InvalidInput("missing", "a number of rows in each", value)
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or not 0.0 <= value < 1e12:
        raise InvalidInput("writes", "seconds of each", value)
    return float(value)
