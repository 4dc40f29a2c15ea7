"""A broker of a group with several copies, without Ray: one process that is replica or master, as the register says.

It owns the listening sockets for its whole life; the server of each role gets duplicates of them. Everything belongs to
one event loop; what takes long is done on other threads, under one lock: a change of the role, a cut, a snapshot.
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
from raymq.actors.broker.core.duty_troubles import DutyTroubles
from raymq.actors.broker.duties import repeat
from raymq.actors.broker.making_ready import make_ready
from raymq.actors.broker.replica import told
from raymq.actors.broker.replica.claiming import Claiming, end_former_lease
from raymq.actors.broker.replica.follower import FollowerLine
from raymq.actors.broker.replica.following_duties import RETENTION_SECONDS, SYNC_SECONDS, FollowingDuties
from raymq.actors.broker.replica.frame_stream import FrameStream
from raymq.actors.broker.replica.listening import Listening
from raymq.actors.broker.replica.office import Office
from raymq.actors.broker.replica.place import MasterPlace
from raymq.actors.broker.replica.process import ReplicaProcess
from raymq.actors.broker.replica.refusing import refusing
from raymq.actors.broker.replica.registering import ReplicaRegistration
from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.stream import FollowedStream, note_start
from raymq.actors.broker.replica.thread_calls import ThreadCalls
from raymq.actors.broker.replication.claims import ClaimRefused
from raymq.actors.broker.replication.positions import BEGIN, StreamPosition
from raymq.actors.broker.service import BrokerService
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.messages import Registered
from raymq.actors.keeper.serving.location import OpenRegister, open_register
from raymq.actors.naming import check_name
from raymq.actors.protocol import HEARTBEAT_SECONDS, BrokerInfo, BrokerSpec, DueReport
from raymq.actors.wire.commands.replication import Sealed, read_replica_status, replica_status_command
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.tls import client_context
from raymq.storage.clock import boot_id, boottime
from raymq.storage.config import StoreConfig
from raymq.storage.directory_format import check_format
from raymq.storage.errors import StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.directory_lock import ProcessLock
from raymq.storage.paths import Paths
from raymq.storage.state.recorder import StateRecorder
from raymq.storage.state.replica import StateReplica
from raymq.storage.tables.broker_identity import read_identity, write_identity

#: How often the register is read, and while there is something to be waited for.
_READ_SECONDS: Final = 0.3
_SOON_SECONDS: Final = 0.1
#: What failed is tried again after this at the latest.
_MOST_WAIT_SECONDS: Final = 2.0
#: How long another process is asked whether it is the one that is registered, or where its replicas connect.
_ASK_SECONDS: Final = 0.5

_log = logging.getLogger(__name__)


class ReplicaService(ReplicaProcess):
    """One running broker of a group. Made by `start`, used and stopped on its event loop."""

    def __init__(
        self,
        spec: BrokerSpec,
        node_id: str,
        listening: Listening,
        memory: ReplicaFile,
        stream: FollowedStream,
        lock: ProcessLock,
        opened: OpenRegister,
    ) -> None:
        """See `start`."""
        super().__init__(spec, node_id, listening, memory, stream, lock)
        self._listening = listening
        self._states = stream.states
        self._tls = None if spec.tls is None else client_context(spec.tls)
        self._opened = opened
        self._register = opened.register
        self._pool = ConnectionPool(tls=self._tls)
        is_empty = stream.end == BEGIN and not len(stream.epochs)
        self._claiming = Claiming(
            self._register, self._pool, memory, self.name, self.number, self.address, self.nonce, is_empty=is_empty
        )
        self._registering = ReplicaRegistration(self._pool, spec, self.number, self.address, self.replication_address)
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadCalls()
        self._loop.set_default_executor(self._threads)
        #: What was under way when its office began: nothing of that.
        self._before_office = self._threads.under_way()
        #: Held while the role changes, and while the stream is not to.
        self._roles = asyncio.Lock()
        self._news = asyncio.Event()
        self._tried_epoch = 0
        #: Its lease was given back, and is never asked for again: a late word of that would end the new one.
        self._left_epoch = 0
        #: What the master sends cannot be done: the store is not opened anew all the time.
        self._backoff = Backoff(first=0.1, factor=2.0, cap=5.0)
        self._follow_from = 0.0
        self._stopping = False
        self._handlers = told.handlers(self, self.seal)
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, spec: BrokerSpec, node_id: str) -> Self:
        """Open the directory and listen; it claims its place in the group, and takes its role, as soon as it can.

        Raises:
            FormatTooNew: a newer RayMQ has written in the directory. StoreLocked: another process owns it.
            OSError: a port is taken.
            StoreCorrupt, StoreFull, StoreFailed, InvalidInput: the directory or the settings cannot be used.
        """
        check_name("broker", spec.name, 127)
        if spec.keepers is None:
            raise InvalidInput("keepers", "a set of keepers, for a group of several replicas", None)
        directory = Path(spec.directory)
        await asyncio.to_thread(check_format, directory)
        tls = None if spec.tls is None else client_context(spec.tls)
        opened = open_register(spec.keepers, tls)
        lock = await asyncio.to_thread(_locked, directory)
        ending = asyncio.create_task(end_former_lease(opened.register, spec.name, spec.replica + 1, lock.place))
        stream: FollowedStream | None = None
        listening: Listening | None = None
        try:
            memory = await asyncio.to_thread(ReplicaFile, directory)
            make_ready()  # whoever waits for a new master does not wait for what every process does once
            port, epoch = read_identity(directory / "raymq" / "broker.json")
            listening = Listening(spec.host, port, memory.now.port, spec.tls)
            config = StoreConfig(**{**spec.store, "store_host": f"{spec.host}:{listening.port}"})
            states = await asyncio.to_thread(StateReplica, directory)
            stream = await asyncio.to_thread(FollowedStream.open, directory, config, memory, states)
            note_start(memory, flushes=config.flush == "sync")
            memory.change(port=listening.replication_port)
            identity = directory / "raymq" / "broker.json"
            told = {"name": spec.name, "cluster": spec.cluster, "host": spec.host}
            write_identity(identity, **told, port=listening.port, epoch=max(epoch, 1))
            service = cls(spec, node_id, listening, memory, stream, lock, opened)
            await service._begin(ending)
        except BaseException:
            ending.cancel()
            if stream is not None:
                stream.close()
            if listening is not None:
                await listening.close()
            await opened.close()
            lock.release()
            raise
        return service

    async def _begin(self, ending: asyncio.Task[None]) -> None:
        # Behind this process's registration it would not know the last one's lease any more.
        await asyncio.wait([ending], timeout=_ASK_SECONDS)
        await self._listening.serve_replicas(self._accept)
        await self._refuse_clients()
        duties = FollowingDuties(self, self._pool, self._roles)
        self._tasks = [
            ending,
            self._loop.create_task(self._run()),
            self._every(SYNC_SECONDS, duties.sync),
            self._every(RETENTION_SECONDS, duties.retain),
            self._every(HEARTBEAT_SECONDS, self._registering.announce),
        ]

    def _every(self, seconds: float, duty: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return self._loop.create_task(repeat(f"{self.name}: {duty.__name__.strip('_')}", seconds, duty))

    async def stop(self) -> None:
        """A clean stop. A master's replicas get what is under way; then its lease ends, and others may be elected.

        Raises:
            StoreError: not all could be written; the next start looks at it as after a kill.
        """
        self._stopping = True
        async with self._roles:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._leave_office(stops=True)
            await self._hang_up()
            await self._registering.leave()
            try:
                if self.stream is not None:
                    if not self.is_left:
                        self.stream.states.doubt()  # nobody looks any more at what it changes
                    await asyncio.to_thread(self.stream.close)
                    self.stream.states.close()
                self.memory.change(stopped=self.stream is not None and self.stream.is_safe)
            finally:
                await self._listening.close()
                await self._pool.close()
                await self._opened.close()
                self.lock.release()

    # -- what others ask

    @property
    def troubles(self) -> dict[str, str]:
        """Why it is not in its group, or not in the routes of a name server; empty: it is."""
        if self.refused:
            return {"register": self.refused}
        if not self.is_claimed:
            return {"register": self._claiming.trouble}
        return self.service.troubles if self.service is not None else self._registering.troubles

    def status(self) -> BrokerInfo:
        """Who this is and how it does."""
        return told.broker_info(self)

    async def seal(self, epoch: int) -> Sealed:
        """Follow no master of an epoch before this one, durably; what is here.

        Raises:
            BrokerUnavailable: it is not registered, or is just leaving office: ask again.
            InvalidInput: it was sealed to a later one; or there is no election of that epoch, nor may the next be.
        """
        if not self.is_claimed or self.refused:
            raise BrokerUnavailable(self.name, self.refused or "it is not registered yet")
        await self._claiming.check_is_next(epoch, self.state)
        if epoch < self.memory.now.sealed:
            raise InvalidInput("epoch", f"at least {self.memory.now.sealed}, to which it is sealed", epoch)
        office = self.office
        if office is not None and office.epoch < epoch:
            self.memory.change(sealed=epoch)
            self._spawn(self._retire(office))
            raise BrokerUnavailable(self.name, "it leaves office: ask again")
        if self.line is not None and self.line.epoch < epoch:
            self.line.hang_up("sealed")
        async with self._roles:
            if epoch < self.memory.now.sealed:
                raise InvalidInput("epoch", f"at least {self.memory.now.sealed}, to which it is sealed", epoch)
            await asyncio.to_thread(self.memory.change, sealed=epoch)
            if self.line is not None and self.line.epoch < epoch:
                await self.line.close("sealed")
            healthy = self.is_healthy and (self.stream is None or await asyncio.to_thread(self.stream.make_safe))
            return told.sealed(self, epoch, healthy=healthy)

    async def deliver_due(self, scheduler_pid: int) -> DueReport:
        """As `BrokerService.deliver_due`; nothing is due of who is not master."""
        if self.service is None or self.office is None or not self.office.serves:
            return DueReport(0, None, 0)
        return await self.service.deliver_due(scheduler_pid)

    async def invoke(self, session: str, request: Command) -> Command:
        """As `BrokerService.invoke`."""
        if self.service is not None:
            return await self.service.invoke(session, request)
        return await self._listening.invoke(session, request)

    # -- the role loop

    async def _run(self) -> None:
        await self._claim()
        troubles = DutyTroubles(f"{self.name}: take its role", _READ_SECONDS)
        while not self.refused:
            try:
                registered = await self._register.read(self.name)
            except RegisterError as error:
                _log.debug("%s: the register is not read: %s", self.name, error)
            else:
                self.read_at = boottime()
                try:
                    async with self._roles:
                        await self._take_role(registered)
                    troubles.succeeded()
                except Exception as error:  # noqa: BLE001 - it is told, and tried again
                    self.trouble = f"{type(error).__name__}: {error}"
                    verdict = troubles.failed(error)
                    if verdict.line is not None:
                        _log.error("%s", verdict.line, exc_info=error if verdict.in_full else None)
                    await asyncio.sleep(min(verdict.wait, _MOST_WAIT_SECONDS))
            self._news.clear()
            waits = self.office is None and (self.line is None or not self.line.is_open)
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
            _log.error("%s: %s: this one ends its service", self.name, self.refused)
            await self._leave_office()
            await self._hang_up()
            await self._registering.leave()  # the place in the routes is the other one's
            return
        if self.office is not None and self.office.is_over:
            await self._leave_office()
        if self.office is None:
            await self._refuse_clients()
        if self.office is None and self.stream is None:
            await self._open_stream()
        if self.office is not None and self.office.is_for_another:
            self._spawn(self._retire(self.office))  # its lease would be in the way of the other one
        follows = self.line is not None and self.line.is_following
        if self.number in state.in_sync and state.master not in {None, self.number} and follows:
            self.memory.change(tail_lost=False)
        if state.master == self.number:
            if state.epoch >= self.memory.now.sealed and (self.office is None or self.office.epoch < state.epoch):
                await self._take_office(registered, state)
            elif self.office is not None:
                self.office.take_registered(registered)
        else:
            if self.office is not None and self.office.epoch <= state.epoch:
                await self._leave_office()
            self._registering.follows(state.epoch)
            if state.master is not None:
                await self._follow(state)

    async def _take_office(self, registered: Registered, state: GroupState) -> None:
        await self._hang_up()
        await self._leave_office()
        stream, epoch = self.stream, state.epoch
        if epoch <= self._left_epoch:
            self.trouble = f"it has left the office of epoch {epoch}: another one is to be elected"
            return
        began = 0 if stream is None else stream.epochs.last_epoch
        if stream is None or epoch < began or (epoch == began and epoch != self._tried_epoch):
            self.trouble = f"epoch {epoch} has begun before this process did"
            return
        if not self.is_left:
            self.trouble = "what its last office was in the middle of has not ended: its disk is slow"
            return
        _log.info("%s: replica %d is master in epoch %d, from %s on", self.name, self.number, epoch, stream.end)
        self._tried_epoch = epoch
        self._registering.pause()
        self._before_office = self._threads.under_way()
        self.memory.change(sealed=epoch, tail_lost=False)
        self.last_known = stream.extent
        self.stream = None
        failpoint("office.before_close")
        recorder = await asyncio.to_thread(stream.stop_following, self._state_changed)
        try:
            failpoint("office.before_epoch")
            end = StreamPosition(stream.end.offset, recorder.last)
            epochs = stream.begin_epoch_at(end, epoch)
            who = self.cluster, self.name, self.number, self.nonce
            # Whoever the election has put into the set has exactly this log.
            confirmed = StreamPosition(end.offset, stream.confirmed.sequence)
            self.office = office = Office(*who, registered, self._register, recorder, epochs, end, confirmed)
            office.on_end = self._news.set
            failpoint("office.before_lease")
            await office.begin()
            office.check_in_office()
            failpoint("office.before_loss")
            office.cut = await asyncio.to_thread(stream.tell_loss, end, state.loss_epoch, epoch)
            failpoint("office.before_open")
            place = MasterPlace(office, self._listening, self._handlers, self.replication_address)
            self.service = await BrokerService.start(self.spec, self.node_id, place)
            self.trouble = ""
        except BaseException:
            begun, self.office = self.office, None
            if begun is not None:
                begun.leave()
                if state.in_sync - {self.number}:  # one of them may be elected
                    self._left_epoch = epoch
                    self._spawn(begun.release())
            await self._follow_again(recorder)
            raise

    async def _retire(self, office: Office) -> None:
        """Somebody else is to be elected: take no more, give replicas in sync a moment to have all, and leave."""
        if office.is_retiring:
            return
        office.is_retiring = True
        await office.finish()
        self._left_epoch = office.epoch
        office.leave()
        await office.release()
        async with self._roles:
            if self.office is office:
                await self._leave_office()

    async def _leave_office(self, *, stops: bool = False) -> None:
        """Be master no more: acknowledge nothing from now on, end the service, and be ready to follow."""
        office, service = self.office, self.service
        if office is None:
            return
        _log.info("%s: replica %d leaves the office of epoch %d", self.name, self.number, office.epoch)
        if not stops:
            office.leave()
        self.last_known = office.extent
        self.service = None
        if service is not None:  # what of its end has failed is told: the broker follows all the same
            await service.end_serving()
            if not stops:
                await self._refuse_clients()
            await service.close_store()
        self.left_behind = self._threads.under_way() - self._before_office
        if stops:
            await office.finish()
            office.leave()
            await office.release()
        self.office = None
        await self._follow_again(office.recorder, serves=not stops)

    async def _follow_again(self, recorder: StateRecorder, *, serves: bool = True) -> None:
        self._states = StateReplica(Path(self.spec.directory), continues=recorder)
        if serves:
            await self._refuse_clients()
        await self._open_stream()

    async def _open_stream(self) -> None:
        config = StoreConfig(**{**self.spec.store, "store_host": self.address})
        directory = Path(self.spec.directory)
        self.stream = await asyncio.to_thread(FollowedStream.open, directory, config, self.memory, self._states)

    async def _close_stream(self) -> None:
        """Close what cannot be used any more; it is opened anew."""
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(stream.store.close)

    def _state_changed(self) -> None:
        office = self.office
        if office is not None:
            office.changed()

    async def _follow(self, state: GroupState) -> None:
        assert state.master is not None
        line = self.line
        if line is not None and line.is_open and line.epoch == state.epoch:
            if line.is_following:
                self._backoff.reset()
            return
        await self._hang_up()
        if self._loop.time() < self._follow_from:
            return
        stream = self.stream
        if state.epoch < self.memory.now.sealed:
            self.trouble = f"it is sealed to epoch {self.memory.now.sealed}, and follows no master of {state.epoch}"
        if state.epoch < self.memory.now.sealed or stream is None:
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
            stream.states.master_begin = status.begin[0]
            flushes = stream.store.config.flush == "sync"
            version = await self._pool.version(record.address, _ASK_SECONDS)
            hello = partial(told.hello, self, version)
            line = FollowerLine(stream, state.epoch, hello, lambda: self.memory.now.sealed, flushes=flushes)
            await line.connect(status.replication_address, self._tls)
            self.line, self.trouble = line, ""
        except (RayMQError, OSError, TimeoutError) as error:
            self.trouble = f"the master at {record.address} is not reached: {error}"

    async def _fitted(self, stream: FollowedStream, file_bytes: int) -> str:
        """As `FollowedStream.fit`, where the master says how large its files are."""
        try:
            return await asyncio.to_thread(stream.fit, file_bytes) if file_bytes else ""
        except Exception:
            await self._close_stream()
            raise

    async def _hang_up(self) -> None:
        line, self.line = self.line, None
        if line is not None:
            await line.close()
            if line.is_broken:
                self._follow_from = self._loop.time() + self._backoff.next_delay()
                _log.warning("%s: replica %d opens its store anew: %s", self.name, self.number, line.trouble)
                await self._close_stream()
                await self._open_stream()

    # -- sockets

    def _accept(self) -> FrameStream:
        if self.office is not None and self.office.is_shipping:
            return self.office.shipping.accept()
        stranger = FrameStream(lambda _: None, lambda _: None, on_made=lambda: stranger.abort("not the master"))
        return stranger

    async def _refuse_clients(self) -> None:
        if self._listening.is_refusing:
            return
        refusals = refusing(self.name, lambda: self.trouble or "a replica")
        await self._listening.refuse(refusals | told.handlers_of_replica(self) | self._handlers)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)


def _locked(directory: Path) -> ProcessLock:
    """The lock that the process keeps; the directory is made if need be."""
    fileutil.make_folder(directory)
    return ProcessLock(directory, Paths(directory).abort, boot_id())
