"""Handle the commands of transactions: ends, resumed checks, and RayMQ's list of open ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from raymq.actors.broker.context import BrokerContext, int_field
from raymq.actors.broker.core.transactions.half_message import HalfPosition
from raymq.actors.broker.core.transactions.transactional_message_service import EndOfTransaction
from raymq.actors.broker.handlers.broker_command import Commands, changes, reads
from raymq.actors.errors import InvalidInput, MessageNotFound
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.transaction_commands import ended_answer, listed_answer, outcome_of
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.transaction_headers import EndTransaction, ResumeCheckHalfMessage
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.records import message_id


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core = context.core

    def end(_: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        header = EndTransaction.read(request)
        outcome = outcome_of(header.commit_or_rollback)
        if outcome is None:
            raise InvalidInput("commitOrRollback", "0, or a sys flag of a transaction", header.commit_or_rollback)

        def store() -> Callable[[SendStatus], Command]:
            half = HalfPosition(header.tran_state_table_offset, header.commit_log_offset)
            keys = frozenset({header.msg_id, header.transaction_id} - {""})
            decision = EndOfTransaction(half, header.producer_group, outcome, keys, header.from_transaction_check)
            committed = core.transactions.end(decision)
            if committed is not None:
                context.statistics.put(committed.topic, 1, committed.size)
            return lambda status: ended_answer(request, status)

        return context.append(0, store)

    async def resume(_: ServerConnection, request: Command) -> Command:
        wanted = ResumeCheckHalfMessage.read(request).msg_id.upper()
        physical_offset = message_id.decode(wanted)[2]
        if core.view(physical_offset).message_id != wanted:
            raise MessageNotFound(f"no message has the id {wanted}")
        core.transactions.resume(physical_offset)
        waiting = context.when_durable(lambda _: request.response(ResponseCode.SUCCESS))
        return waiting if isinstance(waiting, Command) else await waiting

    def list_transactions(_: ServerConnection, request: Command) -> Command:
        begin, most = int_field(request, "begin"), int_field(request, "most")
        listed, following = core.transactions.listed(begin, most, given_up=bool(request.fields.get("given_up")))
        return listed_answer(request, listed, following)

    return {
        RequestCode.END_TRANSACTION: changes(end),
        RequestCode.RESUME_CHECK_HALF_MESSAGE: changes(resume),
        RequestCode.LIST_TRANSACTIONS: reads(list_transactions),
    }
