"""Answer a broker's question what this member of a group is doing.

Administrators send the question to a broker, which relays it: RocketMQ's GET_CONSUMER_RUNNING_INFO.
"""

from __future__ import annotations

from collections import Counter

from raymq.actors.wire.commands import member_commands
from raymq.actors.wire.commands.group_commands import Member
from raymq.actors.wire.commands.member_commands import CallStatus, MemberStatus, RepeatedMessage
from raymq.actors.wire.connection_pool import WireConnection
from raymq.actors.wire.frame import Command
from raymq.client.push.consume_message_service import ConsumeMessageService


class StatusResponder:
    """Answers the questions that name one member. Called on the connection's loop."""

    def __init__(self, member: Member, delivery: ConsumeMessageService) -> None:
        self._member = member
        self._delivery = delivery

    def __call__(self, _: WireConnection, request: Command) -> Command | None:
        """Return the answer to a request.

        None if the request asks something else, or someone else.
        """
        if not member_commands.is_status_request(request, self._member.group, self._member.client_id):
            return None
        in_flight = Counter[str]()
        for process in self._delivery.queues():
            in_flight[process.queue.topic] += process.in_flight
        return member_commands.member_status_answer(request, self._status(), self._member.subscriptions, in_flight)

    def _status(self) -> MemberStatus:
        return MemberStatus(
            [CallStatus(each.queue, each.seconds) for each in self._delivery.running_calls()],
            [
                RepeatedMessage(
                    message.queue,
                    message.queue_offset,
                    message.message_id,
                    message.reconsume_times,
                    message.failure or "",
                )
                for message in self._delivery.repeated_messages()
            ],
            self._delivery.is_paused,
        )
