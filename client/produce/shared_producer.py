"""Send through a group's producer actor.

This is the only file of the client that imports Ray, and it is imported only for shared producers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import ray

from raymq.actors import actor_calls
from raymq.actors.actor_options import make_producer
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError, SendError
from raymq.actors.naming import producer_name
from raymq.actors.producer_actor import IDLE_SECONDS, ProducerSpec
from raymq.actors.sending.send_counts import SendCounts
from raymq.actors.sending.send_plan import SendParameters, is_unknown
from raymq.actors.sending.sender import SendOutcome
from raymq.client.connection import Connection

#: About how long Ray needs to restart an actor.
_RESTART_SECONDS = 0.5
#: How long the call to the actor may take in addition to the send's own time budget.
_MARGIN_SECONDS = 2.0


class SharedSender:
    """A sender that hands records to the producer actor.

    The actor makes the attempts at brokers. If the actor has died, this class retries with a new actor.
    """

    def __init__(self, mq: Connection, group: str, isolation: str | None, counts: SendCounts | None = None) -> None:
        """Initialize the sender, which counts its sends in `counts`.

        Args:
            isolation: the isolation strategy. The setting of the group's first producer applies.
        """
        if mq.namespace is None:
            raise InvalidInput("shared", "a connection that reaches Ray (cluster.connect(namespace=...))", True)
        self._name = producer_name(group)
        self._spec = ProducerSpec(group, tuple(mq.name_servers), isolation, mq.tls, IDLE_SECONDS)
        self._counts = counts
        self._namespace = mq.namespace
        self._routes = mq.routes
        self._handle = make_producer(self._spec, mq.namespace)
        self._answered_at = time.monotonic()

    async def send(
        self, topic: str, records: bytearray, sizes: npt.NDArray[np.int32], terms: SendParameters
    ) -> SendOutcome:
        """Send records, as `Sender.send`.

        If the actor dies, the send is retried, as for a broker, when Ray may have restarted the actor. The new actor
        does not have the old actor's sequence numbers, so an idempotent send that the old one may have stored ends with
        OutcomeUnknown. The new actor does not know either what the old one sent: messages that it refuses may still be
        stored, and messages that it stores may be stored twice.
        """
        terms.check_time()
        if self._counts is None:
            return await self._send(topic, records, sizes, terms)
        began = time.monotonic()
        try:
            sent = await self._send(topic, records, sizes, terms)
        except RayMQError as error:
            self._counts.failed(topic, len(sizes), error)
            raise
        self._counts.stored(topic, len(sizes), time.monotonic() - began)
        return sent

    async def _send(
        self, topic: str, records: bytearray, sizes: npt.NDArray[np.int32], terms: SendParameters
    ) -> SendOutcome:
        if time.monotonic() - self._answered_at >= self._spec.idle_seconds / 2:
            await self._renew_actor()  # an idle actor may have ended by itself, and did not die during this send
        plan = terms.plan()
        # Unchanged, so that the actor finds the terms equal to those of other sends and can join them.
        remaining_terms = terms
        while True:
            began = time.monotonic()
            try:
                sent = await self._call(topic, bytes(records), sizes, remaining_terms)
            except BrokerUnavailable as error:
                self._answered_at = float("-inf")  # the next send checks the actor first
                wait = plan.failed(None, error, time.monotonic() - began)
                if wait is None or not plan.remaining or (terms.idempotent and is_unknown(error)):
                    raise plan.outcome() from error
                if not await self._renew_actor():
                    await asyncio.sleep(max(wait, min(_RESTART_SECONDS, plan.remaining / 2)))
                remaining_terms = replace(terms, timeout=plan.remaining)
            except RayMQError as error:
                if not plan.is_in_doubt:
                    raise
                if isinstance(error, SendError):
                    plan.attempts += error.attempts
                else:
                    plan.failed(None, error, time.monotonic() - began)
                raise plan.outcome() from error
            else:
                return await self._with_doubtful(sent, plan.remaining) if plan.is_in_doubt and terms.delayed else sent

    async def _with_doubtful(self, sent: SendOutcome, seconds: float) -> SendOutcome:
        """Add all brokers to the result of a delayed message.

        An actor that died may have sent the message to any broker, so a recall has to ask all of them.
        """
        brokers = set(sent.doubtful)
        with contextlib.suppress(RayMQError):
            brokers.update((await self._routes.get(sent.queue.topic, timeout=seconds)).addresses)
        return sent._replace(doubtful=tuple(sorted(brokers - {sent.queue.broker})))

    async def _renew_actor(self) -> bool:
        """Return True if there is a new actor.

        Ray does not restart an actor that ended because it was idle, so it is created here.
        """
        before = self._handle
        with contextlib.suppress(ValueError, ray.exceptions.RayError):  # the actor is ending now: it is checked again
            self._handle = await asyncio.to_thread(make_producer, self._spec, self._namespace)
        return bool(self._handle != before)

    async def _call(
        self, topic: str, records: bytes, sizes: npt.NDArray[np.int32], terms: SendParameters
    ) -> SendOutcome:
        timeout = terms.timeout + _MARGIN_SECONDS
        arguments = (topic, records, sizes, terms)
        sent: SendOutcome = await actor_calls.call_async(self._name, self._handle, "send", *arguments, timeout=timeout)
        self._answered_at = time.monotonic()
        return sent
