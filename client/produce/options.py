"""What each send may be given beside its message: one type for all of the producer's calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from raymq.actors.errors import InvalidInput, QueueNotFound
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.sender import Terms
from raymq.client import arguments, limits


class SendOptions(TypedDict, total=False):
    """Keyword arguments of every send.

    queue, sharding_key: fix the queue, one or the other; every try goes there, and order of successes is order of
        delivery.
    timeout, retries: instead of the producer's own.
    """

    queue: MessageQueue | None
    sharding_key: str | None
    timeout: float | None
    retries: int | None


NO_OPTIONS = SendOptions()
_NAMES = frozenset(SendOptions.__annotations__)


def checked_timeout(timeout: float) -> float:
    """A send's budget in seconds; InvalidInput."""
    return arguments.duration("timeout", timeout, above=True)


def checked_retries(retries: int) -> int:
    """How many further tries a send has; InvalidInput."""
    return arguments.whole("retries", retries, 0)


@dataclass(frozen=True, slots=True)
class SendDefaults:
    """What holds for a producer's sends that say nothing else."""

    timeout: float
    retries: int
    async_retry: Literal["same", "another"]
    insist_on_ok: bool

    def __post_init__(self) -> None:
        checked_timeout(self.timeout)
        checked_retries(self.retries)
        arguments.flag("retry_another_broker_when_not_store_ok", self.insist_on_ok)
        if self.async_retry not in ("same", "another"):
            raise InvalidInput("async_retry", '"same" or "another"', self.async_retry)

    def terms(self, topic: str, options: Any, *, delayed: bool = False, in_background: bool = False) -> Terms:
        """A send to `topic` with `options` (`SendOptions`); TypeError, InvalidInput, QueueNotFound."""
        if not options.keys() <= _NAMES:
            raise TypeError(f"unknown arguments: {sorted(options.keys() - _NAMES)}; known are {sorted(_NAMES)}")
        queue, sharding_key = options.get("queue"), options.get("sharding_key")
        if queue is not None:
            if sharding_key is not None:
                raise InvalidInput("sharding_key", limits.SHARDING_KEY, sharding_key)
            arguments.queue("queue", queue)
            if queue.topic != topic:
                raise QueueNotFound(f"{queue} is of topic {queue.topic}, not of {topic}")
        elif sharding_key is not None:
            if not isinstance(sharding_key, str):
                raise TypeError(f"sharding_key must be str, not {type(sharding_key).__name__}")
            arguments.encodable("sharding_key", sharding_key)
        timeout, retries = options.get("timeout"), options.get("retries")
        return Terms(
            self.timeout if timeout is None else checked_timeout(timeout),
            self.retries if retries is None else checked_retries(retries),
            queue,
            sharding_key,
            in_background and self.async_retry == "same",
            delayed,
            self.insist_on_ok,
        )
