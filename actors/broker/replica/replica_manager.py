"""Give a broker of a group the role that the register says.

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

from raymq.actors.broker.core.periodic_retry import PeriodicTaskRetry
from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.broker.name_server_registration import ReplicaRegistration
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
from raymq.actors.broker.replica.replica_status import ReplicaState
from raymq.actors.broker.replica.replica_stream import ReplicaStream, record_start
from raymq.actors.broker.replication import replica_role
from raymq.actors.broker.replication.replica_claims import ClaimRefused
from raymq.actors.broker.replication.replica_role import Instruction, Role
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import LeaseClaim, Registered
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
        #: The newest events, kept in memory from one opening of the store to the next.
        self._backlog: ReplicationBacklog | None = None
        #: The store was closed with all data on disk.
        self._is_closed_well = False
        self._handlers = replica_status.handlers(self, self.fence)
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, spec: BrokerSpec, node_id: str) -> Self:
        """Open the directory and listen.

        Claim the place in the group, and take the role, as soon as possible.

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
        """Stop as `BrokerService.stop` does."""
        ending = self.role.stop()
        if self.leadership is not None and self.leader is None:
            self.leadership.leave()  # it waits for its lease, with the lock
        async with self._roles:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            try:
                await self._execute(ending)
                if self.stream is not None:
                    await asyncio.to_thread(self.stream.close)
                    self._is_closed_well = self.stream.is_safe
                self.metadata.change(stopped=self._is_closed_well)
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
        if self.role.refusal:
            return {"register": self.role.refusal}
        if self.role.role is Role.CANDIDATE:
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
        await self._claiming.check_is_next(epoch, self.state)
        instructions = self.role.fence(epoch)
        if self.role.is_leading and self.role.epoch < epoch:
            await self._execute(instructions)
            raise BrokerUnavailable(self.name, "it is stepping down: ask again")
        async with self._roles:
            await self._execute(self.role.fence(epoch))  # another fence may have come meanwhile
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

    # -- events

    async def _run(self) -> None:
        await self._claim()
        retry = PeriodicTaskRetry(f"{self.name}: taking its role", _READ_SECONDS)
        while self.role.role is not Role.REFUSED:
            self._news.clear()
            try:
                registered = await self._register.read(self.name)
            except RegisterError as error:
                _log.debug("%s: the register cannot be read: %s", self.name, error)
            else:
                self.read_at = boottime()
                try:
                    async with self._roles:
                        await self._take_role(registered)
                    retry.succeeded()
                except Exception as error:  # noqa: BLE001 - the error is logged, and the role is retried
                    self.role.trouble = f"{type(error).__name__}: {error}"
                    verdict = retry.failed(error)
                    if verdict.line is not None:
                        _log.error("%s", verdict.line, exc_info=error if verdict.with_traceback else None)
                    await asyncio.sleep(min(verdict.wait, _MAX_WAIT_SECONDS))
            waits = self.leadership is None and (self.connection is None or not self.connection.is_open)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SOON_SECONDS if waits else _READ_SECONDS):
                    await self._news.wait()

    async def _claim(self) -> None:
        while self.role.role is Role.CANDIDATE:
            try:
                self.registered = await self._claiming.make()
                self.role.claimed()
            except ClaimRefused as refused:
                await self._execute(self.role.claim_refused(str(refused)))
            except StoreError as error:
                self._claiming.trouble = str(error)
                await asyncio.sleep(_READ_SECONDS)

    async def _take_role(self, registered: Registered) -> None:
        state, leadership = registered.value, self.leadership
        if not isinstance(state, GroupState):
            return
        self.registered = registered
        if leadership is not None and leadership.has_ended:
            await self._execute(self.role.leadership_ended(leadership.epoch))
        elif leadership is not None and leadership.should_hand_over:
            await self._execute(self.role.disk_failing())  # its lease would delay the next master
        if self.connection is not None and not self.connection.is_open:
            await self._execute(self.role.connection_lost())
        log_epoch = None if self.stream is None else self.stream.epochs.last_epoch
        is_following = self.connection is not None and self.connection.is_following
        await self._execute(self.role.register_read(state, log_epoch=log_epoch, is_following=is_following))

    # -- instructions

    async def _execute(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            await self._execute(await self._do(instruction))

    async def _do(self, instruction: Instruction) -> list[Instruction]:
        """Carry out an instruction, and return what the role makes of its result."""
        match instruction:
            case replica_role.Connect(master, epoch):
                return await self._connect(master, epoch)
            case replica_role.Disconnect():
                return await self._disconnect()
            case replica_role.BeginLeadership(epoch):
                return await self._begin_leadership(epoch)
            case replica_role.Serve(epoch):
                return await self._serve(epoch)
            case replica_role.EndLeadership(epoch, is_stop):
                return await self._step_down(epoch, is_stop=is_stop)
            case _:
                await self._do_at_once(instruction)
                return []

    async def _do_at_once(self, instruction: Instruction) -> None:
        """Carry out an instruction that has no result."""
        match instruction:
            case replica_role.BecomeFollower():
                await self._refuse_clients()
                if self.stream is None:
                    await self._open_stream()
                self._news.set()
            case replica_role.ReopenStore():
                await self._close_stream()
                await self._open_stream()
            case replica_role.AnnounceFollower(epoch):
                self._registering.follows(epoch)
            case replica_role.LeaveRoutes():
                await self._registering.leave()
            case replica_role.MarkComplete():
                self.metadata.change(tail_lost=False, memory_lost=False)
            case replica_role.StoreFence(epoch):
                await asyncio.to_thread(self.metadata.change, fenced=epoch)
            case replica_role.ApplyRegistered():
                if self.leadership is not None and self.registered is not None:
                    self.leadership.apply_registered(self.registered)
            case replica_role.HandOver(epoch):
                if self.leadership is not None:
                    self.leadership.is_stepping_down = True
                self._spawn(self._hand_over(epoch))
            case replica_role.ReleaseLease(epoch):
                if self.leadership is not None:
                    self.leadership.leave()
                self._spawn(self._release(epoch))

    async def _connect(self, master: int, epoch: int) -> list[Instruction]:
        stream, state = self.stream, self.state
        if stream is None or state is None:
            return []
        record = state.replicas[master]
        try:
            answer = await self._pool.request(record.address, replica_status_command(), _ASK_SECONDS)
            status = read_replica_status(answer)
            if status.nonce != record.nonce or status.role != "master" or status.epoch != epoch:
                return self.role.connect_failed(f"replica {master} is not master of epoch {epoch} yet")
            if unfit := await self._fitted(stream, status.file_bytes):
                return self.role.connect_failed(unfit)
            stream.master_begin = status.begin[0]
            flushes = stream.store.config.flush == "sync"
            version = await self._pool.version(record.address, _ASK_SECONDS)
            hello = partial(replica_status.hello, self, version)
            connection = ReplicaConnection(stream, epoch, hello, lambda: self.role.fenced, flushes=flushes)
            await connection.connect(status.replication_address, self._tls)
        except (RayMQError, OSError, TimeoutError) as error:
            return self.role.connect_failed(f"the master at {record.address} cannot be reached: {error}")
        self.connection = connection
        return self.role.connected(epoch)

    async def _fitted(self, stream: ReplicaStream, file_bytes: int) -> str:
        """Call `ReplicaStream.fit`, if the master reports the size of its log files."""
        try:
            return await asyncio.to_thread(stream.fit, file_bytes) if file_bytes else ""
        except Exception:
            await self._close_stream()
            raise

    async def _disconnect(self) -> list[Instruction]:
        connection, self.connection = self.connection, None
        self._news.set()
        if connection is None:
            return self.role.disconnected(is_broken=False)
        await connection.close()
        if connection.is_broken:
            _log.warning("%s: replica %d reopens its store: %s", self.name, self.number, connection.trouble)
        return self.role.disconnected(is_broken=connection.is_broken)

    async def _begin_leadership(self, epoch: int) -> list[Instruction]:
        assert self.stream is not None
        assert self.registered is not None
        stream, self.last_extent = self.stream, self.stream.extent
        _log.info("%s: replica %d is master in epoch %d, from %s on", self.name, self.number, epoch, stream.end)
        self._registering.pause()
        try:
            self.metadata.change(fenced=epoch, tail_lost=False)
            failpoint("leader.before_epoch")
            end = stream.end
            epochs = stream.begin_epoch_at(end, epoch)
            # The election put only replicas with exactly this log into the in-sync set.
            confirmed = StreamPosition(end.offset, stream.confirmed.sequence)
            identity = self.cluster, self.name, self.number, self.nonce
            self.leadership = Leadership(
                *identity, self.registered, self._register, stream.store.journal, epochs, end, confirmed
            )
            self.leadership.on_end = self._news.set
            failpoint("leader.before_lease")
            await self.leadership.begin()
        except BaseException:
            await self._fail_promotion(epoch)
            raise
        return self.role.lease_acquired(epoch)

    async def _serve(self, epoch: int) -> list[Instruction]:
        """Serve clients with the replica's store, which is open."""
        stream, leadership = self.stream, self.leadership
        assert stream is not None
        assert leadership is not None
        _, starts = read_port_epoch(Path(self.spec.directory) / "raymq" / "broker.json")

        def opened_broker() -> OpenedBroker:
            failpoint("leader.before_tables")
            with releasable_disk_reserve(stream.directory):
                store = stream.lead(memory_lost=self.metadata.now.memory_lost)
                leadership.hold(store)
                opened = OpenedBroker.over(store, self.spec, self._sockets.port, starts + 1)
                self.metadata.change(memory_lost=False)  # its tables are clamped
                return opened

        try:
            failpoint("leader.before_open")
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
            sockets = self._sockets.dup_client_sockets()
            self.leader = await LeaderService.start(self.spec, self.node_id, opened, acks, sockets)
            self.stream = None
        except BaseException:
            await self._fail_promotion(epoch)
            raise
        return self.role.serving(epoch)

    async def _fail_promotion(self, epoch: int) -> None:
        stream, self.stream = self.stream, None
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            leadership.leave()
        if stream is not None:
            self._backlog = stream.store.journal.backlog
            await asyncio.to_thread(stream.abandon)
        has_others = self.state is not None and bool(self.state.in_sync - {self.number})
        await self._execute(self.role.promotion_failed(epoch, has_others=has_others))

    async def _hand_over(self, epoch: int) -> None:
        if self.leadership is not None:
            await self.leadership.finish()
        async with self._roles:
            await self._execute(self.role.handed_over(epoch))

    async def _release(self, epoch: int) -> None:
        await self._register.release(self.name, LeaseClaim(self.number, self.nonce, epoch))

    async def _step_down(self, epoch: int, *, is_stop: bool) -> list[Instruction]:
        leadership, leader = self.leadership, self.leader
        if leadership is not None:
            _log.info("%s: replica %d steps down as master of epoch %d", self.name, self.number, epoch)
            if not is_stop:
                leadership.leave()
            self.last_extent, self._backlog = leadership.extent, leadership.backlog
            self.leader = None
            if leader is not None:  # errors of its end are logged: the broker follows in any case
                await leader.end_serving()
                if not is_stop:
                    await self._refuse_clients()
                self._is_closed_well = not await leader.close_store() and leader.store.is_healthy
            leadership.leave()
            self.leadership = None
        if is_stop:
            await self._release(epoch)
        return self.role.stepped_down(epoch)

    async def _open_stream(self) -> None:
        config = StoreConfig(**{**self.spec.store, "store_host": self.address})
        directory, backlog = Path(self.spec.directory), self._backlog
        self._is_closed_well = False
        self.stream = await asyncio.to_thread(ReplicaStream.open, directory, config, self.metadata, backlog)
        self._backlog = None

    async def _close_stream(self) -> None:
        """Close a stream that cannot be used any more; it is reopened later."""
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(stream.close)
                self._is_closed_well = stream.is_safe

    # -- sockets

    def _accept(self) -> FrameStream:
        if self.leadership is not None and self.leadership.accepts_replicas:
            return self.leadership.shipping.accept()
        stranger = FrameStream(lambda _: None, lambda _: None, on_made=lambda: stranger.abort("not the master"))
        return stranger

    async def _refuse_clients(self) -> None:
        if self._sockets.is_refusing:
            return
        refusals = not_master_handlers(self.name, lambda: self.role.refusal or self.role.trouble or "a replica")
        await self._sockets.refuse(refusals | replica_status.replica_handlers(self) | self._handlers)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)


def _locked(directory: Path) -> ProcessLock:
    """Return the lock that the process keeps; create the directory if needed."""
    fileutil.make_folder(directory)
    return ProcessLock(directory, StorePaths(directory).abort, boot_id())
