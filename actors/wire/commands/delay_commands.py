"""RayMQ's own commands.

List the messages that wait for their time, and the state of one message in its groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.response_validation import number, protocol_checked, read_list, text
from raymq.storage.records.record import Record, decode

_LEAST = -(1 << 63)


def delayed_command(topic: str | None, begin: Sequence[int] | None, most: int) -> Command:
    """Return LIST_DELAYED: request messages that wait for their time, of one topic or of all.

    Args:
        begin: the position that the previous answer named; None: from the beginning.
    """
    fields = {"topic": topic, "begin": None if begin is None else list(begin), "most": most}
    return Command(RequestCode.LIST_DELAYED, fields, serialization=Serialization.MSGPACK)


def delayed_answer(
    request: Command, records: Sequence[bytes], due_ms: Sequence[int], following: Sequence[int] | None
) -> Command:
    """Return the answer to LIST_DELAYED."""
    fields = {
        "due": list(due_ms),
        "sizes": [len(each) for each in records],
        "next": None if following is None else list(following),
    }
    return request.response(ResponseCode.SUCCESS, fields, b"".join(records))


@protocol_checked
def read_delayed(answer: Command) -> tuple[list[tuple[Record, int]], list[int] | None]:
    """Return the waiting records with their due times in ms, and the next `begin`."""
    found: list[tuple[Record, int]] = []
    position = 0
    for due_ms, size in zip(answer.fields["due"], answer.fields["sizes"], strict=True):
        found.append((decode(answer.body, position), number(due_ms)))
        position += number(size)
    following = answer.fields["next"]
    return found, None if following is None else read_list(following, lambda each: number(each, _LEAST))


def level_of(begin: Sequence[int]) -> int | None:
    """Return the delay level in which a page begins.

    None for the timers, which follow all levels.
    """
    return begin[1] if begin[0] == 0 else None


def skip_level(begin: Sequence[int]) -> list[int] | None:
    """Return where the next delay level begins, or None after the timers."""
    level = level_of(begin)
    return None if level is None else [0, level + 1, 0]


def message_states_command(topic: str, queue_id: int, offset: int) -> Command:
    """Return MESSAGE_STATES: request what each group has made of the message at an offset."""
    fields = {"topic": topic, "queue_id": queue_id, "offset": offset}
    return Command(RequestCode.MESSAGE_STATES, fields, serialization=Serialization.MSGPACK)


@protocol_checked
def read_message_states(answer: Command) -> dict[str, str]:
    """Return the state of the message in each group, from an answer to MESSAGE_STATES."""
    return {text(group): text(state) for group, state in answer.fields["states"]}
