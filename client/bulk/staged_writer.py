"""Stage the records of all-or-nothing writes, from many tasks.

Each task stages its records on brokers, and the driver commits the parts of the successful tasks. Nothing is visible
before the commit (`staged_write`). Staging may be repeated after any failure without duplicates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from raymq.actors.protocol import MessageQueue, Tls
from raymq.actors.request_limits import PART_BYTES
from raymq.actors.sending.body_size import body_limit, check_body_size, longest_body
from raymq.actors.wire.commands import staged_write_commands as wire_staging
from raymq.actors.wire.frame import Command
from raymq.client.requests.broker_requests import ask
from raymq.client.task_connection import TaskConnection

#: The time-out of one staging request, in seconds.
_REQUEST_SECONDS = 60.0
#: The bounds of the chunks that are staged at the same time: their bytes and their number.
_MAX_BYTES = 2 * PART_BYTES
_MAX_CHUNKS = 32


class StagedWriter(TaskConnection):
    """A writer of staged chunks, for one thread.

    For tasks of other processes: it needs addresses only.
    """

    def __init__(self, name_servers: Sequence[str], tls: Tls | None = None) -> None:
        super().__init__(name_servers, tls)
        self._under_way: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def begin(
        self,
        transaction: str,
        part: str,
        number: int,
        queue: MessageQueue,
        records: bytes | bytearray | memoryview,
        sizes: npt.NDArray[np.int32],
        *,
        coordinator: str,
        delayed: bool = False,
    ) -> None:
        """Start to stage chunk `number` of `part` on the broker of `queue`.

        A chunk has at most 8 MiB or one message. It is on the broker's disk when `settle` returns. Several chunks are
        staged at the same time: this waits while they are too many or have too many bytes.

        Args:
            coordinator: the coordinator of the transaction, where it was opened.
            delayed: all records have a delivery time, or all have the same delay level.

        Raises:
            InvalidInput, TopicNotFound, QueueNotFound, PermissionDenied, BrokerUnavailable: of this chunk, or of one
                before it.
        """
        while self._under_way and (self._bytes + len(records) > _MAX_BYTES or len(self._under_way) >= _MAX_CHUNKS):
            self._wait_for_first()
        longest = longest_body(records, sizes)

        async def attempt() -> None:
            if longest:
                check_body_size(longest, body_limit(await self._mq.routes.get(queue.topic), queue.broker))
            chunk = transaction, part, number, (queue.topic, queue.queue_id)
            command = wire_staging.stage_command(*chunk, records, sizes, coordinator, delayed=delayed)
            await self._request(queue.topic, queue.broker, command)

        self._under_way.append((self._begin_patiently(queue.topic, attempt), len(records)))
        self._bytes += len(records)

    def settle(self) -> None:
        """Wait until all chunks are stored. Raise as `begin`."""
        while self._under_way:
            self._wait_for_first()

    def __exit__(self, *_: object) -> None:
        """Cancel the chunks that are still being staged, after a failure."""
        for working, _size in self._under_way:
            working.cancel()
        self._under_way.clear()

    def _wait_for_first(self) -> None:
        working, size = self._under_way.popleft()
        self._bytes -= size
        self._mq.wait(working)

    async def _request(self, topic: str, broker: str, command: Command) -> Command:
        return await ask(self._mq, topic, broker, command, _REQUEST_SECONDS)
