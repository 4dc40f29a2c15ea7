"""Sending through a group's producer actor. The only file of the client that imports Ray, and only when asked to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import ray

from raymq.actors import handles
from raymq.actors.actor_options import make_producer
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError, SendError
from raymq.actors.naming import producer_name
from raymq.actors.producer_actor import IDLE_SECONDS, ProducerSpec
from raymq.actors.sending.send_plan import is_unknown
from raymq.actors.sending.sender import Sent, Terms
from raymq.client.connection import Connection

#: Ray needs about so long to restart an actor.
_RESTART_SECONDS = 0.5
#: What the call to the actor may take beyond the send's own budget.
_MARGIN_SECONDS = 2.0


class SharedSends:
    """Hands records to the actor. Tries at brokers are the actor's; one that finds the actor dead is made here."""

    def __init__(self, mq: Connection, group: str, isolation: str | None, *, idempotent: bool) -> None:
        """`isolation` is what the group's first producer says."""
        if mq.namespace is None:
            raise InvalidInput("shared", "a connection that reaches Ray (cluster.connect(namespace=...))", True)
        self._name = producer_name(group)
        self._idempotent = idempotent
        self._spec = ProducerSpec(group, tuple(mq.name_servers), isolation, mq.tls, IDLE_SECONDS)
        self._namespace = mq.namespace
        self._routes = mq.routes
        self._handle = make_producer(self._spec, mq.namespace)
        self._answered_at = time.monotonic()

    async def send(self, topic: str, records: bytearray, sizes: npt.NDArray[np.int32], terms: Terms) -> Sent:
        """As `Sender.send`.

        An actor that dies is tried again, as a broker is, once Ray may have restarted it. Its successor does not know
        its numbers, so an idempotent send that it may have stored ends with OutcomeUnknown. Nor does it know what the
        former one has sent: what it refuses may be stored all the same, and what it stores may be stored twice.
        """
        terms.check_time()
        if time.monotonic() - self._answered_at >= self._spec.idle_seconds / 2:
            await self._began_anew()  # it may have ended since nobody used it: then it has not died under this send
        plan = terms.plan()
        # As it was given, so that the actor finds it equal to others' and lets them travel together.
        left = terms
        while True:
            began = time.monotonic()
            try:
                sent = await self._call(topic, bytes(records), sizes, left)
            except BrokerUnavailable as error:
                self._answered_at = float("-inf")  # whoever sends next looks first, also where this is not tried again
                wait = plan.failed(None, error, time.monotonic() - began)
                if wait is None or not plan.remaining or (self._idempotent and is_unknown(error)):
                    raise plan.outcome() from error
                if not await self._began_anew():
                    await asyncio.sleep(max(wait, min(_RESTART_SECONDS, plan.remaining / 2)))
                left = replace(terms, timeout=plan.remaining)
            except RayMQError as error:
                if not plan.in_doubt:
                    raise
                if isinstance(error, SendError):
                    plan.attempts += error.attempts
                else:
                    plan.failed(None, error, time.monotonic() - began)
                raise plan.outcome() from error
            else:
                return await self._with_doubtful(sent, plan.remaining) if plan.in_doubt and terms.delayed else sent

    async def _with_doubtful(self, sent: Sent, seconds: float) -> Sent:
        """Of a delayed message that an actor which died may have sent to any broker: a recall has to ask them all."""
        brokers = set(sent.doubtful)
        with contextlib.suppress(RayMQError):
            brokers.update((await self._routes.get(sent.queue.topic, timeout=seconds)).addresses)
        return sent._replace(doubtful=tuple(sorted(brokers - {sent.queue.broker})))

    async def _began_anew(self) -> bool:
        """Whether there is another actor than before: one that ended since nobody used it is not started by Ray."""
        before = self._handle
        with contextlib.suppress(ValueError, ray.exceptions.RayError):  # it is just ending: looked at again
            self._handle = await asyncio.to_thread(make_producer, self._spec, self._namespace)
        return bool(self._handle != before)

    async def _call(self, topic: str, records: bytes, sizes: npt.NDArray[np.int32], terms: Terms) -> Sent:
        timeout = terms.timeout + _MARGIN_SECONDS
        arguments = (topic, records, sizes, terms, self._idempotent)
        sent: Sent = await handles.acall(self._name, self._handle, "send", *arguments, timeout=timeout)
        self._answered_at = time.monotonic()
        return sent
