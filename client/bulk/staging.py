"""All-or-nothing writes by many tasks: each stages its records on brokers, the driver commits those of the winners.

Nothing is visible before the commit (`committing`). Staging may be repeated after any failure without a duplicate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from raymq.actors.protocol import MessageQueue, Tls
from raymq.actors.request_limits import PART_BYTES
from raymq.actors.sending.longest_body import limit_of, longest_body, refuse_longer
from raymq.actors.wire.commands import staging as wire_staging
from raymq.actors.wire.frame import Command
from raymq.client.requests.asking import ask
from raymq.client.task_connection import TaskConnection

#: One staging request may take this long.
_REQUEST_SECONDS = 60.0
#: Of chunks that are staged at the same time, and one.
_MOST_BYTES = 2 * PART_BYTES
_MOST_CHUNKS = 32


class StagedWriter(TaskConnection):
    """For tasks of other processes: it needs addresses only. One thread."""

    def __init__(self, name_servers: Sequence[str], tls: Tls | None = None) -> None:
        super().__init__(name_servers, tls)
        self._under_way: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def stage(
        self,
        transaction: str,
        part: str,
        number: int,
        queue: MessageQueue,
        records: bytes | bytearray | memoryview,
        sizes: npt.NDArray[np.int32],
        *,
        home: str,
        delayed: bool = False,
    ) -> None:
        """`begin` and `settle`."""
        self.begin(transaction, part, number, queue, records, sizes, home=home, delayed=delayed)
        self.settle()

    def begin(
        self,
        transaction: str,
        part: str,
        number: int,
        queue: MessageQueue,
        records: bytes | bytearray | memoryview,
        sizes: npt.NDArray[np.int32],
        *,
        home: str,
        delayed: bool = False,
    ) -> None:
        """Begin to have chunk `number` of `part`, at most 8 MiB or one message, kept on the broker of `queue`. It is on
        its disk when `settle` returns.

        Several are under way at the same time: it waits while that are too many bytes.

        Args:
            home: the broker that decides about the transaction; it was opened there.
            delayed: all records have a time to be delivered at, or all have the same delay level.

        Raises:
            InvalidInput, TopicNotFound, QueueNotFound, PermissionDenied, BrokerUnavailable: of this chunk, or of one
                before it.
        """
        while self._under_way and (self._bytes + len(records) > _MOST_BYTES or len(self._under_way) >= _MOST_CHUNKS):
            self._wait_for_first()
        longest = longest_body(records, sizes)

        async def attempt() -> None:
            if longest:
                refuse_longer(longest, limit_of(await self._mq.routes.get(queue.topic), queue.broker))
            chunk = transaction, part, number, (queue.topic, queue.queue_id)
            command = wire_staging.stage_command(*chunk, records, sizes, home, delayed=delayed)
            await self._request(queue.topic, queue.broker, command)

        self._under_way.append((self._begin_patiently(queue.topic, attempt), len(records)))
        self._bytes += len(records)

    def settle(self) -> None:
        """Wait until all chunks are kept. Raises as `stage`."""
        while self._under_way:
            self._wait_for_first()

    def __exit__(self, *_: object) -> None:
        """What is under way after a failure is given up."""
        for working, _size in self._under_way:
            working.cancel()
        self._under_way.clear()

    def _wait_for_first(self) -> None:
        working, size = self._under_way.popleft()
        self._bytes -= size
        self._mq.wait(working)

    async def _request(self, topic: str, broker: str, command: Command) -> Command:
        return await ask(self._mq, topic, broker, command, _REQUEST_SECONDS)
