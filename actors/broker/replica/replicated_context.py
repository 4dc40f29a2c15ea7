"""Define what the commands of a master with replicas work on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from raymq.actors.broker.context import BrokerContext, ReplicaAcks
from raymq.actors.broker.core.appending.admission import AppendScope
from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.frame import Command


@dataclass(slots=True)
class ReplicatedContext(BrokerContext):
    """A broker's context in which only the replicas' acknowledgements decide the answer to an append.

    No other wait lies between an acknowledgement and the answer.
    """

    leadership: Leadership = field(kw_only=True)

    def append(self, size: int, store: Callable[[], Callable[[SendStatus], Command]]) -> Command | Awaitable[Command]:
        """Append as `BrokerContext.append` does."""
        leadership = self.leadership
        if not leadership.acks_without_flush:
            return BrokerContext.append(self, size, store)
        known = self.core.store.topic_configs.version
        with AppendScope(self.append_admission, size) as under_way:
            make = store()
            if self.core.store.topic_configs.version is not known:
                settled = self.when_durable(make, new_topic=True)
                assert not isinstance(settled, Command)
                answer = leadership.shield_answer(settled)
            else:
                answer = leadership.answer(make)
            leave = under_way.extend()
            answer.add_done_callback(lambda _: leave())
        return answer

    def replica_acks(self) -> ReplicaAcks | None:
        """Return the replicas' acknowledgements as `BrokerContext.replica_acks` does."""
        return self.leadership if self.leadership.acks_without_flush else None
