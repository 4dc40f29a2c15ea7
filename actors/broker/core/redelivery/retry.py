"""Decide what follows when a consumer failed on a message: a retry or the DLQ.

Retries wait for growing delay levels. Source: RocketMQ's AbstractSendMessageProcessor, consumerSendMsgBack and
handleRetryAndDLQ.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The first retry waits level 3 (10 s in the default table), the next level 4, ...
FIRST_RETRY_LEVEL = 3
#: A higher number is invalid: a sender invented it, or a byte is damaged.
MAX_RECONSUME_TIMES = 1 << 30


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The decision to redeliver after delay level `level` (1-based)."""

    level: int


@dataclass(frozen=True, slots=True)
class MoveToDlq:
    """The decision to move to the dead-letter queue; `reason` is kept with the message."""

    reason: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The outcome that neither a retry nor a dead letter could be stored.

    `reason` says why.
    """

    reason: str


def clamp_reconsume_times(reconsume_times: int) -> int:
    """Return the reconsume times of a sender or a record, clamped to the valid range."""
    return min(max(0, reconsume_times), MAX_RECONSUME_TIMES)


# -- the broker's reasons for a dead letter, if the consumer gave none ----------------------------------------------


def failed(times: int) -> str:
    """Return the reason of a message that failed `times` times."""
    return f"failed {times} times"


def no_copy_reason(reason: str, failure: str = "") -> str:
    """Return the reason of a message that cannot be copied for another try."""
    return f"cannot be copied for another try: {reason}" + (f"; {failure}" if failure else "")


def decide_retry(
    reconsume_times: int, delay_level: int, max_reconsume_times: int, levels: int, failure: str = ""
) -> RetryLater | MoveToDlq:
    """Decide for a message that was delivered for the (`reconsume_times` + 1)-th time and failed.

    Args:
        reconsume_times: how often it has been retried already.
        delay_level: the listener's request: 0 for the growing delays, k >= 1 for that level, below 0 for the DLQ at
            once.
        max_reconsume_times: retries allowed; the group's or the consumer's.
        levels: length of the delay table; higher levels are clamped to it.
        failure: why the consumer failed; "" if it gave no reason.
    """
    if delay_level < 0:
        return MoveToDlq(failure or "the listener asked for it")
    if reconsume_times >= max_reconsume_times:
        return MoveToDlq(failure or failed(reconsume_times + 1))
    return RetryLater(min(delay_level or FIRST_RETRY_LEVEL + reconsume_times, levels))


def decide_resent(reconsume_times: int, max_reconsume_times: int, *, ordered: bool) -> MoveToDlq | None:
    """Decide for a retry that a client sent itself; None if it may be retried.

    Args:
        reconsume_times: this retry included.
        ordered: the group consumes in order. Its consumers retry locally, and send only messages that they have given
            up.
    """
    if ordered:
        return MoveToDlq("an ordered consumer gave up on it")
    if reconsume_times > max_reconsume_times:
        return MoveToDlq(failed(reconsume_times))
    return None
