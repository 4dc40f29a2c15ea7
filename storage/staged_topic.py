"""Name the topic in which staged rows wait for their commit."""

from __future__ import annotations

from typing import Final

#: The topic of staged rows. No client sends to it or reads it.
STAGED_TOPIC: Final = "RMQ_SYS_STAGED_ROWS"
#: Its only queue.
STAGED_QUEUE: Final = (STAGED_TOPIC, 0)
