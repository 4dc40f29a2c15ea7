"""The base class of the consumers whose program asks for messages."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

from raymq.client.client_base import ClientBase
from raymq.client.message import ReceivedMessage


class ReceivingClient(ClientBase):
    """A consumer that returns messages to its caller."""

    group: str

    def processing(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> AbstractContextManager[object]:
        """Return a context manager for the processing of received messages.

        On a connection with `tracing=True` the block is a span. For one message its trace is that of the message's
        sender; for several it has links to their senders. On other connections it does nothing.
        """
        several = [messages] if isinstance(messages, ReceivedMessage) else messages
        tracer = self._mq.tracer
        return contextlib.nullcontext() if tracer is None or not several else tracer.processing(several, self.group)

    def _traced(self, messages: list[ReceivedMessage], began_ns: int) -> list[ReceivedMessage]:
        """Return the messages of a call, and make its span if the connection traces.

        `began_ns` is the time at which the call began.
        """
        if self._mq.tracer is not None and messages:
            self._mq.tracer.received(messages, self.group, began_ns)
        return messages
