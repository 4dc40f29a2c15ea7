"""Handle staged writes (RayMQ's own), which become visible together on commit.

Many tasks bring the records; the write's coordinator decides about the commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.context import BrokerContext, int_field, text_field
from raymq.actors.broker.core.appending.staged_delays import delay_chunk_steps
from raymq.actors.broker.core.writes.transaction_coordinator import TransactionStatus
from raymq.actors.broker.handlers.broker_command import Commands, changes, guard_target_broker, reads_confirmed
from raymq.actors.broker.staged_commits import resolve_writes
from raymq.actors.errors import InvalidInput
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.append_commands import read_sizes
from raymq.actors.wire.commands.staged_write_commands import (
    TransactionAction,
    TransactionReply,
    instructions_answer,
    parts_body,
    read_parts_steps,
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
    family = _StagedWriteHandlers(context)
    return guard_target_broker(
        context.core.name,
        {
            RequestCode.STAGE_RECORDS: changes(steps_handler(family.stage)),
            RequestCode.COMMIT_STAGED: changes(family.commit),
            RequestCode.ABORT_STAGED: changes(family.abort),
            RequestCode.OPEN_WRITE: changes(family.open_write),
            RequestCode.DECIDE_WRITE: changes(family.decide),
            RequestCode.ASK_WRITES: reads_confirmed(family.ask),
            RequestCode.WRITES_DONE: changes(family.done),
        },
    )


class _StagedWriteHandlers:
    """The handlers of one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._core = context.core
        self._commits = context.commits

    # -- on a broker with rows -----------------------------------------------------------------------------------

    def stage(self, _: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        """Store a chunk of records, invisible until the commit."""
        topic_queue, records, sizes = yield from self._records_to_stage(request)
        transaction, coordinator = text_field(request, "transaction"), text_field(request, "home")
        self._core.coordinators.check_known(coordinator)
        place = text_field(request, "part"), int_field(request, "number"), topic_queue
        staging = self._core.staging
        chunk = staging.append_chunk(transaction, *place, records, sizes, coordinator)
        yield lambda: staging.record_chunk(transaction, coordinator, chunk)
        return request.response(ResponseCode.SUCCESS)

    def _records_to_stage(self, request: Command) -> Steps[tuple[tuple[str, int], memoryview, npt.NDArray[np.int32]]]:
        """Return queue, records and sizes of a chunk as they are to be staged.

        Records of a delayed chunk are encoded for the queue in which they wait.
        """
        core, topic_queue = self._core, (text_field(request, "topic"), int_field(request, "queue_id"))
        records, sizes = memoryview(request.body), read_sizes(request)
        core.check_writable(*topic_queue)
        if not request.fields.get("delayed"):
            return topic_queue, records, sizes
        core.store.check(records, sizes, topic_queue)
        return (yield from delay_chunk_steps(core.schedule, core.timers, topic_queue, records, sizes))

    async def commit(self, _: ServerConnection, request: Command) -> Command:
        """Append the rows of a committed write."""
        transaction = text_field(request, "transaction")
        parts = await stepwise(read_parts_steps(request.body))
        done = await self._commits.commit(transaction, parts.get(transaction, {}))
        rows, reason = done.missing or (0, "")
        return request.response(ResponseCode.SUCCESS, {"added": done.added, "missing": rows, "reason": reason})

    async def abort(self, _: ServerConnection, request: Command) -> Command:
        """Drop the rows of an aborted write."""
        await self._commits.abort(text_field(request, "transaction"))
        return request.response(ResponseCode.SUCCESS)

    # -- on the coordinator --------------------------------------------------------------------------------------

    async def open_write(self, _: ServerConnection, request: Command) -> Command:
        """Open a write, of which this broker is the coordinator."""
        names = text_field(request, "transaction"), text_field(request, "topic"), text_field(request, "series")
        return await self._respond(request, self._core.writes.open, *names, int_field(request, "number"))

    async def decide(self, _: ServerConnection, request: Command) -> Command:
        """Commit or abort a write, accept its loss of rows, or only return its status."""
        writes, transaction = self._core.writes, text_field(request, "transaction")
        try:
            action = TransactionAction(text_field(request, "wish"))
        except ValueError:
            actions = [action.value for action in TransactionAction]
            raise InvalidInput("wish", f"one of {actions}", request.fields.get("wish")) from None
        if action is TransactionAction.COMMIT:
            parts = await stepwise(read_parts_steps(request.body))
            return await self._respond(request, writes.commit, transaction, parts)
        if action is TransactionAction.ACCEPT:
            lost = {str(name): _count(count) for name, count in _rows(request, "accepted", 2)}
            return await self._respond(request, writes.accept_missing, transaction, lost)
        call = writes.abort if action is TransactionAction.ABORT else writes.transaction_status
        return await self._respond(request, call, transaction)

    async def _respond(self, request: Command, decide: Callable[..., TransactionStatus], *arguments: Any) -> Command:
        """Return the answer with the status that a method of the core's `writes` returns.

        It is encoded on another thread, because it may have many parts.
        """
        return await self._commits.decide(lambda: _transaction_response(request, decide(*arguments)))

    async def ask(self, _: ServerConnection, request: Command) -> Command:
        """Tell another broker what to do with its rows of these writes."""
        idle = {str(name): _seconds(seconds) for name, seconds in _rows(request, "writes", 2)}
        broker = text_field(request, "broker")
        fields, body = await self._commits.decide(lambda: instructions_answer(resolve_writes(self._core, broker, idle)))
        return request.response(ResponseCode.SUCCESS, fields, body)

    async def done(self, _: ServerConnection, request: Command) -> Command:
        """Record that another broker has its rows of these writes in its log."""
        names = request.fields.get("transactions")
        if not isinstance(names, list):
            raise InvalidInput("transactions", "a list of names", names)
        rows = _rows(request, "missing", 3) if "missing" in request.fields else []
        missing = {str(name): (_count(count), str(reason)[:_MAX_REASON]) for name, count, reason in rows}
        broker = text_field(request, "broker")
        for name in map(str, names):
            await self._commits.decide(self._core.writes.mark_finished, name, broker, missing.get(name))
        return request.response(ResponseCode.SUCCESS)


def _transaction_response(request: Command, status: TransactionStatus) -> Command:
    record, instead = status.record, status.instead
    parts = {} if record is None else {broker: record.parts[broker] for broker in record.unfinished}
    reply = TransactionReply(
        "unknown" if status.decision is None else status.decision.value,
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
