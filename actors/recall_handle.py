"""The handle for recalling a timer message, in RocketMQ's format.

It is URL-safe base64 of "v1 <topic> <broker> <due time in ms + 1> <unique key>".
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from raymq.storage.errors import InvalidInput

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The broker and the identity of a timer message."""

    topic: str
    broker: str
    due_ms: int
    unique_key: str

    def encode(self) -> str:
        """Return the handle as text, as a sender receives it."""
        text = f"{_VERSION} {self.topic} {self.broker} {self.due_ms + 1} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Decode a handle.

        Raises:
            InvalidInput: the text is not a handle.
        """
        try:
            version, topic, broker, stamp, unique_key = base64.b64decode(text, b"-_", validate=True).decode().split(" ")
            if version == _VERSION and unique_key:
                return cls(topic, broker, int(stamp) - 1, unique_key)
        except ValueError:
            pass
        raise InvalidInput("recall_handle", "a handle that a send returned", text)
