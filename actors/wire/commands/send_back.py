"""CONSUMER_SEND_MSG_BACK: a consumer failed on a message, which comes again later or goes to the dead letters."""

from __future__ import annotations

from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.send import ConsumerSendMsgBack
from raymq.storage.records.failure_reason import failure_reason

#: Ours, in the answer: why nothing can be made of the message any more. A foreign client goes on, as after a retry.
SET_ASIDE = "raymqSetAside"
#: Ours, in the answer: how long the message waits for its next try, in milliseconds.
DELAY_MS = "raymqDelayMillis"


def send_back_command(
    group: str,
    topic: str,
    physical_offset: int,
    message_id: str,
    delay_level: int,
    max_reconsume_times: int | None,
    failure: str = "",
) -> Command:
    """Say that the message at `physical_offset` failed, and why."""
    return ConsumerSendMsgBack(
        offset=physical_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message_id,
        origin_topic=topic,
        max_reconsume_times=max_reconsume_times,
        failure=failure_reason(failure),
    ).command()
