"""What a broker opens before it serves: its store, and the decisions around it. With a large store that takes long."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raymq.actors.broker.core.appending.admission import AdmissionLimits
from raymq.actors.broker.core.appending.producer_history import ProducerHistory
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.broker_settings import kept_retention
from raymq.actors.protocol import GRACE_SECONDS, BrokerSpec
from raymq.storage.clock import SteadyClock, boottime, wall_ms
from raymq.storage.config import StoreConfig
from raymq.storage.errors import StoreError
from raymq.storage.log.retention import Retention
from raymq.storage.making_room import open_with_room
from raymq.storage.store import Store
from raymq.storage.tables.broker_identity import write_identity


def _held_by_nobody(_: Store) -> None:
    """What the open store means to a broker of one copy."""


@dataclass(frozen=True, slots=True)
class OpenedBroker:
    """Made by `open` on any thread, used on the broker's loop.

    Attributes:
        epoch: rises with each opening of the directory.
    """

    epoch: int
    store: Store
    core: BrokerCore
    producer_history: ProducerHistory

    @classmethod
    def open(
        cls, spec: BrokerSpec, port: int, epoch: int, hold: Callable[[Store], None] = _held_by_nobody
    ) -> OpenedBroker:
        """Open the directory of a broker that listens at this port.

        Args:
            hold: called with the open store before anybody reads in it.

        Raises:
            as `BrokerService.start`; nothing is open then.
        """
        directory = Path(spec.directory)
        config = StoreConfig(**{**spec.store, "store_host": f"{spec.host}:{port}"})
        retention = kept_retention(directory, config)

        def begin() -> OpenedBroker:
            steady = SteadyClock()
            with contextlib.ExitStack() as opened:
                store = _open_store(spec, config, steady, retention)
                opened.callback(_abandon, store)
                identity = directory / "raymq" / "broker.json"
                told = {"name": spec.name, "cluster": spec.cluster, "host": spec.host}
                write_identity(identity, **told, port=port, epoch=epoch)
                hold(store)
                core = BrokerCore(
                    spec.name,
                    store,
                    cluster=spec.cluster,
                    auto_create_topics=spec.auto_create_topics,
                    limits=AdmissionLimits(age_seconds=spec.append_wait_ms / 1000),
                    steady=steady,
                )
                if epoch > 1:
                    core.locks.rest(GRACE_SECONDS)
                history = ProducerHistory(core.producers, store, directory / "raymq" / "producers.journal")
                history.restore()
                opened.pop_all()
                return cls(epoch, store, core, history)

        # Retention makes room, but only in a broker that has started.
        return open_with_room(directory, config, wall_ms, begin, retention)

    def abandon(self) -> None:
        """Close what nobody will use, whatever is in the way of that."""
        self.producer_history.close()
        _abandon(self.store)


def _open_store(spec: BrokerSpec, config: StoreConfig, steady: SteadyClock, retention: Retention) -> Store:
    return Store.open(spec.directory, config, due_from_ms=steady.next_ms, elapsed=boottime, retention=retention)


def _abandon(store: Store) -> None:
    with contextlib.suppress(StoreError):  # it is told by now what is in the way
        store.close()
