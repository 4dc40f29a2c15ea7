"""Sending through a group's producer actor. The only file of the client that imports Ray, and only when asked to."""

from __future__ import annotations

import asyncio

import numpy as np
import numpy.typing as npt

from raymq.actors import handles
from raymq.actors.errors import Attempt, BrokerUnavailable, InvalidInput, NotStored, OutcomeUnknown, Timeout
from raymq.actors.naming import producer_name
from raymq.actors.producer import ProducerSpec
from raymq.actors.sending import Sent, Terms
from raymq.actors.spec import make_producer
from raymq.client.connection import Connection

#: What the call to the actor may take beyond the send's own budget.
_MARGIN_SECONDS = 2.0


class SharedSends:
    """Hands records to the actor; the tries and their budget are the actor's."""

    def __init__(self, mq: Connection, group: str, isolation: str | None) -> None:
        if mq.namespace is None:
            raise InvalidInput("shared", "a connection that reaches Ray (cluster.connect(namespace=...))", True)
        self._name = producer_name(group)
        self._handle = make_producer(ProducerSpec(group, tuple(mq.name_servers), isolation, mq.tls), mq.namespace)

    async def send(self, topic: str, records: bytearray, sizes: npt.NDArray[np.int32], terms: Terms) -> Sent:
        """As `Sender.send`; a producer actor that dies on the way leaves the outcome unknown."""
        return await asyncio.to_thread(self._call, topic, bytes(records), sizes, terms)

    def _call(self, topic: str, records: bytes, sizes: npt.NDArray[np.int32], terms: Terms) -> Sent:
        timeout = terms.timeout + _MARGIN_SECONDS
        try:
            answer = handles.call(self._name, self._handle, "send", topic, records, sizes, terms, timeout=timeout)
        except Timeout as error:
            raise OutcomeUnknown("the producer actor did not answer", [self._attempt(error)]) from error
        except BrokerUnavailable as error:
            raise NotStored("the producer actor is gone", [self._attempt(error)]) from error
        sent: Sent = answer
        return sent

    def _attempt(self, error: Exception) -> Attempt:
        return Attempt(self._name, None, None, str(error), 0.0)
