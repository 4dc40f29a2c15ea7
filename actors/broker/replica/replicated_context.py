"""What the commands of a master of several copies work on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from raymq.actors.broker.context import BrokerContext, Copies
from raymq.actors.broker.core.appending.append_under_way import AppendUnderWay
from raymq.actors.broker.replica.office import Office
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.frame import Command


@dataclass(slots=True)
class ReplicatedContext(BrokerContext):
    """As that of a broker of one copy, but that an append is answered by what its replicas say, nothing between."""

    office: Office = field(kw_only=True)

    def append(self, size: int, store: Callable[[], Callable[[SendStatus], Command]]) -> Command | Awaitable[Command]:
        """As `BrokerContext.append`."""
        office = self.office
        if not office.answers_directly:
            return BrokerContext.append(self, size, store)
        known = self.core.store.topic_configs.version
        with AppendUnderWay(self.door, size) as under_way:
            make = store()
            if self.core.store.topic_configs.version is not known:
                settled = self.when_settled(make, new_topic=True)
                assert not isinstance(settled, Command)
                answer = office.going_on(settled)
            else:
                answer = office.answer(make)
            leave = under_way.stay()
            answer.add_done_callback(lambda _: leave())
        return answer

    def copies(self) -> Copies | None:
        """As `BrokerContext.copies`."""
        return self.office if self.office.answers_directly else None
