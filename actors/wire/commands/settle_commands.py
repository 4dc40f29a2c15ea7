"""SETTLE_DELIVERIES (ours): settle many deliveries of one group on one broker.

The deliveries may be of any topics and queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import SettleAction, Settlement, SettleOutcome, SettleResult
from raymq.actors.request_limits import MAX_SETTLED, check_count
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.response_validation import protocol_checked

_FORM = "a list of [topic, queue id, offset, pop time, action, argument, reason]"
_MOST = 1 << 62


def settle_command(group: str, settlements: Sequence[Settlement]) -> Command:
    """Return the request for these settlements, at most MAX_SETTLED."""
    fields = {"group": group, "deliveries": [list(each) for each in settlements]}
    return Command(RequestCode.SETTLE_DELIVERIES, fields, serialization=Serialization.MSGPACK)


def read_settlements(request: Command) -> list[Settlement]:
    """Return the settlements in a request.

    Raises:
        InvalidInput: the fields are not as `settle_command` makes them, or have too many deliveries.
    """
    items = request.fields.get("deliveries")
    if not isinstance(items, list):
        raise InvalidInput("deliveries", _FORM, type(items).__name__)
    check_count("deliveries", "deliveries", len(items), MAX_SETTLED)
    return [_settlement(each) for each in items]


def _settlement(item: Any) -> Settlement:
    try:
        topic, queue_id, offset, pop_time_ms, action, argument, reason = item
        numbers = queue_id, offset, pop_time_ms, argument
        if not (isinstance(topic, str) and isinstance(reason, str)):
            raise TypeError
        if not all(type(number) is int and -_MOST <= number <= _MOST for number in numbers):
            raise TypeError
        return Settlement(topic, queue_id, offset, pop_time_ms, SettleAction(action), argument, reason)
    except (TypeError, ValueError):
        raise InvalidInput("deliveries", _FORM, repr(item)[:100]) from None


@protocol_checked
def read_settled(answer: Command) -> list[SettleResult]:
    """Return the outcome of each delivery."""
    return [SettleResult(SettleOutcome(outcome), int(delay_ms)) for outcome, delay_ms in answer.fields["outcomes"]]
