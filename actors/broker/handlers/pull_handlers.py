"""Handle RocketMQ's pull: one queue for one group, parked while nothing is new.

A parked pull is a future and an entry of the `LongPollingService`. An arrival makes the parked pulls of its queue read
again, one after the other. A pull that finds no matching message stays parked, at the offset after the messages that it
has read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import FetchPosition
from raymq.actors.broker.core.reading.pull_reader import PullResult, PullStatus, pull
from raymq.actors.broker.handlers.broker_command import Commands, reads
from raymq.actors.errors import GroupNotFound, InvalidInput, PermissionDenied, QueueNotFound, StoreError
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.filter.tag_expression import ALL, TAG, MessageFilter, Subscription
from raymq.actors.protocol import MASTER_ID
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.fetch_commands import MAX_ANSWER_BYTES
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pull_headers import COMMIT_OFFSET, HAS_SUBSCRIPTION, MAY_PARK, PullMessage
from raymq.actors.wire.loop_queue import LoopQueue, call_or_fail
from raymq.actors.wire.server_connection import ServerConnection, discard_body
from raymq.actors.wire.stepwise_handlers import steps_handler
from raymq.storage.cooperative_steps import Steps

#: A pull is parked at most this long, whatever its request says.
MAX_WAIT_SECONDS = 60.0

_CODES = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NOTHING_NEW: ResponseCode.PULL_NOT_FOUND,
    PullStatus.NOTHING_MATCHED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_MOVED: ResponseCode.PULL_OFFSET_MOVED,
}


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    turns = LoopQueue()

    def pull_message(connection: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        header = PullMessage.read(request)
        refusal, subscription = _subscription(context, header)
        if refusal is not None:
            return request.response(refusal, remark=f"no subscription of {header.consumer_group} to {header.topic}")
        message_filter = yield from subscription.parse_filter_steps()
        pull = _Pull(context, turns, request, header, message_filter)
        found = pull.attempt()  # raises if the queue does not exist
        queue = header.topic, header.queue_id
        context.groups.record_connection_fetch(header.consumer_group, connection, queue, pull.position)
        if header.sys_flag & COMMIT_OFFSET and found.status is not PullStatus.OFFSET_MOVED:
            _commit(context.core, header)
        if found.status is PullStatus.NOTHING_NEW and header.sys_flag & MAY_PARK and not context.polls.is_full:
            return pull.park(connection.park_seconds)
        return pull.answer(found)

    return dict.fromkeys(
        (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE), reads(discard_body(steps_handler(pull_message)))
    )


class _Pull:
    """One pull in progress."""

    __slots__ = ("_context", "_deadline", "_future", "_header", "_parked", "_request", "_turns", "_want", "position")

    def __init__(
        self,
        context: BrokerContext,
        turns: LoopQueue,
        request: Command,
        header: PullMessage,
        message_filter: MessageFilter,
    ) -> None:
        self._context = context
        self._turns = turns
        self._request = request
        self._header = header
        self._want = FetchSpec(
            header.topic, header.queue_id, header.queue_offset, message_filter.tags_codes, message_filter.sql
        )
        #: What the group's member has received of the queue.
        self.position = FetchPosition(header.queue_offset)

    def attempt(self) -> PullResult:
        """Pull now and return the result.

        Raise what `pull` raises, but InvalidInput instead of QueueNotFound.
        """
        header = self._header
        limits = max(1, header.max_msg_nums), min(MAX_ANSWER_BYTES, max(1, header.max_msg_bytes))
        try:
            return pull(self._context.core, header.consumer_group, self._want, *limits)
        except QueueNotFound as error:
            raise InvalidInput("queueId", str(error), header.queue_id) from error

    def park(self, at_most_seconds: float) -> asyncio.Future[Command]:
        """Park the pull and return a future of its answer.

        Cancelling the future ends the wait.
        """
        polls = self._context.polls
        self._deadline = polls.clock() + min(
            MAX_WAIT_SECONDS, at_most_seconds, self._header.suspend_timeout_millis / 1000
        )
        self._future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._wait()
        self._future.add_done_callback(lambda future: polls.remove(self._parked) if future.cancelled() else None)
        return self._future

    def answer(self, found: PullResult) -> Command:
        """Return the response to the client."""
        code = _CODES[found.status]
        if found.next_offset != self._header.queue_offset and found.status is PullStatus.NOTHING_NEW:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY  # it was parked, and has skipped messages that do not match
        fields = {
            "suggestWhichBrokerId": MASTER_ID,
            "nextBeginOffset": found.next_offset,
            "minOffset": found.min_offset,
            "maxOffset": found.max_offset,
        }
        if found.lease is None:
            return self._request.response(code, fields, remark=code.name)
        self.position.offset = found.next_offset
        with found.lease as lease:
            self._context.statistics.get(
                self._header.consumer_group, self._header.topic, len(lease), int(lease.sizes.sum())
            )
            self._context.statistics.delivered(lease.parts[0])
            return self._request.response(code, fields, remark="FOUND", pieces=lease.parts)

    def _wait(self) -> None:
        queue = (self._want.topic, self._want.queue_id)
        self._parked = self._context.polls.park([queue], self._deadline, partial(self._turns.add, self._again))

    def _again(self) -> None:
        """Read again after an arrival or the end of the wait: answer, or wait on."""
        call_or_fail(self._future, self._attempt_again)

    def _attempt_again(self) -> None:
        header = self._header
        self._context.core.group_settings.check_may_consume(header.consumer_group, header.topic)
        found = self.attempt()
        idle = found.status in (PullStatus.NOTHING_NEW, PullStatus.NOTHING_MATCHED)
        polls = self._context.polls
        if idle and not polls.closed and polls.clock() < self._deadline:
            self._want = replace(self._want, offset=found.next_offset)
            self._wait()
        else:
            self._future.set_result(self.answer(found))


def _subscription(context: BrokerContext, header: PullMessage) -> tuple[ResponseCode | None, Subscription]:
    """Return the group's subscription to the topic, or the code that refuses the pull.

    The subscription comes from the request or from the group's newest heartbeat.

    Raises:
        PermissionDenied: the group may not consume, or not by broadcasting.
    """
    config = context.core.group(header.consumer_group)
    context.core.group_settings.check_may_consume(config.name, header.topic)
    subscription = Subscription(
        header.topic, header.subscription or ALL, header.expression_type or TAG, header.sub_version
    )
    if header.sys_flag & HAS_SUBSCRIPTION:
        return None, subscription
    group = context.groups.consumer_groups().get(config.name)
    if group is not None and group.latest.message_model == "BROADCASTING" and not config.consume_broadcast_enable:
        raise PermissionDenied(f"the consumer group[{config.name}] can not consume by broadcast way")
    known = None if group is None else group.subscriptions.get(header.topic)
    if known is None:
        return ResponseCode.SUBSCRIPTION_NOT_EXIST, subscription
    return (ResponseCode.SUBSCRIPTION_NOT_LATEST if known.version < header.sub_version else None), known


def _commit(core: BrokerCore, header: PullMessage) -> None:
    """Commit the offset that came with a pull.

    An offset that cannot be committed, as on a full disk, does not fail the pull.
    """
    with contextlib.suppress(InvalidInput, GroupNotFound, StoreError):
        core.make_group(header.consumer_group)
        core.offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset, forward_only=False
        )
