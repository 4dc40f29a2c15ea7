"""Open what a broker needs before it serves: its store, and the decisions around it.

With a large store this takes long.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from raymq.actors.broker.core.appending.admission import AdmissionLimits
from raymq.actors.broker.core.appending.producer_state_journal import ProducerStateJournal
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.broker_settings import load_retention
from raymq.actors.protocol import SESSION_GRACE_SECONDS, BrokerSpec
from raymq.storage.clock import SteadyClock, boottime, wall_ms
from raymq.storage.config import StoreConfig
from raymq.storage.emergency_cleaner import open_with_cleanup
from raymq.storage.errors import StoreError
from raymq.storage.store import Store
from raymq.storage.tables.broker_identity import write_identity


@dataclass(frozen=True, slots=True)
class OpenedBroker:
    """The opened store and core of a broker.

    It is created on any thread, and used on the broker's loop.

    Attributes:
        epoch: rises with each opening of the directory.
    """

    epoch: int
    store: Store
    core: BrokerCore
    producer_history: ProducerStateJournal

    @classmethod
    def open(cls, spec: BrokerSpec, port: int, epoch: int) -> OpenedBroker:
        """Open the directory of a broker with one copy, which listens at this port.

        If the disk is full, remove what may be removed: the periodic retention runs only in a broker that has started.

        Raises:
            as `BrokerService.start`; nothing is open then.
        """
        directory = Path(spec.directory)
        config = StoreConfig(**{**spec.store, "store_host": f"{spec.host}:{port}"})

        def begin() -> OpenedBroker:
            return cls.over(Store.open(directory, config, elapsed=boottime), spec, port, epoch)

        return open_with_cleanup(directory, config, wall_ms, begin, lambda: load_retention(directory, config))

    @classmethod
    def over(cls, store: Store, spec: BrokerSpec, port: int, epoch: int) -> OpenedBroker:
        """Create the decisions over an open store; close it if that fails."""
        steady = SteadyClock()
        with contextlib.ExitStack() as opened:
            opened.callback(_abandon, store)
            store.use_delay_clock(steady.next_ms)
            identity = Path(spec.directory) / "raymq" / "broker.json"
            fields = {"name": spec.name, "cluster": spec.cluster, "host": spec.host}
            write_identity(identity, **fields, port=port, epoch=epoch)
            core = BrokerCore(
                spec.name,
                store,
                cluster=spec.cluster,
                auto_create_topics=spec.auto_create_topics,
                limits=AdmissionLimits(age_seconds=spec.append_wait_ms / 1000),
                steady=steady,
            )
            if epoch > 1:
                core.locks.block_grants(SESSION_GRACE_SECONDS)
            history = ProducerStateJournal(core.producers, store)
            history.restore()
            opened.pop_all()
        return cls(epoch, store, core, history)

    def abandon(self) -> None:
        """Close an opened broker that will not be used; ignore errors of the store."""
        _abandon(self.store)


def _abandon(store: Store) -> None:
    with contextlib.suppress(StoreError):  # the original error is reported
        store.close()
