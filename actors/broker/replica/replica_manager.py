"""Give a broker of a group with several copies its role, follower or leader, as the register says.

The manager owns the listening sockets as long as the broker runs; the server of each role gets duplicates of them.
Everything belongs to one event loop. Slow work runs on other threads, under one lock: a change of the role, a
truncation, a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Self

from raymq.actors.backoff import Backoff
from raymq.actors.broker.core.periodic_retry import PeriodicTaskRetry
from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.broker.opened_broker import OpenedBroker
from raymq.actors.broker.periodic_tasks import run_periodically
from raymq.actors.broker.replica import replica_status
from raymq.actors.broker.replica.broker_sockets import BrokerSockets
from raymq.actors.broker.replica.follower_tasks import (
    RETENTION_SECONDS,
    SYNC_SECONDS,
    TIMER_CHECKPOINT_SECONDS,
    TIMERS_SECONDS,
    FollowerTasks,
)
from raymq.actors.broker.replica.frame_stream import FrameStream
from raymq.actors.broker.replica.leader_guard import ReplicatedAcks, not_master_handlers
from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.broker.replica.replica_claimer import ReplicaClaimer, end_predecessor_lease
from raymq.actors.broker.replica.replica_connection import ReplicaConnection
from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_registration import ReplicaRegistration
from raymq.actors.broker.replica.replica_status import ReplicaState
from raymq.actors.broker.replica.replica_stream import ReplicaStream, record_start
from raymq.actors.broker.replication.replica_claims import ClaimRefused
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.keeper.serving.register_location import OpenRegister, open_register
from raymq.actors.protocol import HEARTBEAT_SECONDS, BrokerInfo, BrokerSpec, DueReport
from raymq.actors.wire.commands.replication_commands import FenceReply, read_replica_status, replica_status_command
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.tls import client_context
from raymq.storage.clock import boot_id, boottime
from raymq.storage.config import StoreConfig
from raymq.storage.emergency_cleaner import releasable_disk_reserve
from raymq.storage.errors import StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.directory_lock import ProcessLock
from raymq.storage.journal.replication_backlog import ReplicationBacklog
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.broker_identity import read_port_epoch, write_identity

#: How often the register is read, and how often while the broker has no role yet.
_READ_SECONDS: Final = 0.3
_SOON_SECONDS: Final = 0.1
#: A failed step is retried after this time at the latest.
_MAX_WAIT_SECONDS: Final = 2.0
#: Time-out of a request to another process: whether it is the registered one, or where its replicas connect.
_ASK_SECONDS: Final = 0.5

_log = logging.getLogger(__name__)


class ReplicaManager(ReplicaState):
    """The role of one running broker of a group.

    It is created by `start`, used and stopped on its event loop.
    """

    def __init__(
        self,
        spec: BrokerSpec,
        node_id: str,
        sockets: BrokerSockets,
        metadata: ReplicaFile,
        stream: ReplicaStream,
        lock: ProcessLock,
        opened: OpenRegister,
    ) -> None:
        """Create the service; see `start`."""
        super().__init__(spec, node_id, sockets, metadata, stream, lock)
        self._sockets = sockets
        self._tls = None if spec.tls is None else client_context(spec.tls)
        self._opened = opened
        self._register = opened.register
        self._pool = ConnectionPool(tls=self._tls)
        is_empty = stream.end == BEGIN and not len(stream.epochs)
        self._claiming = ReplicaClaimer(
            self._register, self._pool, metadata, self.name, self.number, self.address, self.nonce, is_empty=is_empty
        )
        self._registering = ReplicaRegistration(self._pool, spec, self.number, self.address, self.replication_address)
        self._loop = asyncio.get_running_loop()
        #: Held while the role changes, and while the stream must not change.
        self._roles = asyncio.Lock()
        self._news = asyncio.Event()
        self._tried_epoch = 0
        #: Its lease was released, and is never requested again: a late release would end the new one.
        self._left_epoch = 0
        #: Delays reopening the store when the master's frames cannot be applied.
        self._backoff = Backoff(first=0.1, factor=2.0, cap=5.0)
        self._follow_from = 0.0
        self._stopping = False
        self._handlers = replica_status.handlers(self, self.fence)
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, spec: BrokerSpec, node_id: str) -> Self:
        """Open the directory and listen; claim the place in the group, and take the role, as soon as possible.

        Raise as `BrokerService.start` does.
        """
        if spec.keepers is None:
            raise InvalidInput("keepers", "a set of keepers, for a group of several replicas", None)
        directory = Path(spec.directory)
        tls = None if spec.tls is None else client_context(spec.tls)
        opened = open_register(spec.keepers, tls)
        lock = await asyncio.to_thread(_locked, directory)
        ending = asyncio.create_task(end_predecessor_lease(opened.register, spec.name, spec.replica + 1, lock.place))
        stream: ReplicaStream | None = None
        sockets: BrokerSockets | None = None
        try:
            metadata = await asyncio.to_thread(ReplicaFile, directory)
            port, epoch = read_port_epoch(directory / "raymq" / "broker.json")
            sockets = BrokerSockets(spec.host, port, metadata.now.port, spec.tls)
            config = StoreConfig(**{**spec.store, "store_host": f"{spec.host}:{sockets.port}"})
            stream = await asyncio.to_thread(ReplicaStream.open, directory, config, metadata)
            record_start(metadata, flushes=config.flush == "sync", is_state_lost=stream.is_state_lost)
            metadata.change(port=sockets.replication_port)
            identity = directory / "raymq" / "broker.json"
            fields = {"name": spec.name, "cluster": spec.cluster, "host": spec.host}
            write_identity(identity, **fields, port=sockets.port, epoch=max(epoch, 1))
            service = cls(spec, node_id, sockets, metadata, stream, lock, opened)
            await service._begin(ending)
        except BaseException:
            ending.cancel()
            if stream is not None:
                stream.close()
            if sockets is not None:
                await sockets.close()
            await opened.close()
            lock.release()
            raise
        return service

    async def _begin(self, ending: asyncio.Task[None]) -> None:
        # After this process's registration the previous process's lease could not be identified any more.
        await asyncio.wait([ending], timeout=_ASK_SECONDS)
        await self._sockets.serve_replicas(self._accept)
        await self._refuse_clients()
        duties = FollowerTasks(self, self._pool, self._roles)
        self._tasks = [
            ending,
            self._loop.create_task(self._run()),
            self._every(SYNC_SECONDS, duties.sync),
            self._every(RETENTION_SECONDS, duties.retain),
            self._every(TIMERS_SECONDS, duties.index_timers),
            self._every(TIMER_CHECKPOINT_SECONDS, duties.checkpoint_timers),
            self._every(HEARTBEAT_SECONDS, self._registering.announce),
        ]

    def _every(self, seconds: float, duty: Callable[[], Awaitable[float | None]]) -> asyncio.Task[None]:
        return self._loop.create_task(run_periodically(f"{self.name}: {duty.__name__.strip('_')}", seconds, duty))

    async def stop(self) -> None:
        """Stop cleanly.

        A master's replicas get the running appends; then its lease ends, and others may be elected.

        Raises:
            StoreError: not all could be written; the next start recovers as after a kill.
        """
        self._stopping = True
        async with self._roles:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._step_down(stops=True)
            await self._disconnect()
            await self._registering.leave()
            try:
                if self.stream is not None:
                    await asyncio.to_thread(self.stream.close)
                self.metadata.change(stopped=self.stream is not None and self.stream.is_safe)
            finally:
                await self._sockets.close()
                await self._pool.close()
                await self._opened.close()
                self.lock.release()

    # -- for others

    @property
    def troubles(self) -> dict[str, str]:
        """Return why it is not in its group, or in a name server's routes.

        The result is empty if there is no such problem.
        """
        if self.refused:
            return {"register": self.refused}
        if not self.is_claimed:
            return {"register": self._claiming.trouble}
        return self.leader.troubles if self.leader is not None else self._registering.troubles

    def status(self) -> BrokerInfo:
        """Return the broker's identity and state."""
        return replica_status.broker_info(self)

    async def fence(self, epoch: int) -> FenceReply:
        """Durably refuse masters of epochs before `epoch`; return what this replica has.

        Raises:
            BrokerUnavailable: it is not registered, or is just stepping down: retry.
            InvalidInput: it is fenced to a later epoch; or there is no election of that epoch, nor may the next be.
        """
        if not self.is_claimed or self.refused:
            raise BrokerUnavailable(self.name, self.refused or "it is not registered yet")
        await self._claiming.check_is_next(epoch, self.state)
        if epoch < self.metadata.now.fenced:
            raise InvalidInput("epoch", f"at least {self.metadata.now.fenced}, at which this replica is fenced", epoch)
        leadership = self.leadership
        if leadership is not None and leadership.epoch < epoch:
            self.metadata.change(fenced=epoch)
            self._spawn(self._hand_over(leadership))
            raise BrokerUnavailable(self.name, "it is stepping down: ask again")
        if self.connection is not None and self.connection.epoch < epoch:
            self.connection.abort("fenced")
        async with self._roles:
            if epoch < self.metadata.now.fenced:
                raise InvalidInput(
                    "epoch", f"at least {self.metadata.now.fenced}, at which this replica is fenced", epoch
                )
            await asyncio.to_thread(self.metadata.change, fenced=epoch)
            if self.connection is not None and self.connection.epoch < epoch:
                await self.connection.close("fenced")
            healthy = self.is_healthy and (self.stream is None or await asyncio.to_thread(self.stream.ensure_synced))
            return replica_status.fenced(self, epoch, healthy=healthy)

    async def deliver_due(self, scheduler_pid: int) -> DueReport:
        """Deliver as `LeaderService.deliver_due` does; a replica that is not master has nothing due."""
        if self.leader is None or self.leadership is None or not self.leadership.serves:
            return DueReport(0, None, 0)
        return await self.leader.deliver_due(scheduler_pid)

    async def invoke(self, session: str, request: Command) -> Command:
        """Carry out a command as `LeaderService.invoke` does."""
        if self.leader is not None:
            return await self.leader.invoke(session, request)
        return await self._sockets.invoke(session, request)

    # -- the role loop

    async def _run(self) -> None:
        await self._claim()
        troubles = PeriodicTaskRetry(f"{self.name}: taking its role", _READ_SECONDS)
        while not self.refused:
            try:
                registered = await self._register.read(self.name)
            except RegisterError as error:
                _log.debug("%s: the register cannot be read: %s", self.name, error)
            else:
                self.read_at = boottime()
                try:
                    async with self._roles:
                        await self._take_role(registered)
                    troubles.succeeded()
                except Exception as error:  # noqa: BLE001 - the error is logged, and the role is retried
                    self.trouble = f"{type(error).__name__}: {error}"
                    verdict = troubles.failed(error)
                    if verdict.line is not None:
                        _log.error("%s", verdict.line, exc_info=error if verdict.with_traceback else None)
                    await asyncio.sleep(min(verdict.wait, _MAX_WAIT_SECONDS))
            self._news.clear()
            waits = self.leadership is None and (self.connection is None or not self.connection.is_open)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SOON_SECONDS if waits else _READ_SECONDS):
                    await self._news.wait()

    async def _claim(self) -> None:
        while not self.is_claimed and not self.refused:
            try:
                self.registered = await self._claiming.make()
            except ClaimRefused as refused:
                self.refused = str(refused)
                _log.error("%s: replica %d must not serve: %s", self.name, self.number, refused)
            except StoreError as error:
                self._claiming.trouble = str(error)
                await asyncio.sleep(_READ_SECONDS)

    # -- roles; the lock is held

    async def _take_role(self, registered: Registered) -> None:
        state = registered.value
        if not isinstance(state, GroupState) or self._stopping:
            return
        self.registered = registered
        mine = state.replicas.get(self.number)
        if mine is None or mine.nonce != self.nonce:
            self.refused = f"replica {self.number} was started by another process" + (
                "" if mine is None else f", at {mine.address}"
            )
            _log.error("%s: %s: this process stops serving", self.name, self.refused)
            await self._step_down()
            await self._disconnect()
            await self._registering.leave()  # the place in the routes belongs to the other process
            return
        if self.leadership is not None and self.leadership.has_ended:
            await self._step_down()
        if self.leadership is None:
            await self._refuse_clients()
        if self.leadership is None and self.stream is None:
            await self._open_stream()
        if self.leadership is not None and self.leadership.should_hand_over:
            self._spawn(self._hand_over(self.leadership))  # its lease would delay the next master
        follows = self.connection is not None and self.connection.is_following
        if self.number in state.in_sync and state.master not in {None, self.number} and follows:
            self.metadata.change(tail_lost=False, memory_lost=False)
        if state.master == self.number:
            if state.epoch >= self.metadata.now.fenced and (
                self.leadership is None or self.leadership.epoch < state.epoch
            ):
                await self._become_leader(registered, state)
            elif self.leadership is not None:
                self.leadership.apply_registered(registered)
        else:
            if self.leadership is not None and self.leadership.epoch <= state.epoch:
                await self._step_down()
            self._registering.follows(state.epoch)
            if state.master is not None:
                await self._follow(state)

    async def _become_leader(self, registered: Registered, state: GroupState) -> None:
        await self._disconnect()
        await self._step_down()
        stream, epoch = self.stream, state.epoch
        if epoch <= self._left_epoch:
            self.trouble = f"it has stepped down in epoch {epoch}: another master must be elected"
            return
        began = 0 if stream is None else stream.epochs.last_epoch
        if stream is None or epoch < began or (epoch == began and epoch != self._tried_epoch):
            self.trouble = f"epoch {epoch} began before this process started"
            return
        _log.info("%s: replica %d is master in epoch %d, from %s on", self.name, self.number, epoch, stream.end)
        self._tried_epoch = epoch
        self._registering.pause()
        memory_lost = self.metadata.now.memory_lost  # kept until its tables are clamped
        self.metadata.change(fenced=epoch, tail_lost=False)
        self.last_extent = stream.extent
        self.stream = None
        try:
            failpoint("leader.before_epoch")
            end = stream.end
            epochs = stream.begin_epoch_at(end, epoch)
            identity = self.cluster, self.name, self.number, self.nonce
            # The election put only replicas with exactly this log into the in-sync set.
            confirmed = StreamPosition(end.offset, stream.confirmed.sequence)
            self.leadership = leadership = Leadership(
                *identity, registered, self._register, stream.store.journal, epochs, end, confirmed
            )
            leadership.on_end = self._news.set
            failpoint("leader.before_lease")
            await leadership.begin()
            leadership.check_not_ended()
            failpoint("leader.before_open")
            self.leader = await self._serve(stream, leadership, memory_lost=memory_lost)
            self.metadata.change(memory_lost=False)
            self.trouble = ""
        except BaseException:
            begun, self.leadership = self.leadership, None
            if begun is not None:
                begun.leave()
                if state.in_sync - {self.number}:  # one of the others may be elected
                    self._left_epoch = epoch
                    self._spawn(begun.release())
            await asyncio.to_thread(stream.abandon)
            await self._resume_following(stream.store.journal.backlog)
            raise

    async def _serve(self, stream: ReplicaStream, leadership: Leadership, *, memory_lost: bool) -> LeaderService:
        """Serve clients with the replica's store, which is open."""
        _, epoch = read_port_epoch(Path(self.spec.directory) / "raymq" / "broker.json")

        def opened_broker() -> OpenedBroker:
            failpoint("leader.before_tables")
            with releasable_disk_reserve(stream.directory):
                store = stream.lead(memory_lost=memory_lost)
                leadership.hold(store)
                return OpenedBroker.over(store, self.spec, self._sockets.port, epoch + 1)

        # On another thread: meanwhile the loop answers requests and renews the lease.
        opened = await asyncio.to_thread(opened_broker)
        try:
            failpoint("leader.before_serving")
            leadership.check_not_ended()
            await self._sockets.stop_refusing()
            leadership.check_not_ended()
        except BaseException:
            await asyncio.to_thread(opened.abandon)
            raise
        acks = ReplicatedAcks(leadership, self.replication_address, self._handlers)
        return await LeaderService.start(self.spec, self.node_id, opened, acks, self._sockets.dup_client_sockets())

    async def _hand_over(self, leadership: Leadership) -> None:
        """Step down, so that another replica is elected.

        Take no new messages, give in-sync replicas a moment to get everything, and release the lease.
        """
        if leadership.is_stepping_down:
            return
        leadership.is_stepping_down = True
        await leadership.finish()
        self._left_epoch = leadership.epoch
        leadership.leave()
        await leadership.release()
        async with self._roles:
            if self.leadership is leadership:
                await self._step_down()

    async def _step_down(self, *, stops: bool = False) -> None:
        """Stop being master: acknowledge nothing, end the service, and open the stream."""
        leadership, leader = self.leadership, self.leader
        if leadership is None:
            return
        _log.info("%s: replica %d steps down as master of epoch %d", self.name, self.number, leadership.epoch)
        if not stops:
            leadership.leave()
        self.last_extent = leadership.extent
        self.leader = None
        if leader is not None:  # errors of its end are logged: the broker follows in any case
            await leader.end_serving()
            if not stops:
                await self._refuse_clients()
            await leader.close_store()
        if stops:
            await leadership.finish()
            leadership.leave()
            await leadership.release()
        self.leadership = None
        await self._resume_following(leadership.backlog, serves=not stops)

    async def _resume_following(self, backlog: ReplicationBacklog | None, *, serves: bool = True) -> None:
        if serves:
            await self._refuse_clients()
        await self._open_stream(backlog)

    async def _open_stream(self, backlog: ReplicationBacklog | None = None) -> None:
        config = StoreConfig(**{**self.spec.store, "store_host": self.address})
        directory = Path(self.spec.directory)
        self.stream = await asyncio.to_thread(ReplicaStream.open, directory, config, self.metadata, backlog)

    async def _close_stream(self) -> None:
        """Close a stream that cannot be used any more; it is reopened later."""
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(stream.close)

    async def _follow(self, state: GroupState) -> None:
        assert state.master is not None
        line = self.connection
        if line is not None and line.is_open and line.epoch == state.epoch:
            if line.is_following:
                self._backoff.reset()
            return
        await self._disconnect()
        if self._loop.time() < self._follow_from:
            return
        stream = self.stream
        if state.epoch < self.metadata.now.fenced:
            self.trouble = (
                f"it is fenced at epoch {self.metadata.now.fenced}, and follows no master of epoch {state.epoch}"
            )
        if state.epoch < self.metadata.now.fenced or stream is None:
            return
        record = state.replicas[state.master]
        try:
            answer = await self._pool.request(record.address, replica_status_command(), _ASK_SECONDS)
            status = read_replica_status(answer)
            if status.nonce != record.nonce or status.role != "master" or status.epoch != state.epoch:
                self.trouble = f"replica {state.master} is not master of epoch {state.epoch} yet"
                return
            self.trouble = await self._fitted(stream, status.file_bytes)
            if self.trouble:
                return
            stream.master_begin = status.begin[0]
            flushes = stream.store.config.flush == "sync"
            version = await self._pool.version(record.address, _ASK_SECONDS)
            hello = partial(replica_status.hello, self, version)
            line = ReplicaConnection(stream, state.epoch, hello, lambda: self.metadata.now.fenced, flushes=flushes)
            await line.connect(status.replication_address, self._tls)
            self.connection, self.trouble = line, ""
        except (RayMQError, OSError, TimeoutError) as error:
            self.trouble = f"the master at {record.address} cannot be reached: {error}"

    async def _fitted(self, stream: ReplicaStream, file_bytes: int) -> str:
        """Call `ReplicaStream.fit`, if the master reports the size of its log files."""
        try:
            return await asyncio.to_thread(stream.fit, file_bytes) if file_bytes else ""
        except Exception:
            await self._close_stream()
            raise

    async def _disconnect(self) -> None:
        line, self.connection = self.connection, None
        if line is not None:
            await line.close()
            if line.is_broken:
                self._follow_from = self._loop.time() + self._backoff.next_delay()
                _log.warning("%s: replica %d reopens its store: %s", self.name, self.number, line.trouble)
                await self._close_stream()
                await self._open_stream()

    # -- sockets

    def _accept(self) -> FrameStream:
        if self.leadership is not None and self.leadership.accepts_replicas:
            return self.leadership.shipping.accept()
        stranger = FrameStream(lambda _: None, lambda _: None, on_made=lambda: stranger.abort("not the master"))
        return stranger

    async def _refuse_clients(self) -> None:
        if self._sockets.is_refusing:
            return
        refusals = not_master_handlers(self.name, lambda: self.trouble or "a replica")
        await self._sockets.refuse(refusals | replica_status.replica_handlers(self) | self._handlers)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)


def _locked(directory: Path) -> ProcessLock:
    """Return the lock that the process keeps; create the directory if needed."""
    fileutil.make_folder(directory)
    return ProcessLock(directory, StorePaths(directory).abort, boot_id())
