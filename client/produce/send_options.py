"""Define and check the options of a send, for all methods of the producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from raymq.actors.errors import InvalidInput, QueueNotFound
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.send_plan import SendParameters
from raymq.client import arguments, producer_limits


class SendOptions(TypedDict, total=False):
    """Keyword arguments of every send.

    queue, sharding_key: fix the queue; only one of them may be given. Every attempt goes to that queue, and messages
        are delivered in the order in which their sends succeeded.
    timeout, retries: used instead of the producer's own settings.
    """

    queue: MessageQueue | None
    sharding_key: str | None
    timeout: float | None
    retries: int | None


NO_OPTIONS = SendOptions()
_NAMES = frozenset(SendOptions.__annotations__)


def checked_timeout(timeout: float) -> float:
    """Return a send's time budget in seconds. Raise InvalidInput if it is not valid."""
    return arguments.duration("timeout", timeout, above=True)


def checked_retries(retries: int) -> int:
    """Return a send's number of retries. Raise InvalidInput if it is not valid."""
    return arguments.whole("retries", retries, 0)


@dataclass(frozen=True, slots=True)
class SendDefaults:
    """The settings of a producer that apply to sends without their own options."""

    timeout: float
    retries: int
    async_retry: Literal["same", "another"]
    require_send_ok: bool
    idempotent: bool = False

    def __post_init__(self) -> None:
        checked_timeout(self.timeout)
        checked_retries(self.retries)
        arguments.flag("retry_another_broker_when_not_store_ok", self.require_send_ok)
        arguments.flag("idempotent", self.idempotent)
        if self.async_retry not in ("same", "another"):
            raise InvalidInput("async_retry", '"same" or "another"', self.async_retry)

    def terms(self, topic: str, options: Any, *, delayed: bool = False, in_background: bool = False) -> SendParameters:
        """Return the parameters of a send to `topic` with `options` (`SendOptions`).

        Raise TypeError, InvalidInput or QueueNotFound if an option is not valid.
        """
        if not options.keys() <= _NAMES:
            raise TypeError(f"unknown arguments: {sorted(options.keys() - _NAMES)}; known are {sorted(_NAMES)}")
        queue, sharding_key = options.get("queue"), options.get("sharding_key")
        if queue is not None:
            if sharding_key is not None:
                raise InvalidInput("sharding_key", producer_limits.SHARDING_KEY, sharding_key)
            arguments.queue("queue", queue)
            if queue.topic != topic:
                raise QueueNotFound(f"{queue} is of topic {queue.topic}, not of {topic}")
        elif sharding_key is not None:
            if not isinstance(sharding_key, str):
                raise TypeError(f"sharding_key must be str, not {type(sharding_key).__name__}")
            arguments.encodable("sharding_key", sharding_key)
        timeout, retries = options.get("timeout"), options.get("retries")
        return SendParameters(
            self.timeout if timeout is None else checked_timeout(timeout),
            self.retries if retries is None else checked_retries(retries),
            queue,
            sharding_key,
            in_background and self.async_retry == "same",
            delayed,
            self.require_send_ok,
            idempotent=self.idempotent,
        )
