"""Handle pop: messages are leased for a time, acknowledged and renewed, with long polling."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from raymq.actors.broker.context import BrokerContext, text_field
from raymq.actors.broker.core.pop.pop_request import PopRequest, PopResult
from raymq.actors.broker.core.pop.pop_service import MAX_INVISIBLE_MS
from raymq.actors.broker.core.reading.long_poll import QueueKey
from raymq.actors.broker.handlers.broker_command import Commands, changes, reads
from raymq.actors.errors import InvalidInput, PermissionDenied, StaleHandle
from raymq.actors.filter.tag_expression import ALL, TAG, MessageFilter, parse_filter_steps
from raymq.actors.naming import check_group
from raymq.actors.protocol import PERM_READ, SettleAction
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.batch_ack_commands import STALE, BatchAck, read_batch_acks
from raymq.actors.wire.commands.fetch_commands import MAX_ANSWER_BYTES
from raymq.actors.wire.commands.pop_commands import MAX_MESSAGES, SUSPECTS
from raymq.actors.wire.commands.settle_commands import read_settlements
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop_headers import (
    ANY_QUEUE,
    FROM_MAX,
    ORDERED_REVIVE_QUEUE,
    AckMessage,
    ChangeInvisibleTime,
    Notification,
    PopMessage,
    ReceiptHandle,
    retry_mark,
)
from raymq.actors.wire.loop_queue import LoopTurnLock
from raymq.actors.wire.server_connection import ServerConnection, discard_body
from raymq.actors.wire.stepwise_handlers import steps_handler
from raymq.storage.cooperative_steps import Steps
from raymq.storage.tables.in_flight_messages import ExpiryReason

#: A pop is parked at most this long, whatever its request says.
MAX_WAIT_SECONDS = 60.0
#: So many messages are acknowledged in one step; an entry costs as much as `_ENTRY_ACKS` of them, however many offsets
#: it names.
_ACKS_AT_ONCE = 1_000
_ENTRY_ACKS = 10
_STALE = "the handle is stale: acknowledged, renewed, expired or reset"


def pop_wait_key(group: str, topic: str, queue_id: int) -> QueueKey:
    """Return the key under which a group's pops are parked, besides the queue's own.

    No topic's name contains an @.
    """
    return f"{topic}@{group}", queue_id


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    turns = LoopTurnLock()
    return {**_taking(context, turns), **_telling(context, turns), **_ending(context), **_settling(context)}


def _taking(context: BrokerContext, turns: LoopTurnLock) -> Commands:
    core, pop = context.core, context.core.pop

    def pop_message(connection: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        header = PopMessage.read(request)
        message_filter = yield from parse_filter_steps(header.exp_type or TAG, header.exp or ALL)
        pop_request = _pop_request(context, header, message_filter)
        is_new = core.ensure_group(header.consumer_group)
        popped = pop.receive(pop_request)
        if not is_new and (popped.queues or (not header.poll_time and not popped.has_more)):
            return _popped(context, request, header, popped)
        return keep_popping(connection, request, header, message_filter, popped, is_new)

    async def keep_popping(
        connection: ServerConnection,
        request: Command,
        header: PopMessage,
        message_filter: MessageFilter,
        popped: PopResult,
        is_new: bool,
    ) -> Command:
        def receive() -> PopResult:
            """Pop again, with new checks: group and topic may have changed meanwhile."""
            return pop.receive(_pop_request(context, header, message_filter))

        if is_new:
            await context.announce()
            if not popped.queues:  # the messages that arrived meanwhile have woken no request
                popped = receive()
        deadline = _deadline(context, connection, header.poll_time)
        while not popped.queues:
            if popped.has_more:
                await asyncio.sleep(0)
            elif context.polls.is_full:
                return _popped(context, request, header, popped, ResponseCode.POLLING_FULL)
            elif not await _arrival(context, header.consumer_group, header.topic, header.queue_id, deadline):
                break
            await turns.take()
            if connection.is_gone:  # no client would receive the leased messages
                break
            popped = receive()
        return _popped(context, request, header, popped)

    return {RequestCode.POP_MESSAGE: reads(discard_body(steps_handler(pop_message)))}


def _telling(context: BrokerContext, turns: LoopTurnLock) -> Commands:
    core, pop = context.core, context.core.pop

    async def notification(connection: ServerConnection, request: Command) -> Command:
        header = Notification.read(request)
        group, topic = check_group(header.consumer_group), header.topic
        deadline = _deadline(context, connection, header.poll_time)

        def has_messages() -> bool:
            core.group_settings.check_may_consume(group, topic)
            context.groups.check_not_superseded(group, header.member)
            return pop.has_messages(group, topic, _queue_ids(context, topic, header.queue_id), ordered=header.order)

        full = False
        while not (has := has_messages()):
            full = context.polls.is_full
            if full or not await _arrival(context, group, topic, header.queue_id, deadline):
                break
            await turns.take()
        return request.response(ResponseCode.SUCCESS, {"hasMsg": has, "pollingFull": full})

    return {RequestCode.NOTIFICATION: reads(discard_body(notification))}


def _ending(context: BrokerContext) -> Commands:
    pop = context.core.pop

    def ack(_: ServerConnection, request: Command) -> Command:
        header = AckMessage.read(request)
        pop_time_ms = ReceiptHandle.read(header.extra_info).pop_time_ms
        done = pop.acknowledge(header.consumer_group, header.topic, header.queue_id, pop_time_ms, [header.offset])
        if not done:
            raise StaleHandle(_STALE)
        return request.response(ResponseCode.SUCCESS)

    def batch_ack(_: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        acks = read_batch_acks(request)
        if sum(ack.count for ack in acks) + _ENTRY_ACKS * len(acks) > _ACKS_AT_ONCE:
            return batch_ack_in_turns(request, acks)
        stale = sum(ack.count - acknowledge(ack, ack.offsets()) for ack in acks)
        return request.response(ResponseCode.SUCCESS, {STALE: stale})

    async def batch_ack_in_turns(request: Command, acks: list[BatchAck]) -> Command:
        """Acknowledge a large batch in pieces; other requests run between them."""
        stale = done = 0
        for ack in acks:
            offsets = ack.offsets()
            # An entry without offsets costs time, too.
            for at in range(0, max(1, len(offsets)), _ACKS_AT_ONCE):
                piece = offsets[at : at + _ACKS_AT_ONCE]
                stale += len(piece) - acknowledge(ack, piece)
                done += len(piece) + _ENTRY_ACKS
                if done >= _ACKS_AT_ONCE:
                    done = 0
                    await asyncio.sleep(0)
        return request.response(ResponseCode.SUCCESS, {STALE: stale})

    def acknowledge(ack: BatchAck, offsets: list[int]) -> int:
        return pop.acknowledge(ack.group, ack.topic, ack.queue_id, ack.pop_time_ms, offsets)

    def change_invisible(_: ServerConnection, request: Command) -> Command:
        header = ChangeInvisibleTime.read(request)
        handle = ReceiptHandle.read(header.extra_info)
        renewed_ms = pop.change_invisible(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.offset,
            handle.pop_time_ms,
            _invisible_ms(header.invisible_time),
            undelivered=bool(header.undelivered),
        )
        # Clients read these fields of a refusal, too.
        fields = {
            "popTime": renewed_ms or 0,
            "invisibleTime": header.invisible_time,
            "reviveQid": handle.revive_queue_id,
        }
        if renewed_ms is None:
            return request.response(ResponseCode.NO_MESSAGE, fields, remark=_STALE)
        return request.response(ResponseCode.SUCCESS, fields)

    return {
        RequestCode.ACK_MESSAGE: changes(ack),
        RequestCode.BATCH_ACK_MESSAGE: changes(batch_ack),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: changes(change_invisible),
    }


def _settling(context: BrokerContext) -> Commands:
    def settle(_: ServerConnection, request: Command) -> Command:
        settlements = read_settlements(request)
        for each in settlements:
            if each.action in (SettleAction.RUN, SettleAction.HOLD):
                _invisible_ms(each.argument)
        outcomes = context.core.pop.settle(text_field(request, "group"), settlements)
        return request.response(
            ResponseCode.SUCCESS, {"outcomes": [[int(outcome), delay_ms] for outcome, delay_ms in outcomes]}
        )

    return {RequestCode.SETTLE_DELIVERIES: changes(settle)}


def _pop_request(context: BrokerContext, header: PopMessage, message_filter: MessageFilter) -> PopRequest:
    config = context.core.group(header.consumer_group)
    context.core.group_settings.check_may_consume(config.name, header.topic)
    context.groups.check_not_superseded(config.name, header.member)
    if header.max_msg_nums < 1:
        raise InvalidInput("maxMsgNums", "at least 1", header.max_msg_nums)
    limit = header.max_reconsume_times
    queue_ids = _queue_ids(context, header.topic, header.queue_id)
    for queue_id in queue_ids:  # clear a pending reset: pops always follow the group's offset
        context.core.offsets.take_reset(header.consumer_group, header.topic, queue_id)
    return PopRequest(
        group=header.consumer_group,
        topic=header.topic,
        queue_ids=queue_ids,
        max_messages=min(MAX_MESSAGES, header.max_msg_nums),
        max_bytes=MAX_ANSWER_BYTES,
        invisible_ms=_invisible_ms(header.invisible_time),
        max_reconsume_times=config.retry_max_times if limit is None else limit,
        wanted=message_filter,
        from_end=header.init_mode == FROM_MAX,
        ordered=header.order,
        attempt_id=header.attempt_id,
        ending=ExpiryReason.UNANSWERED if header.begun else ExpiryReason.UNSEEN if header.ahead else ExpiryReason.TRIED,
    )


def _queue_ids(context: BrokerContext, topic: str, queue_id: int) -> range:
    config = context.core.topic(topic)
    if not config.perm & PERM_READ:
        raise PermissionDenied(f"topic {topic} may not be read on {context.core.name}")
    if queue_id >= config.read_queues:
        raise InvalidInput("queueId", f"{ANY_QUEUE}..{config.read_queues - 1}", queue_id)
    return range(config.read_queues) if queue_id < 0 else range(queue_id, queue_id + 1)


def _invisible_ms(requested_ms: int) -> int:
    if not 0 < requested_ms <= MAX_INVISIBLE_MS:
        raise InvalidInput("invisibleTime", f"1..{MAX_INVISIBLE_MS} ms", requested_ms)
    return requested_ms


def _deadline(context: BrokerContext, connection: ServerConnection, poll_ms: int) -> float:
    seconds = min(MAX_WAIT_SECONDS, connection.park_seconds, max(0, poll_ms) / 1000)
    return context.polls.clock() + seconds


async def _arrival(context: BrokerContext, group: str, topic: str, queue_id: int, deadline: float) -> bool:
    """Wait for a new or returned message; return False if the time is over.

    With a negative `queue_id` any queue of the topic counts, also one that the topic does not have yet.
    """
    polls = context.polls
    if polls.closed or polls.clock() >= deadline:
        return False
    woken = asyncio.Event()
    keys = (topic, queue_id), pop_wait_key(group, topic, queue_id)
    if queue_id < 0:
        parked = polls.park((), deadline, woken.set, topics=[name for name, _ in keys])
    else:
        parked = polls.park(keys, deadline, woken.set)
    try:
        await woken.wait()
    finally:
        polls.remove(parked)
    return True


def _popped(
    context: BrokerContext,
    request: Command,
    header: PopMessage,
    popped: PopResult,
    nothing: ResponseCode = ResponseCode.POLLING_TIMEOUT,
) -> Command:
    """Return the response to the client, which makes the handles from its fields."""
    fields: dict[str, Any] = {
        "popTime": popped.pop_time_ms,
        "invisibleTime": header.invisible_time,
        "reviveQid": ORDERED_REVIVE_QUEUE if header.order else 0,
        "restNum": popped.remaining,
    }
    if not popped.queues:
        return request.response(nothing, fields, remark=nothing.name)
    retry = retry_mark(header.topic)
    queues = popped.queues
    fields["startOffsetInfo"] = ";".join(f"{retry} {q.queue_id} {min(q.taken.offsets)}" for q in queues)
    fields["msgOffsetInfo"] = ";".join(f"{retry} {q.queue_id} {','.join(map(str, q.taken.offsets))}" for q in queues)
    if header.order:
        fields["orderCountInfo"] = ";".join(
            f"{retry} qo{q.queue_id}%{offset} {times}"
            for q in queues
            for offset, times in zip(q.taken.offsets, q.taken.reconsume_times, strict=True)
        )
    if suspects := [f"{q.queue_id} {offset}" for q in queues for offset in q.taken.suspects]:
        fields[SUSPECTS] = ";".join(suspects)
    messages = sum(len(q.taken.offsets) for q in queues)
    context.statistics.get(header.consumer_group, header.topic, messages, sum(q.taken.size_bytes for q in queues))
    pieces = [piece for q in queues for piece in q.taken.pieces]
    context.statistics.delivered(pieces[0])
    return request.response(ResponseCode.SUCCESS, fields, remark="FOUND", pieces=pieces)
