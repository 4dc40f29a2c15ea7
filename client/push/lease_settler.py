"""Report leased messages to their brokers: begun calls, outcomes, renewals and returns.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from raymq.actors.backoff import Backoff
from raymq.actors.errors import RayMQError
from raymq.actors.protocol import SettleAction, SettleOutcome, SettleResult
from raymq.actors.sending.send_plan import is_unanswered
from raymq.actors.supervisor import Supervisor
from raymq.client.client_metrics import ConsumeCounts
from raymq.client.pop.pop_requests import SettlementBatcher
from raymq.client.push.message_leases import MessageLease, MessageLeases
from raymq.storage.clock import boottime

#: How long to retry the announcement of a call while the broker does not respond.
_BEGIN_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class LeaseSettler:
    """The settlements of one consumer's leased messages."""

    def __init__(
        self,
        requests: SettlementBatcher,
        leases: MessageLeases,
        lease_ms: int,
        supervisor: Supervisor,
        counts: Callable[[str], ConsumeCounts],
    ) -> None:
        """Initialize the settlements; `counts` returns the counts of a topic."""
        self._requests = requests
        self._leases = leases
        self._lease_ms = lease_ms
        self._supervisor = supervisor
        self._counts = counts
        #: The tasks of settlements that `idle` awaits.
        self._under_way: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine that settles messages; `idle` awaits it."""
        task = self._supervisor.once("settling of messages", work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def idle(self) -> None:
        """Wait until the brokers have responded to all settlements."""
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self._requests.idle()

    def cancel(self) -> None:
        """Cancel the settlements that have not ended."""
        for task in self._under_way:
            task.cancel()

    def acknowledge(self, lease: MessageLease) -> asyncio.Future[SettleResult]:
        """Acknowledge a message once, and return a future of the outcome."""
        return self._requests.settle(lease.message, SettleAction.ACK)

    async def announce(self, leases: Sequence[MessageLease]) -> list[bool]:
        """Announce a call to its broker.

        Return for each message whether this consumer still has its lease.
        """
        deadline = boottime() + min(_BEGIN_SECONDS, self._lease_ms / 1000)
        backoff = Backoff(first=0.1, cap=1.0)
        while True:
            asked_at = boottime()
            try:
                outcomes = await asyncio.gather(
                    *(self._requests.settle(lease.message, SettleAction.RUN, self._lease_ms) for lease in leases)
                )
            except RayMQError as error:
                _log.debug("begin of a call: %s", error)
                if boottime() >= deadline or not error.retriable:
                    return [False] * len(leases)
                await asyncio.sleep(backoff.next_delay())
                continue
            for lease in leases:
                self._leases.renewed(lease, asked_at)
            return [result.outcome is not SettleOutcome.STALE for result in outcomes]

    async def settle(
        self,
        lease: MessageLease,
        action: SettleAction,
        argument: int = 0,
        reason: str = "",
        request: asyncio.Future[SettleResult] | None = None,
    ) -> SettleResult | None:
        """Settle a message, with retries until its lease ends.

        Return None if it was not settled.

        Args:
            request: the future of the first attempt, if it was made already.
        """
        backoff = Backoff(first=0.1, cap=1.0)
        is_unknown = False
        while True:
            try:
                result = await (request or self._requests.settle(lease.message, action, argument, reason))
            except RayMQError as error:
                request, is_unknown = None, is_unknown or is_unanswered(error)
                if boottime() >= lease.ends_at or not error.retriable:
                    _log.debug("%s of %s: %s", action.name, lease.place, error)
                    return None
                await asyncio.sleep(backoff.next_delay())
                continue
            # Otherwise an attempt without a response may have settled it.
            if result.outcome is SettleOutcome.STALE and not is_unknown and action is not SettleAction.RETURN:
                _log.warning("%s was settled after the end of its lease: it comes again", _named(lease))
            return result

    def give_back(self, leases: Iterable[MessageLease]) -> None:
        """Return messages with which no call has begun to their brokers."""
        for lease in leases:
            self.spawn(self.settle(lease, SettleAction.RETURN))

    def renew_due(self) -> None:
        """Renew the leases that are due, with one request per broker, and record lost ones."""
        for lease in self._leases.over():
            self._lose(lease)
        ahead, running = self._leases.due()
        for lease in ahead:
            self._renew(lease, SettleAction.HOLD)
        for lease in running:
            self._renew(lease, SettleAction.RUN)

    def _renew(self, lease: MessageLease, action: SettleAction) -> None:
        asked_at = boottime()
        lease.is_renewing = True
        lease.is_begun = action is SettleAction.RUN

        def done(answer: asyncio.Future[SettleResult]) -> None:
            lease.is_renewing = False
            if answer.cancelled() or answer.exception() is not None:
                return  # it is still due until it expires
            if answer.result().outcome is SettleOutcome.STALE:
                self._lose(lease)
            else:
                self._leases.renewed(lease, asked_at)

        self._requests.settle(lease.message, action, self._lease_ms).add_done_callback(done)

    def _lose(self, lease: MessageLease) -> None:
        """Record that a lease is lost. Another member may have the message by now."""
        receipt = lease.message.receipt
        found = self._leases.running(lease.place)
        if found is not None and found[1] is lease and receipt is not None and not receipt.is_lost:
            receipt.is_lost = True
            self._counts(lease.message.queue.topic).lease_losses += 1
            _log.warning("the lease of %s was lost while its call runs: another member may get it", _named(lease))
        self._leases.drop(lease)


def _named(lease: MessageLease) -> str:
    queue, offset = lease.place
    return f"message {lease.message.message_id} ({queue}, offset {offset})"
