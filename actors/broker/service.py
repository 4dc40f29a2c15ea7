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
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.appending.append_under_way import AppendDoor
from raymq.actors.broker.core.broker_settings import broker_settings
from raymq.actors.broker.core.groups.clients import GroupTable
from raymq.actors.broker.core.loop_stops import PROBE_SECONDS
from raymq.actors.broker.core.reading.arrivals import Arrivals
from raymq.actors.broker.core.reading.long_poll import LongPolls
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.broker.duties import Round, repeat
from raymq.actors.broker.group_commit import GroupCommit, flush_of
from raymq.actors.broker.handlers import pop
from raymq.actors.broker.handlers.families import all_handlers
from raymq.actors.broker.making_ready import make_ready
from raymq.actors.broker.meetings import Meetings
from raymq.actors.broker.opening import OpenedBroker
from raymq.actors.broker.registration import Registration
from raymq.actors.broker.replica.place import MasterPlace
from raymq.actors.broker.staged_commits import StagedCommits
from raymq.actors.broker.write_follower import BrokersByName, WriteFollower
from raymq.actors.naming import check_name
from raymq.actors.ports import bind_broker
from raymq.actors.protocol import (
    HEARTBEAT_SECONDS,
    MASTER_ID,
    BrokerInfo,
    BrokerSpec,
    Corruption,
    DueReport,
    SendStatus,
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
from raymq.storage.clock import boottime
from raymq.storage.directory_format import check_format
from raymq.storage.errors import StoreError
from raymq.storage.tables.broker_identity import read_identity
from raymq.storage.version import VERSION

#: How often the short duties have a turn: the sweeps of what is parked and lent, what is due, the loop's own beat.
_ROUND_SECONDS = 0.05
_GROUP_SWEEP_SECONDS = 0.5
#: How often old log files are looked for (RocketMQ's cleanResourceInterval).
_RETENTION_SECONDS = 10.0
#: How often it is looked for staged writes of which nobody has told for a while what has become of them.
_WRITES_SECONDS = 0.5
#: When it is looked first, after a start, for brokers that this one has not met.
_MEET_SECONDS = 0.1
#: How often staged writes that nobody will commit, which are a day old then, and what is long over are looked for.
_STAGED_SECONDS = 60.0
#: How often what is known of idempotent producers is saved; a restart reads the log from there on.
_PRODUCERS_SECONDS = 5.0
#: How often changes of topics and groups are written into RocketMQ's files; until then journals have them.
_SETTINGS_SECONDS = 1.0
#: What is due sooner than in the next round gets a turn of its own, after at least this; where more is due than one
#: turn delivers, after the shorter pause.
_LEAST_DUE_SECONDS = 0.02
_BEHIND_SECONDS = 0.002
#: The loop's stops are looked for less often while nothing is appended.
_IDLE_PROBE_SECONDS = 0.1
#: After a crash the log is looked through from the last checkpoint of the timers on.
_TIMER_CHECKPOINT_SECONDS = 2.0
#: An append that is not on disk after this long is answered with FLUSH_DISK_TIMEOUT (RocketMQ's syncFlushTimeout).
_SYNC_FLUSH_SECONDS = 5.0
#: A master that leaves office gives what is under way so long to be answered.
_LEAVING_SECONDS = 0.5

_log = logging.getLogger(__name__)

#: What is awaited before an append is acknowledged; None: nothing.
_Durable = Callable[[], Awaitable[SendStatus]] | None


class BrokerService:
    """One running broker. Made by `start`, used and stopped on its event loop."""

    def __init__(
        self, spec: BrokerSpec, node_id: str, port: int, opened: OpenedBroker, place: MasterPlace | None
    ) -> None:
        self.spec = spec
        self.store, self.core, self._producer_history = opened.store, opened.core, opened.producer_history
        self.address = f"{spec.host}:{port}"
        self._place = place
        self._node_id = node_id
        self._epoch = opened.epoch
        self._scheduler_pid: int | None = None
        self._lateness = 0.0
        self._save_producers_at = 0.0
        self._save_settings_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._pool = ConnectionPool(tls=None if spec.tls is None else client_context(spec.tls))
        self._commits = GroupCommit(flush_of(self.store), _SYNC_FLUSH_SECONDS)
        self.groups = GroupTable(boottime)
        self.polls = LongPolls(self._loop.time, self._loop.call_soon)
        self.statistics = Statistics()
        durable = self._wake_who_waits()
        self._registration = self._made_registration()
        self.core.topics.on_permission = self._registration.tell_all_again
        routes = Routes(self._pool, spec.name_servers)
        self._staged_commits = StagedCommits(self.core, durable)
        self._meetings = Meetings(self.core, routes, self._pool, self._loop.time)
        self._write_follower = WriteFollower(self.core, self._staged_commits, BrokersByName(routes, self._pool).ask)
        self._server = self._made_server(self._made_context(durable, routes))
        self._door = InvokeDoor(self._server)
        self._duties: list[asyncio.Task[None]] = []
        self._round = Round(self._loop, _ROUND_SECONDS)
        self._delivering: asyncio.TimerHandle | None = None
        self._probing: asyncio.TimerHandle | None = None
        #: How many appends there were when the loop was probed last.
        self._appends = 0
        self._announcing: asyncio.Task[None] | None = None

    def _wake_who_waits(self) -> _Durable:
        """Have those told of arrivals who wait for them; what is awaited before an append is acknowledged."""
        self.core.pop.on_ready = lambda *queue: self.polls.arrived([pop.waiting_for(*queue)])
        if self._place is not None:
            office = self._place.office
            self.core.on_arrival = office.serve(self.polls.arrived, self._commits).appended
            return office.durable
        if self.store.confirmed.at_once:
            self.core.on_arrival = self.polls.arrived
            return None
        arrivals = Arrivals(self.store, self.polls.arrived, self._commits.request)
        self.core.on_arrival, self._commits.on_flushed = arrivals.appended, arrivals.confirmed
        return self._commits.wait

    def _made_registration(self) -> Registration:
        spec, place = self.spec, self._place
        return Registration(
            self._pool,
            spec.name_servers,
            spec.cluster,
            spec.name,
            self.address,
            self.core.topics,
            epoch=0 if place is None else place.office.epoch,
            ha_address="" if place is None else place.replication_address,
            max_message_bytes=self.store.config.max_message_bytes,
        )

    def _made_context(self, durable: _Durable, routes: Routes) -> BrokerContext:
        """What the handlers of commands work on."""
        spec = self.spec
        return (BrokerContext if self._place is None else self._place.context)(
            core=self.core,
            groups=self.groups,
            polls=self.polls,
            statistics=self.statistics,
            door=AppendDoor(self.store, self.core.admission, self.statistics),
            settings=broker_settings(
                self.core,
                cluster=spec.cluster,
                address=self.address,
                name_servers=spec.name_servers,
                auto_create_topics=spec.auto_create_topics,
            ),
            durable=durable,
            settings_durable=GroupCommit(self.store.sync_settings).wait,
            announce=self.announce,
            route=routes.get,
            notify_group=self._notify_group,
            status=self.status,
            commits=self._staged_commits,
        )

    def _made_server(self, context: BrokerContext) -> Server:
        handlers, place = all_handlers(context), self._place
        frames = frame_bytes(self.store.config.max_message_bytes)
        limits = ServerLimits(frame_bytes=frames, answer_bytes=MOST_FRAME_BYTES)
        tls = None if self.spec.tls is None else server_context(self.spec.tls)
        if place is None:
            return Server(handlers, limits=limits, tls=tls)
        # Who leaves office has a successor that waits.
        return Server(place.guarded(handlers), limits=replace(limits, drain_seconds=_LEAVING_SECONDS), tls=tls)

    @classmethod
    async def start(cls, spec: BrokerSpec, node_id: str, place: MasterPlace | None = None) -> BrokerService:
        """Open the store, listen, and register with the name servers; with a `place` as the master of its group.

        A master's store is opened by another thread: its loop answers and renews its lease meanwhile.

        Raises:
            FormatTooNew: a newer RayMQ has written in the directory; nothing is changed there.
            StoreLocked: another process owns the directory.
            OSError: the broker's port is taken.
            StoreCorrupt, InvalidInput: the directory or the settings cannot be used.
            StoreFull: the disk has no room for what a start writes, and nothing that may be removed (`making_room`).
                Nothing is lost, and another call may succeed.
            StoreFollows: the office has ended while the store was opened.
        """
        check_name("broker", spec.name, 127)
        check_format(Path(spec.directory))
        make_ready()
        port, epoch = read_identity(Path(spec.directory) / "raymq" / "broker.json")
        bound = bind_broker(spec.host, port) if place is None else place.sockets()
        try:
            port = int(bound[0].getsockname()[1])
            if place is None:
                opened = OpenedBroker.open(spec, port, epoch + 1)
            else:
                opened = await asyncio.to_thread(OpenedBroker.open, spec, port, epoch + 1, place.office.hold)
            try:
                if place is not None:
                    await place.take_over()
                service = cls(spec, node_id, port, opened, place)
            except BaseException:
                await asyncio.to_thread(opened.abandon)
                raise
            try:
                service.store.keep_ballast()
                await service._listen(bound)
            except BaseException:
                with contextlib.suppress(Exception):  # it is told by now what is in the way
                    await service.stop()
                raise
        except BaseException:
            _close(bound)
            raise
        return service

    async def stop(self) -> None:
        """A clean stop: leave the routes, close the socket, flush and close the store.

        Every step is done, whatever becomes of those before it.

        Raises:
            the first error of any step.
        """
        failures = [*await self.end_serving(), *await self.close_store()]
        if failures:
            raise failures[0]

    async def end_serving(self) -> list[Exception]:
        """The first half of `stop`: nobody is answered any more; what has failed of it."""
        return await self._done(
            self._cancel_duties,
            self._staged_commits.stop,
            self._server.drain,
            self.polls.close,
            self._registration.leave,
            self._server.stop,
            self._pool.close,
        )

    async def close_store(self) -> list[Exception]:
        """The second half of `stop`; what has failed of it."""
        place = self._place
        if place is None:
            return await self._done(self._close_producers, self._close_timers, self.store.close)
        return await self._done(
            self._close_producers,
            self._close_timers,
            place.office.finish,
            place.office.closing,
            partial(asyncio.to_thread, self.store.close),
        )

    async def _done(self, *steps: Callable[[], Awaitable[None] | None]) -> list[Exception]:
        """Do every step, whatever becomes of those before it; what has failed."""
        failures: list[Exception] = []
        for step in steps:
            try:
                done = step()
                if done is not None:
                    await done
            except Exception as error:  # noqa: BLE001 - the steps behind it are done all the same
                _log.exception("%s: a step of the stop failed", self.spec.name)
                failures.append(error)
        return failures

    def _cancel_duties(self) -> None:
        for duty in (*self._duties, self._round, self._delivering, self._probing, self._announcing):
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
            version=VERSION,
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
            self._every(_RETENTION_SECONDS, self._delete_expired),
            self._every(_MEET_SECONDS, self._meetings.meet_others),
            self._every(_WRITES_SECONDS, self._follow_writes),
            self._every(_STAGED_SECONDS, self._sweep_staged),
            self._every(_PRODUCERS_SECONDS, self._save_producers),
            self._every(_SETTINGS_SECONDS, self._save_settings),
            self._every(_TIMER_CHECKPOINT_SECONDS, self._checkpoint_timers),
            self._every(_TIMER_CHECKPOINT_SECONDS, self._sync_set_aside),
        ]
        for seconds, duty in (
            (_ROUND_SECONDS, self.core.admission.beat),
            (_ROUND_SECONDS, self._deliver_in_time),
            (_ROUND_SECONDS, self.polls.expire),
            (_ROUND_SECONDS, self._sweep_pop),
            (_ROUND_SECONDS, self.core.rescue.step),
            (_GROUP_SWEEP_SECONDS, self._sweep_groups),
        ):
            self._round.add(f"{self.spec.name}: {_words(duty)}", seconds, duty)
        self._round.begin()

    def _probe(self) -> None:
        appends, self._appends = self._appends, self.core.admission.entered
        wait = PROBE_SECONDS if appends != self._appends else _IDLE_PROBE_SECONDS
        self.statistics.loop_stops.beat(wait)
        self._probing = self._loop.call_later(wait, self._probe)

    def _every(self, seconds: float, duty: Callable[[], Awaitable[float | None]]) -> asyncio.Task[None]:
        return self._loop.create_task(repeat(f"{self.spec.name}: {_words(duty)}", seconds, duty))

    def _deliver_due(self) -> DueReport:
        report = self.core.deliver_due()
        self._lateness = report.lateness_ms / 1000
        return report

    def _deliver_in_time(self) -> None:
        """Deliver what is due, and again when the next is if that is before the next round."""
        if self._delivering is not None:
            self._delivering.cancel()
            self._delivering = None
        wait = self._deliver_due().wait_ms
        if wait is None or wait >= _ROUND_SECONDS * 1000:
            return
        is_behind = wait < -_LEAST_DUE_SECONDS * 1000
        pause = _BEHIND_SECONDS if is_behind else max(wait / 1000, _LEAST_DUE_SECONDS)
        self._delivering = self._loop.call_later(pause, self._deliver_between)

    def _deliver_between(self) -> None:
        with contextlib.suppress(Exception):  # the round tries it again, and logs it
            self._deliver_in_time()

    def _sweep_pop(self) -> None:
        topics = self.store.topic_configs.version
        self.core.pop.sweep()
        if self.store.topic_configs.version != topics:  # the first dead letter of a group makes its topic
            self._announcing = self._loop.create_task(self.announce())

    def _sweep_groups(self) -> None:
        gone = self.groups.expire()
        self.core.locks.forget(gone.client_ids)
        for name in gone.groups:
            self._notify_group(name)

    async def _delete_expired(self) -> None:
        deleted = self.core.delete_expired()
        if deleted.log_files:
            _log.info("%s: %d log files deleted: %s", self.spec.name, deleted.log_files, deleted.reason)

    async def _follow_writes(self) -> None:
        await self._write_follower.turn()

    async def _sweep_staged(self) -> None:
        await self._staged_commits.sweep()

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


def _words(duty: Callable[[], object]) -> str:
    return duty.__name__.strip("_").replace("_", " ")


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()
