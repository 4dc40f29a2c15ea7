"""Handle staged writes (RayMQ's own), which become visible together on commit.

Many tasks bring the records; the write's coordinator decides about the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.context import BrokerContext, int_field, text_field
from raymq.actors.broker.core.appending.staged_delays import delay_chunk_steps
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.writes.transaction_coordinator import TransactionStatus
from raymq.actors.broker.handlers.broker_command import Commands, changes, reads_confirmed
from raymq.actors.broker.handlers.target_broker_guard import guard_target_broker
from raymq.actors.broker.in_doubt_resolver import resolve_writes
from raymq.actors.errors import InvalidInput
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.append_commands import read_sizes
from raymq.actors.wire.commands.staged_parts import parts_body, read_parts_steps
from raymq.actors.wire.commands.staged_write_commands import (
    TransactionAction,
    TransactionReply,
    instructions_answer,
    transaction_reply_fields,
)
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import steps_handler, stepwise
from raymq.storage.cooperative_steps import Steps

#: The longest stored reason for missing rows, in characters.
_MAX_REASON: Final = 1_000


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core = context.core

    def stage(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        topic_queue, records, sizes = yield from _to_stage(core, request)
        coordinator = text_field(request, "home")
        core.coordinators.check_known(coordinator)
        transaction, part, number = (
            text_field(request, "transaction"),
            text_field(request, "part"),
            int_field(request, "number"),
        )
        keep = core.staging.prepare_chunk(transaction, part, number, topic_queue, records, sizes, coordinator)
        return _when_kept(keep, request)

    async def commit(_: ServerConnection, request: Command) -> Command:
        transaction = text_field(request, "transaction")
        parts = await stepwise(read_parts_steps(request.body))
        done = await context.commits.commit(transaction, parts.get(transaction, {}))
        rows, reason = done.missing or (0, "")
        return request.response(ResponseCode.SUCCESS, {"added": done.added, "missing": rows, "reason": reason})

    async def abort(_: ServerConnection, request: Command) -> Command:
        await context.commits.abort(text_field(request, "transaction"))
        return request.response(ResponseCode.SUCCESS)

    async def open_write(_: ServerConnection, request: Command) -> Command:
        names = text_field(request, "transaction"), text_field(request, "topic"), text_field(request, "series")
        return await respond(request, core.writes.open, *names, int_field(request, "number"))

    async def decide(_: ServerConnection, request: Command) -> Command:
        transaction = text_field(request, "transaction")
        try:
            action = TransactionAction(text_field(request, "wish"))
        except ValueError:
            raise InvalidInput(
                "wish", f"one of {[action.value for action in TransactionAction]}", request.fields.get("wish")
            ) from None
        if action is TransactionAction.COMMIT:
            return await respond(
                request, core.writes.commit, transaction, await stepwise(read_parts_steps(request.body))
            )
        if action is TransactionAction.ACCEPT:
            lost = {str(name): _count(count) for name, count in _rows(request, "accepted", 2)}
            return await respond(request, core.writes.accept_missing, transaction, lost)
        return await respond(
            request,
            core.writes.abort if action is TransactionAction.ABORT else core.writes.transaction_status,
            transaction,
        )

    async def respond(request: Command, decide: Callable[..., TransactionStatus], *arguments: Any) -> Command:
        """Return the answer with the status that a method of the core's `writes` returns.

        It is encoded on another thread, because it may have many parts.
        """
        return await context.commits.decide(lambda: _transaction_response(request, decide(*arguments)))

    async def ask(_: ServerConnection, request: Command) -> Command:
        idle = {str(name): _seconds(seconds) for name, seconds in _rows(request, "writes", 2)}
        broker = text_field(request, "broker")
        fields, body = await context.commits.decide(lambda: instructions_answer(resolve_writes(core, broker, idle)))
        return request.response(ResponseCode.SUCCESS, fields, body)

    async def done(_: ServerConnection, request: Command) -> Command:
        names = request.fields.get("transactions")
        if not isinstance(names, list):
            raise InvalidInput("transactions", "a list of names", names)
        rows = _rows(request, "missing", 3) if "missing" in request.fields else []
        missing = {str(name): (_count(count), str(reason)[:_MAX_REASON]) for name, count, reason in rows}
        for name in map(str, names):
            await context.commits.decide(
                core.writes.mark_finished, name, text_field(request, "broker"), missing.get(name)
            )
        return request.response(ResponseCode.SUCCESS)

    return guard_target_broker(
        core.name,
        {
            RequestCode.STAGE_RECORDS: changes(steps_handler(stage)),
            RequestCode.COMMIT_STAGED: changes(commit),
            RequestCode.ABORT_STAGED: changes(abort),
            RequestCode.OPEN_WRITE: changes(open_write),
            RequestCode.DECIDE_WRITE: changes(decide),
            RequestCode.ASK_WRITES: reads_confirmed(ask),
            RequestCode.WRITES_DONE: changes(done),
        },
    )


def _to_stage(core: BrokerCore, request: Command) -> Steps[tuple[tuple[str, int], memoryview, npt.NDArray[np.int32]]]:
    """Return queue, records and sizes of a chunk as they are to be staged.

    Records of a delayed chunk are encoded for the queue in which they wait.
    """
    topic_queue = text_field(request, "topic"), int_field(request, "queue_id")
    records, sizes = memoryview(request.body), read_sizes(request)
    core.check_writable(*topic_queue)
    if not request.fields.get("delayed"):
        return topic_queue, records, sizes
    core.store.check(records, sizes, topic_queue)
    return (yield from delay_chunk_steps(core.schedule, core.timers, topic_queue, records, sizes))


async def _when_kept(keep: Callable[[], None], request: Command) -> Command:
    await asyncio.to_thread(keep)
    return request.response(ResponseCode.SUCCESS)


def _transaction_response(request: Command, fate: TransactionStatus) -> Command:
    record, instead = fate.record, fate.instead
    parts = {} if record is None else {broker: record.parts[broker] for broker in record.unfinished}
    reply = TransactionReply(
        "unknown" if fate.decision is None else fate.decision.value,
        "" if record is None else record.topic,
        0 if record is None else record.rows,
        parts,
        {} if record is None else record.missing,
        *(("", 0, 0) if instead is None else (instead.transaction, instead.number, instead.rows)),
        accepted={} if record is None else record.accepted,
    )
    return request.response(ResponseCode.SUCCESS, transaction_reply_fields(reply), parts_body(parts))


def _rows(request: Command, name: str, width: int) -> list[list[Any]]:
    """Return a field that is a list of lists of `width` values."""
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
        raise InvalidInput("writes", "a number of seconds in each", value)
    return float(value)
