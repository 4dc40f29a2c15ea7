"""Serve the clients of a broker that leads its group.

One event loop owns everything: sockets, decisions and appends run in order on it, without locks. Blocking calls (a
flush) run on another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

from raymq.actors.broker.acks import Acks
from raymq.actors.broker.broker_metrics import BrokerMetrics
from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.appending.admission import AppendAdmission
from raymq.actors.broker.core.broker_settings import broker_settings
from raymq.actors.broker.core.event_loop_lag import PROBE_SECONDS
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.reading.long_poll import LongPollingService
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.broker.group_commit import GroupCommit
from raymq.actors.broker.handlers import pop_handlers
from raymq.actors.broker.handlers.handler_registry import all_commands
from raymq.actors.broker.membership_sync import MembershipSync
from raymq.actors.broker.name_server_registration import NameServerRegistration
from raymq.actors.broker.opened_broker import OpenedBroker
from raymq.actors.broker.periodic_tasks import PeriodicTasks, run_periodically
from raymq.actors.broker.staged_commits import InDoubtResolver, PeerClient, StagedCommits
from raymq.actors.broker.transaction_checker import TransactionChecker
from raymq.actors.protocol import (
    HEARTBEAT_SECONDS,
    MASTER_ID,
    BrokerInfo,
    BrokerSpec,
    Corruption,
    DueReport,
)
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import MESSAGE_FRAME_BYTES, Command, frame_bytes
from raymq.actors.wire.headers.group_headers import NotifyConsumerIdsChanged
from raymq.actors.wire.in_memory_transport import InMemoryTransport
from raymq.actors.wire.request_latency import RequestLatency
from raymq.actors.wire.server import Server
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.server_limits import ServerLimits
from raymq.actors.wire.tls import client_context, server_context
from raymq.storage.clock import boottime
from raymq.storage.errors import StoreError
from raymq.storage.log.retention import DiskUsage
from raymq.storage.version import VERSION

#: Interval of the short tasks: sweeps of parked requests and leased messages, due deliveries, the admission's beat.
_ROUND_SECONDS = 0.05
_GROUP_SWEEP_SECONDS = 0.5
#: How often old log files are looked for (RocketMQ's cleanResourceInterval).
_RETENTION_SECONDS = 10.0
#: How often staged writes are looked for that no driver has decided for a while.
_WRITES_SECONDS = 0.5
#: Delay of the first membership sync after a start.
_MEMBERSHIP_SECONDS = 0.1
#: How often abandoned staged writes (a day old) and long-finished ones are looked for.
_STAGED_SECONDS = 60.0
#: How often the states of idempotent producers are saved; a restart reads the log from there on.
_PRODUCERS_SECONDS = 5.0
#: How often changed tables are written to RocketMQ's files; the state journal has the changes at once.
_EXPORT_SECONDS = 4.0
#: A delivery due before the next round gets its own timer, after at least `_LEAST_DUE_SECONDS`; after `_BEHIND_SECONDS`
#: if one turn could not deliver all that is due.
_LEAST_DUE_SECONDS = 0.02
_BEHIND_SECONDS = 0.002
#: Interval of the event-loop lag probe while nothing is appended.
_IDLE_PROBE_SECONDS = 0.1
#: Interval of timer checkpoints: after a crash the log is scanned from the last one on.
_TIMER_CHECKPOINT_SECONDS = 2.0
#: Interval in which the progress of transactions is stored; a start reads both half topics from there on.
_TRANSACTIONS_SECONDS = 2.0

_log = logging.getLogger(__name__)


class LeaderService:
    """What serves clients while a broker leads.

    It is created by `start`, used and stopped on its event loop.

    Attributes:
        acks: decides when appends are acknowledged.
    """

    def __init__(self, spec: BrokerSpec, node_id: str, address: str, opened: OpenedBroker, acks: Acks) -> None:
        self.spec = spec
        self.address = address
        self.acks = acks
        self.store, self.core, self._producer_history = opened.store, opened.core, opened.producer_history
        self._node_id = node_id
        self._epoch = opened.epoch
        self._scheduler_pid: int | None = None
        self._lateness = 0.0
        self._save_producers_at = 0.0
        self._export_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._pool = ConnectionPool(tls=None if spec.tls is None else client_context(spec.tls))
        self.groups = ClientRegistry(boottime)
        self._checker = TransactionChecker(self.core, self.groups)
        self.polls = LongPollingService(self._loop.time, self._loop.call_soon)
        self.statistics = Statistics()
        self.core.pop.on_ready = lambda *queue: self.polls.arrived([pop_handlers.pop_wait_key(*queue)])
        self.core.on_arrival = acks.start(self.polls.arrived)
        self._registration = NameServerRegistration(
            self._pool,
            spec.name_servers,
            spec.cluster,
            spec.name,
            address,
            self.core.topics,
            epoch=acks.epoch,
            ha_address=acks.replication_address,
            max_message_bytes=self.store.config.max_message_bytes,
        )
        self.core.topics.on_permission_change = self._registration.invalidate
        routes = RouteCache(self._pool, spec.name_servers)
        self._staged_commits = StagedCommits(self.core, acks)
        self._membership = MembershipSync(self.core, routes, self._pool)
        self._in_doubt = InDoubtResolver(self.core, self._staged_commits, PeerClient(routes, self._pool))
        self._latency = RequestLatency()
        self._server = self._made_server(self._made_context(routes))
        #: Its figures as metrics.
        self.metrics = BrokerMetrics(
            self.core, self.statistics, self.groups, self._latency, self.status, acks.replicate_seconds
        )
        self._door = InMemoryTransport(self._server)
        self._duties: list[asyncio.Task[None]] = []
        self._round = PeriodicTasks(self._loop, _ROUND_SECONDS)
        self._delivering: asyncio.TimerHandle | None = None
        self._probing: asyncio.TimerHandle | None = None
        #: The number of appends at the last probe of the loop.
        self._appends = 0
        self._announcing: asyncio.Task[None] | None = None

    def _made_context(self, routes: RouteCache) -> BrokerContext:
        """Return what the handlers of commands work on."""
        spec = self.spec
        return BrokerContext(
            core=self.core,
            groups=self.groups,
            polls=self.polls,
            statistics=self.statistics,
            append_admission=AppendAdmission(self.store, self.core.admission, self.statistics),
            settings=broker_settings(
                self.core,
                cluster=spec.cluster,
                address=self.address,
                name_servers=spec.name_servers,
                auto_create_topics=spec.auto_create_topics,
            ),
            acks=self.acks,
            settings_durable=GroupCommit(self.store.sync_state).wait,
            announce=self.announce,
            route=routes.get,
            notify_group=self._notify_group,
            status=self.status,
            commits=self._staged_commits,
        )

    def _made_server(self, context: BrokerContext) -> Server:
        limits = ServerLimits(
            frame_bytes=frame_bytes(self.store.config.max_message_bytes),
            answer_bytes=MESSAGE_FRAME_BYTES,
            drain_seconds=self.acks.drain_seconds,
        )
        tls = None if self.spec.tls is None else server_context(self.spec.tls)
        latency = None if self.spec.metrics == "off" else self._latency
        return Server(self.acks.guarded(all_commands(context)), limits=limits, tls=tls, latency=latency)

    @classmethod
    async def start(
        cls,
        spec: BrokerSpec,
        node_id: str,
        opened: OpenedBroker,
        acks: Acks,
        sockets: list[socket.socket],
    ) -> Self:
        """Serve clients at these bound sockets, and register with the name servers.

        Both the opened broker and the sockets belong to the service: they are closed if it does not start.
        """
        try:
            address = f"{spec.host}:{sockets[0].getsockname()[1]}"
            try:
                service = cls(spec, node_id, address, opened, acks)
            except BaseException:
                await asyncio.to_thread(opened.abandon)
                raise
            try:
                service.store.keep_disk_reserve()
                await service._listen(sockets)
            except BaseException:
                with contextlib.suppress(Exception):  # the original error is raised instead
                    await service.stop()
                raise
        except BaseException:
            for each in sockets:
                each.close()
            raise
        return service

    async def stop(self) -> None:
        """Stop cleanly: leave the routes, close the socket, flush and close the store.

        Every step runs, even if earlier ones fail.

        Raises:
            the first error of any step.
        """
        failures = [*await self.end_serving(), *await self.close_store()]
        if failures:
            raise failures[0]

    async def end_serving(self) -> list[Exception]:
        """Do the first half of `stop`: stop answering requests. Return the errors."""
        return await self._done(
            self._cancel_tasks,
            self._staged_commits.stop,
            self._server.drain,
            self.polls.close,
            self._registration.leave,
            self._server.stop,
            self._pool.close,
        )

    async def close_store(self) -> list[Exception]:
        """Do the second half of `stop`: close the store. Return the errors."""
        return await self._done(self._save_last_producers, self._close_timers, self._close_store)

    async def _done(self, *steps: Callable[[], Awaitable[None] | None]) -> list[Exception]:
        """Run every step, even if earlier ones fail; return the errors."""
        failures: list[Exception] = []
        for step in steps:
            try:
                done = step()
                if done is not None:
                    await done
            except Exception as error:  # noqa: BLE001 - the later steps must still run
                _log.exception("%s: a step of the stop failed", self.spec.name)
                failures.append(error)
        return failures

    def _cancel_tasks(self) -> None:
        for duty in (*self._duties, self._round, self._delivering, self._probing, self._announcing):
            if duty is not None:
                duty.cancel()

    async def _close_store(self) -> None:
        await self.acks.close(self.store)

    def _close_timers(self) -> None:
        for close in (self.core.timers.close, self.core.schedule.close):
            with contextlib.suppress(StoreError):  # it only makes the next start scan more of the log
                close()
        with contextlib.suppress(StoreError):  # the notes are written already, and logged as errors
            self.core.set_aside.sync()

    async def invoke(self, session: str, request: Command) -> Command:
        """Carry out a command that did not come over a socket; see `InMemoryTransport`."""
        return await self._door.invoke(session, request)

    async def deliver_due(self, scheduler_pid: int) -> DueReport:
        """Deliver what is due, and record the calling scheduler's pid for `status`."""
        self._scheduler_pid = scheduler_pid
        return self._deliver_due()

    def status(self) -> BrokerInfo:
        """Return the broker's identity and state."""
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
            disk_ratio=DiskUsage.of(Path(self.spec.directory)).ratio,
            corruption=[Corruption(c.file, c.offset, c.reason) for c in self.store.recovery.corruption],
            scheduler_pid=self._scheduler_pid,
            lateness=self._lateness,
            refusals=self._refusals(),
            version=VERSION,
            metrics=self.spec.metrics_address,
        )

    @property
    def troubles(self) -> dict[str, str]:
        """Return, by name server address, why this broker is not in its routes.

        The result is empty if all name servers have the broker.
        """
        return self._registration.troubles

    def _refusals(self) -> dict[str, int]:
        refused = self._server.refused_connections
        return {**self.statistics.refusals, **({"connections": refused} if refused else {})}

    async def announce(self) -> None:
        """Register with every name server.

        A name server that does not answer is updated by a later heartbeat.
        """
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
            self._deliver_due()  # messages that became due while the broker was down
        except Exception:  # noqa: BLE001 - the broker must serve even if a delivery fails
            _log.exception(
                "%s: not all messages that became due while it was down are delivered; it continues", self.spec.name
            )
        await self.announce()
        self._duties = [
            self._every(HEARTBEAT_SECONDS, self.announce),
            self._every(_RETENTION_SECONDS, self._delete_expired),
            self._every(_MEMBERSHIP_SECONDS, self._membership.sync_members),
            self._every(_WRITES_SECONDS, self._in_doubt.turn),
            self._every(_STAGED_SECONDS, self._staged_commits.sweep),
            self._every(_PRODUCERS_SECONDS, self._save_producers),
            self._every(_EXPORT_SECONDS, self._export_tables),
            self._every(_TIMER_CHECKPOINT_SECONDS, self._checkpoint_timers),
            self._every(_TIMER_CHECKPOINT_SECONDS, self._sync_set_aside),
            self._every(_TRANSACTIONS_SECONDS, self._save_transactions),
        ]
        for seconds, duty in (
            (_ROUND_SECONDS, self.core.admission.beat),
            (_ROUND_SECONDS, self._deliver_in_time),
            (_ROUND_SECONDS, self.polls.expire),
            (_ROUND_SECONDS, self._sweep_pop),
            (_ROUND_SECONDS, self.core.rescue.step),
            (_GROUP_SWEEP_SECONDS, self._sweep_groups),
            (_GROUP_SWEEP_SECONDS, self._check_transactions),
        ):
            self._round.add(f"{self.spec.name}: {_words(duty)}", seconds, duty)
        self._round.begin()

    def _probe(self) -> None:
        appends, self._appends = self._appends, self.core.admission.entered
        wait = PROBE_SECONDS if appends != self._appends else _IDLE_PROBE_SECONDS
        self.statistics.loop_lag.beat(wait)
        self._probing = self._loop.call_later(wait, self._probe)

    def _every(self, seconds: float, duty: Callable[[], Awaitable[float | None]]) -> asyncio.Task[None]:
        return self._loop.create_task(run_periodically(f"{self.spec.name}: {_words(duty)}", seconds, duty))

    def _deliver_due(self) -> DueReport:
        report = self.core.deliver_due()
        self._lateness = report.lateness_ms / 1000
        return report

    def _deliver_in_time(self) -> None:
        """Deliver what is due, and set a timer for the next delivery.

        The timer is set only if the delivery is due before the next round.
        """
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
        with contextlib.suppress(Exception):  # the next round retries and logs the error
            self._deliver_in_time()

    def _sweep_pop(self) -> None:
        topics = self.store.topic_configs.version
        self.core.pop.sweep()
        if self.store.topic_configs.version != topics:  # a group's first dead letter creates its topic
            self._announcing = self._loop.create_task(self.announce())

    def _sweep_groups(self) -> None:
        expired = self.groups.expire()
        self.core.locks.forget(expired.client_ids)
        for name in expired.groups:
            self._notify_group(name)

    def _check_transactions(self) -> None:
        topics = self.store.topic_configs.version
        self._checker.turn()
        if self.store.topic_configs.version != topics:  # the first half that is given up creates its topic
            self._announcing = self._loop.create_task(self.announce())

    async def _save_transactions(self) -> None:
        self.core.transactions.save()

    async def _delete_expired(self) -> None:
        deleted = self.core.delete_expired()
        if deleted.log_files:
            _log.info("%s: %d log files deleted: %s", self.spec.name, deleted.log_files, deleted.reason)

    async def _save_producers(self) -> None:
        """Save producer states, using at most a fiftieth of the loop's time.

        If saving is skipped, a start reads more of the log instead.
        """
        if self._loop.time() >= self._save_producers_at:
            spent = await self._save_producers_now()
            self._save_producers_at = self._loop.time() + 50 * spent

    async def _save_producers_now(self) -> float:
        """Save producer states and return the seconds that this took on the loop."""
        spent, began = 0.0, self._loop.time()
        for write in self._producer_history.save():
            spent += self._loop.time() - began
            await asyncio.to_thread(write)
            began = self._loop.time()
        return spent + self._loop.time() - began

    async def _save_last_producers(self) -> None:
        await self._save_producers_now()

    async def _export_tables(self) -> None:
        """Write RocketMQ's files of settings and offsets, using at most a twentieth of the time."""
        if self._loop.time() < self._export_at:
            return
        began = self._loop.time()
        await asyncio.to_thread(self.store.begin_export())
        self._export_at = self._loop.time() + 20 * (self._loop.time() - began)

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
