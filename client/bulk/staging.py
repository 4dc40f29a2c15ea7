"""All-or-nothing writes by many tasks: each stages its records on brokers, the driver commits those of the winners.

Nothing is visible before the commit. Staging and committing may be repeated after any failure without a duplicate. A
commit goes broker by broker: a driver that dies between two of them leaves the first one's part visible until the
commit is repeated with the same transaction name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.longest_body import limit_of, longest_body, refuse_longer
from raymq.actors.wire.commands import staging as wire_staging
from raymq.actors.wire.frame import Command
from raymq.actors.wire.told import number_in
from raymq.client.requests.asking import ask, patiently
from raymq.client.task_connection import OwnConnection

#: One staging or commit request may take this long; a commit copies every staged byte into the log.
_REQUEST_SECONDS = 60.0


class StagedWriter(OwnConnection):
    """For tasks of other processes: it needs addresses only."""

    def stage(
        self,
        transaction: str,
        part: str,
        number: int,
        queue: MessageQueue,
        records: bytes | bytearray | memoryview,
        sizes: npt.NDArray[np.int32],
    ) -> None:
        """Keep chunk `number` of `part`, at most 8 MiB or one message, on the broker of `queue`. On its disk when this
        returns.

        Raises:
            InvalidInput, TopicNotFound, QueueNotFound, PermissionDenied, BrokerUnavailable.
        """
        longest = longest_body(records, sizes)

        async def attempt() -> None:
            if longest:
                refuse_longer(longest, limit_of(await self._mq.routes.get(queue.topic), queue.broker))
            lane = (queue.topic, queue.queue_id)
            command = wire_staging.stage_command(transaction, part, number, lane, records, sizes)
            await self._request(queue.topic, queue.broker, command)

        self._mq.run(patiently(attempt))

    def commit(self, transaction: str, topic: str, parts: Sequence[tuple[str, str]]) -> int:
        """Make the chunks of `parts`, as (part, broker), visible; how many messages this call added.

        Raises:
            BrokerUnavailable: a broker did not come back in time; repeat the call.
        """
        by_broker: dict[str, list[str]] = {}
        for part, broker in parts:
            by_broker.setdefault(broker, []).append(part)
        added = 0
        for broker, names in sorted(by_broker.items()):
            answer = self._mq.run(
                patiently(
                    lambda broker=broker, names=names: self._request(  # type: ignore[misc]
                        topic, broker, wire_staging.commit_staged_command(transaction, names)
                    )
                )
            )
            added += number_in(answer, "added")
        return added

    def abort(self, transaction: str, topic: str) -> None:
        """Forget the transaction's chunks on every broker of `topic`; what is committed stays."""
        for broker in self._mq.run(self._mq.routes.get(topic)).addresses:
            self._mq.run(
                patiently(
                    lambda broker=broker: self._request(  # type: ignore[misc]
                        topic, broker, wire_staging.abort_staged_command(transaction)
                    )
                )
            )

    async def _request(self, topic: str, broker: str, command: Command) -> Command:
        return await ask(self._mq, topic, broker, command, _REQUEST_SECONDS)
