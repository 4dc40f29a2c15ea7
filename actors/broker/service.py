"""A broker without Ray: its store, its socket, its loop's duties. The actor in `broker_actor` wraps it.

One event loop owns everything: sockets, decisions and appends happen in order on it, without locks. What can block (a
flush) runs on another thread.

A broker's address is chosen once and kept in its directory, in `raymq/broker.json`, so that message ids and running
clients stay valid over restarts; the epoch beside it rises with every start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.appending.admission import BEAT_SECONDS, AdmissionLimits
from raymq.actors.broker.core.appending.producer_history import ProducerHistory
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.broker_settings import broker_settings, kept_retention
from raymq.actors.broker.core.duty_troubles import DutyTroubles
from raymq.actors.broker.core.groups.clients import GroupTable
from raymq.actors.broker.core.loop_stops import PROBE_SECONDS
from raymq.actors.broker.core.reading.arrivals import Arrivals
from raymq.actors.broker.core.reading.long_poll import LongPolls
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.broker.group_commit import GroupCommit
from raymq.actors.broker.handlers import pop
from raymq.actors.broker.handlers.families import all_handlers
from raymq.actors.broker.registration import Registration
from raymq.actors.filter import sql_filter
from raymq.actors.naming import check_name
from raymq.actors.ports import bind_broker
from raymq.actors.protocol import (
    GRACE_SECONDS,
    HEARTBEAT_SECONDS,
    MASTER_ID,
    BrokerInfo,
    BrokerSpec,
    Corruption,
    DueReport,
)
from raymq.actors.routing import Routes
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import MOST_FRAME_BYTES, Command, frame_bytes
from raymq.actors.wire.headers.group import NotifyConsumerIdsChanged
from raymq.actors.wire.limits import ServerLimits
from raymq.actors.wire.memory_door import InvokeDoor
from raymq.actors.wire.server import Server
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.tls import client_context, server_context
from raymq.storage.clock import SteadyClock, boottime, wall_ms
from raymq.storage.config import StoreConfig
from raymq.storage.errors import StoreError
from raymq.storage.log.retention import Retention
from raymq.storage.making_room import open_with_room
from raymq.storage.store import Store
from raymq.storage.tables.broker_identity import read_identity, write_identity

_POLL_SWEEP_SECONDS = 0.1
_POP_SWEEP_SECONDS = 0.05
_GROUP_SWEEP_SECONDS = 0.5
#: How often old log files are looked for (RocketMQ's cleanResourceInterval).
_RETENTION_SECONDS = 10.0
#: How often a step is made to store anew what waits in files that are about to go: 2,000 messages a second at most.
_RESCUE_SECONDS = 0.05
#: How often staged writes that nobody will commit are looked for; they are a day old then.
_STAGED_SECONDS = 60.0
#: How often what is known of idempotent producers is saved; a restart reads the log from there on.
_PRODUCERS_SECONDS = 5.0
#: How often changes of topics and groups are written into RocketMQ's files; until then journals have them.
_SETTINGS_SECONDS = 1.0
#: A broker that no scheduler has asked for so long delivers what is due by itself, once per period.
_UNASKED_SECONDS = 0.3
_UNASKED_PERIOD_SECONDS = 0.05
#: After a crash the log is looked through from the last checkpoint of the timers on.
_TIMER_CHECKPOINT_SECONDS = 2.0
#: An append that is not on disk after this long is answered with FLUSH_DISK_TIMEOUT (RocketMQ's syncFlushTimeout).
_SYNC_FLUSH_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Identity:
    port: int
    epoch: int


class BrokerService:
    """One running broker. Made by `start`, used and stopped on its event loop."""

    def __init__(self, spec: BrokerSpec, node_id: str, store: Store, identity: _Identity, steady: SteadyClock) -> None:
        self.spec = spec
        self.store = store
        self.address = f"{spec.host}:{identity.port}"
        self._node_id = node_id
        self._epoch = identity.epoch
        self._scheduler_pid: int | None = None
        self._asked_at = 0.0
        self._lateness = 0.0
        self._loop = asyncio.get_running_loop()
        self._pool = ConnectionPool(tls=None if spec.tls is None else client_context(spec.tls))
        self._commits = GroupCommit(store.flush, _SYNC_FLUSH_SECONDS)
        self.core = BrokerCore(
            spec.name,
            store,
            cluster=spec.cluster,
            auto_create_topics=spec.auto_create_topics,
            limits=AdmissionLimits(age_seconds=spec.append_wait_ms / 1000),
            steady=steady,
        )
        journal = Path(spec.directory) / "raymq" / "producers.journal"
        self._producer_history = ProducerHistory(self.core.producers, store, journal)
        self._producer_history.restore()
        self._save_producers_at = 0.0
        self._save_settings_at = 0.0
        if identity.epoch > 1:
            self.core.locks.rest(GRACE_SECONDS)
        self.groups = GroupTable(boottime)
        self.polls = LongPolls(self._loop.time)
        self.core.on_arrival = self.polls.arrived
        if not store.confirmed.at_once:
            arrivals = Arrivals(store, self.polls.arrived, self._commits.request)
            self.core.on_arrival, self._commits.on_flushed = arrivals.appended, arrivals.confirmed
        self.core.pop.on_ready = lambda *queue: self.polls.arrived([pop.waiting_for(*queue)])
        self.statistics = Statistics()
        self._registration = Registration(
            self._pool,
            spec.name_servers,
            spec.cluster,
            spec.name,
            self.address,
            self.core.topics,
            max_message_bytes=store.config.max_message_bytes,
        )
        context = BrokerContext(
            core=self.core,
            groups=self.groups,
            polls=self.polls,
            statistics=self.statistics,
            settings=broker_settings(
                self.core,
                cluster=spec.cluster,
                address=self.address,
                name_servers=spec.name_servers,
                auto_create_topics=spec.auto_create_topics,
            ),
            durable=None if store.confirmed.at_once else self._commits.wait,
            settings_durable=GroupCommit(store.sync_settings).wait,
            announce=self.announce,
            route=Routes(self._pool, spec.name_servers).get,
            notify_group=self._notify_group,
            status=self.status,
        )
        self._server = Server(
            all_handlers(context),
            limits=ServerLimits(frame_bytes=frame_bytes(store.config.max_message_bytes), answer_bytes=MOST_FRAME_BYTES),
            tls=None if spec.tls is None else server_context(spec.tls),
        )
        self._door = InvokeDoor(self._server)
        self._duties: list[asyncio.Task[None]] = []
        self._beating: asyncio.TimerHandle | None = None
        self._probing: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, spec: BrokerSpec, node_id: str) -> BrokerService:
        """Open the store, listen, and register with the name servers.

        Raises:
            StoreLocked: another process owns the directory.
            OSError: the broker's port is taken.
            StoreCorrupt, InvalidInput: the directory or the settings cannot be used.
            StoreFull: the disk has no room for what a start writes, and nothing that may be removed (`making_room`).
                Nothing is lost, and another call may succeed.
        """
        check_name("broker", spec.name, 127)
        # pyarrow's first conversion imports pandas where it is installed: half a second in which a broker that serves
        # already would stand still.
        pa.array([0]).to_numpy()
        sql_filter.make_ready()
        directory = Path(spec.directory)
        port, epoch = read_identity(directory / "raymq" / "broker.json")
        identity = _Identity(port, epoch + 1)
        bound = bind_broker(spec.host, identity.port)
        try:
            identity.port = int(bound[0].getsockname()[1])
            config = StoreConfig(**{**spec.store, "store_host": f"{spec.host}:{identity.port}"})

            retention = kept_retention(directory, config)

            def begin() -> BrokerService:
                steady = SteadyClock()
                store = cls._opened(spec, config, identity, steady, retention)
                try:
                    return cls(spec, node_id, store, identity, steady)
                except BaseException:
                    _abandon(store)
                    raise

            # Retention makes room, but only in a broker that has started.
            service = open_with_room(directory, config, wall_ms, begin, retention)
            service.store.keep_ballast()
            try:
                await service._listen(bound)  # noqa: SLF001 - its own class
            except BaseException:
                with contextlib.suppress(Exception):  # it is told by now what is in the way
                    await service.stop()
                raise
        except BaseException:
            _close(bound)
            raise
        return service

    @staticmethod
    def _opened(
        spec: BrokerSpec, config: StoreConfig, identity: _Identity, steady: SteadyClock, retention: Retention
    ) -> Store:
        """The broker's open store, in which it stands who this is; raises as `start`."""
        store = Store.open(spec.directory, config, due_from_ms=steady.next_ms, retention=retention)
        try:
            write_identity(
                Path(spec.directory) / "raymq" / "broker.json",
                name=spec.name,
                cluster=spec.cluster,
                port=identity.port,
                epoch=identity.epoch,
            )
        except BaseException:
            _abandon(store)
            raise
        return store

    async def stop(self) -> None:
        """A clean stop: leave the routes, close the socket, flush and close the store.

        Every step is done, whatever becomes of those before it.

        Raises:
            the first error of any step.
        """
        steps: Sequence[Callable[[], Awaitable[None] | None]] = (
            self._cancel_duties,
            self._server.drain,
            self.polls.close,
            self._registration.leave,
            self._server.stop,
            self._pool.close,
            self._close_producers,
            self._close_timers,
            self.store.close,
        )
        failures: list[Exception] = []
        for step in steps:
            try:
                done = step()
                if done is not None:
                    await done
            except Exception as error:  # noqa: BLE001 - the steps behind it are done all the same
                _log.exception("%s: a step of the stop failed", self.spec.name)
                failures.append(error)
        if failures:
            raise failures[0]

    def _cancel_duties(self) -> None:
        for duty in (*self._duties, self._beating, self._probing):
            if duty is not None:
                duty.cancel()

    def _close_timers(self) -> None:
        for close in (self.core.timers.close, self.core.schedule.close):
            with contextlib.suppress(StoreError):  # the next start looks for more, nothing else
                close()
        with contextlib.suppress(StoreError):  # the notes are written, and their messages told in the log
            self.core.set_aside.sync()

    async def invoke(self, session: str, request: Command) -> Command:
        """Carry out a command that did not come over a socket; see `InvokeDoor`."""
        return await self._door.invoke(session, request)

    async def deliver_due(self, scheduler_pid: int) -> DueReport:
        """Deliver what is due; the scheduler that asks is remembered for `status`."""
        self._scheduler_pid = scheduler_pid
        self._asked_at = self._loop.time()
        return self._deliver_due()

    def status(self) -> BrokerInfo:
        """Who this is and how it does."""
        usage = shutil.disk_usage(self.spec.directory)
        return BrokerInfo(
            name=self.spec.name,
            replica=MASTER_ID,
            role="master",
            state="running",
            epoch=self._epoch,
            address=self.address,
            pid=os.getpid(),
            node_id=self._node_id,
            store=self.spec.directory,
            disk_ratio=usage.used / usage.total,
            corruption=[Corruption(c.file, c.offset, c.reason) for c in self.store.recovery.corruption],
            scheduler_pid=self._scheduler_pid,
            lateness=self._lateness,
            refusals=self._refusals(),
        )

    @property
    def troubles(self) -> dict[str, str]:
        """Why this broker is not in the routes of a name server, by its address; empty where all have it."""
        return self._registration.troubles

    def _refusals(self) -> dict[str, int]:
        refused = self._server.refused_connections
        return {**self.statistics.refusals, **({"connections": refused} if refused else {})}

    async def announce(self) -> None:
        """Register with every name server; those that do not answer learn it from a later heartbeat."""
        await self._registration.announce()

    async def _listen(self, bound: list[socket.socket]) -> None:
        own, *vip_channel = bound
        await self._server.start(own)
        self._beat()
        self._probe()
        for each in vip_channel:
            try:
                await self._server.listen(each)
            except OSError as error:
                _log.warning("%s has no VIP channel: %s", self.spec.name, error)
        try:
            self._deliver_due()  # what became due while it was away
        except Exception:  # noqa: BLE001 - the broker serves whatever waits
            _log.exception("%s: what became due while it was away is not all delivered; it goes on", self.spec.name)
        await self.announce()
        self._duties = [
            self._every(HEARTBEAT_SECONDS, self.announce),
            self._every(_UNASKED_PERIOD_SECONDS, self._deliver_unasked),
            self._every(_POLL_SWEEP_SECONDS, self._sweep_polls),
            self._every(_POP_SWEEP_SECONDS, self._sweep_pop),
            self._every(_GROUP_SWEEP_SECONDS, self._sweep_groups),
            self._every(_RETENTION_SECONDS, self._delete_expired),
            self._every(_RESCUE_SECONDS, self._rescue),
            self._every(_STAGED_SECONDS, self._sweep_staged),
            self._every(_PRODUCERS_SECONDS, self._save_producers),
            self._every(_SETTINGS_SECONDS, self._save_settings),
            self._every(_TIMER_CHECKPOINT_SECONDS, self._checkpoint_timers),
            self._every(_TIMER_CHECKPOINT_SECONDS, self._sync_set_aside),
        ]

    def _beat(self) -> None:
        self.core.admission.beat()
        self._beating = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _probe(self) -> None:
        self.statistics.loop_stops.beat()
        self._probing = self._loop.call_later(PROBE_SECONDS, self._probe)

    def _every(self, seconds: float, duty: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        name = duty.__name__.strip("_").replace("_", " ")
        return self._loop.create_task(repeat(f"{self.spec.name}: {name}", seconds, duty))

    def _deliver_due(self) -> DueReport:
        report = self.core.deliver_due()
        self._lateness = report.lateness_ms / 1000
        return report

    async def _deliver_unasked(self) -> None:
        """What is due does not wait until a scheduler, which was killed, is back, or has found this broker again."""
        if self._loop.time() - self._asked_at >= _UNASKED_SECONDS:
            self._deliver_due()

    async def _sweep_polls(self) -> None:
        self.polls.expire()

    async def _sweep_pop(self) -> None:
        topics = self.store.topic_configs.version
        self.core.pop.sweep()
        if self.store.topic_configs.version != topics:  # the first dead letter of a group makes its topic
            await self.announce()

    async def _sweep_groups(self) -> None:
        gone = self.groups.expire()
        self.core.locks.forget(gone.client_ids)
        for name in gone.groups:
            self._notify_group(name)

    async def _delete_expired(self) -> None:
        deleted = self.core.delete_expired()
        if deleted.log_files:
            _log.info("%s: %d log files deleted: %s", self.spec.name, deleted.log_files, deleted.reason)

    async def _rescue(self) -> None:
        self.core.rescue.step()

    async def _sweep_staged(self) -> None:
        remove = self.core.staging.sweep()
        if remove is not None:
            await asyncio.to_thread(remove)

    async def _save_producers(self) -> None:
        """At most a fiftieth of the loop's time is spent on it: a start reads more of the log instead."""
        if self._loop.time() >= self._save_producers_at:
            spent = await self._save_producers_now()
            self._save_producers_at = self._loop.time() + 50 * spent

    async def _save_producers_now(self) -> float:
        """Save them; the seconds that it kept the loop."""
        spent, began = 0.0, self._loop.time()
        for write in self._producer_history.save():
            spent += self._loop.time() - began
            await asyncio.to_thread(write)
            began = self._loop.time()
        return spent + self._loop.time() - began

    async def _close_producers(self) -> None:
        try:
            await self._save_producers_now()
        finally:
            self._producer_history.close()

    async def _save_settings(self) -> None:
        """At most a twentieth of the time is spent on it: the changes are safe in their journals."""
        if self._loop.time() < self._save_settings_at:
            return
        began = self._loop.time()
        for table in (self.store.topic_configs, self.store.group_configs):
            write = table.pending()
            if write is not None:
                await asyncio.to_thread(write)
        self._save_settings_at = self._loop.time() + 20 * (self._loop.time() - began)

    async def _checkpoint_timers(self) -> None:
        write = self.core.timers.checkpoint()
        if write is not None:
            await asyncio.to_thread(write)

    async def _sync_set_aside(self) -> None:
        await asyncio.to_thread(self.core.set_aside.sync)

    def _notify_group(self, name: str) -> None:
        for connection in self.groups.connections(name):
            assert isinstance(connection, ServerConnection)
            connection.push(NotifyConsumerIdsChanged(name).command())


async def repeat(name: str, seconds: float, duty: Callable[[], Awaitable[None]]) -> None:
    """Do a duty every so many seconds; one turn that fails ends no later ones."""
    troubles = DutyTroubles(name, seconds)
    wait = seconds
    while True:
        await asyncio.sleep(wait)
        try:
            await duty()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next turn is another one
            verdict = troubles.failed(error)
            wait = verdict.wait
            if verdict.line is not None:
                _log.error("%s", verdict.line, exc_info=error if verdict.in_full else None)
        else:
            troubles.succeeded()
            wait = seconds


def _abandon(store: Store) -> None:
    """Close the store of a start that has failed, which tells what is in the way."""
    with contextlib.suppress(StoreError):
        store.close()


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()
