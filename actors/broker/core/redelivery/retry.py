"""What happens to a message that a consumer failed on: the ladder of waits, then the dead-letter queue.

Source: RocketMQ's AbstractSendMessageProcessor, consumerSendMsgBack and handleRetryAndDLQ.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The first retry waits level 3 (10 s in the default table), the next level 4, ...
FIRST_RETRY_LEVEL = 3
#: A higher number is no count: it is what a sender made up, or a damaged byte.
MOST_RECONSUME_TIMES = 1 << 30


@dataclass(frozen=True, slots=True)
class Later:
    """Come again after delay level `level` (1-based)."""

    level: int


@dataclass(frozen=True, slots=True)
class Dead:
    """To the dead-letter queue; `reason` is kept with the message."""

    reason: str


@dataclass(frozen=True, slots=True)
class PutAside:
    """Nothing can be made of it any more, for that reason."""

    reason: str


def counted(reconsume_times: int) -> int:
    """How often a message came again, as its sender or its record says: within what can be counted on."""
    return min(max(0, reconsume_times), MOST_RECONSUME_TIMES)


# -- what a broker says why a message is a dead letter, where no consumer says it -----------------------------------


def failed(times: int) -> str:
    """Return the reason of a message that failed so many times."""
    return f"failed {times} times"


def no_copy(reason: str, failure: str = "") -> str:
    """Return the reason of a message of which no copy for another try can be made."""
    return f"no copy for another try: {reason}" + (f"; {failure}" if failure else "")


def after_failure(
    reconsume_times: int, delay_level: int, max_reconsume_times: int, levels: int, failure: str = ""
) -> Later | Dead:
    """Decide for a message that was delivered for the (`reconsume_times` + 1)-th time and failed.

    Args:
        reconsume_times: how often it has been retried already.
        delay_level: what the listener asked for: 0 the ladder, k >= 1 that level, below 0 the DLQ at once.
        max_reconsume_times: retries allowed; the group's or the consumer's.
        levels: length of the delay table; higher levels clamp to it.
        failure: what its consumer says why it failed; "": nothing.
    """
    if delay_level < 0:
        return Dead(failure or "the listener asked for it")
    if reconsume_times >= max_reconsume_times:
        return Dead(failure or failed(reconsume_times + 1))
    return Later(min(delay_level or FIRST_RETRY_LEVEL + reconsume_times, levels))


def after_resending(reconsume_times: int, max_reconsume_times: int, *, ordered: bool) -> Dead | None:
    """Decide for a retry that a client sent itself; None: it may come again.

    Args:
        reconsume_times: this retry included.
        ordered: the group consumes in order. It repeats in place, and sends only what it has given up.
    """
    if ordered:
        return Dead("an ordered consumer gave it up")
    if reconsume_times > max_reconsume_times:
        return Dead(failed(reconsume_times))
    return None
