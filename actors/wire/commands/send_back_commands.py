"""CONSUMER_SEND_MSG_BACK: report that a consumer failed on a message.

The message is redelivered later or becomes a dead letter.
"""

from __future__ import annotations

from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.send_headers import ConsumerSendMsgBack
from raymq.storage.records.failure_reason import failure_reason

#: Ours, in the answer: why the message cannot be redelivered any more. A foreign client continues as after a retry.
QUARANTINE_REASON = "raymqSetAside"
#: Ours, in the answer: how long the message waits for its next attempt, in milliseconds.
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
    """Return a report that the message at `physical_offset` failed, and why."""
    return ConsumerSendMsgBack(
        offset=physical_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message_id,
        origin_topic=topic,
        max_reconsume_times=max_reconsume_times,
        failure=failure_reason(failure),
    ).command()
