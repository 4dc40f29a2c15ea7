"""Headers of the commands that call messages back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header


@dataclass(frozen=True, slots=True)
class RecallMessage(Header):
    """RocketMQ's; it answers the unique key."""

    CODE: ClassVar = RequestCode.RECALL_MESSAGE
    topic: str
    recall_handle: str
