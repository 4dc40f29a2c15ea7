"""A broker's time as master of one epoch: its lease, who is in sync, what is confirmed, and who is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from raymq.actors.broker.core.reading.arrivals import Arrivals
from raymq.actors.broker.group_commit import GroupCommit
from raymq.actors.broker.replica.settled import Settled
from raymq.actors.broker.replica.shipping import Shipping
from raymq.actors.broker.replication.acknowledging import AckRule
from raymq.actors.broker.replication.epoch_map import EpochMap
from raymq.actors.broker.replication.in_sync import InSyncSet
from raymq.actors.broker.replication.kept_epochs import KeptEpochs
from raymq.actors.broker.replication.positions import BEGIN, StreamPosition
from raymq.actors.broker.replication.reconciling import StreamExtent
from raymq.actors.errors import StoreFollows, TooFewInSync
from raymq.actors.keeper.errors import RegisterConflict, RegisterError, RegisterUnknown
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.leases import RENEWAL_SECONDS, MasterLease
from raymq.actors.keeper.messages import LeaseClaim, Registered
from raymq.actors.keeper.register import Register
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.frame import Command
from raymq.actors.wire.prompt_future import PromptFuture
from raymq.storage.clock import boottime
from raymq.storage.errors import MessageExpired, StoreBusy
from raymq.storage.log.shipping import LogBytes
from raymq.storage.state.recorder import StateRecorder
from raymq.storage.steps import Steps
from raymq.storage.store import Store

#: How often it is looked who is late, and who has waited for too long.
_LOOK_SECONDS: Final = 0.1
#: Every so many looks replicas that have everything are told that the master is there.
_HEARTBEAT_LOOKS: Final = 4
_AGAIN_SECONDS: Final = 0.1
#: A stop waits so long for the replicas in sync to have everything.
_FINISH_SECONDS: Final = 1.0

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Office:
    """Made when the register says that this broker is master, over before anything else becomes of it.

    Belongs to the broker's loop; `changed` may be called by any thread.

    Attributes:
        in_sync, lease, rule: the decisions.
        shipping: the replicas' connections.
        recorder: sees the changes of state.
        is_over: nothing is acknowledged any more.
    """

    def __init__(
        self,
        cluster: str,
        name: str,
        number: int,
        nonce: str,
        registered: Registered,
        register: Register,
        recorder: StateRecorder,
        epochs: KeptEpochs,
        begin: StreamPosition,
        confirmed: StreamPosition,
    ) -> None:
        """`begin`: where the epoch begins, which is where this broker's stream ends. `confirmed`: as it was known."""
        assert isinstance(registered.value, GroupState)
        self.cluster = cluster
        self.name = name
        self.number = number
        self.registered = registered
        self.state: GroupState = registered.value
        self.epoch = self.state.epoch
        self.claim = LeaseClaim(number, nonce, self.epoch)
        self.lease = MasterLease(boottime)
        self.recorder = recorder
        self.in_sync = InSyncSet(number, self.state.in_sync, begin, boottime, confirmed=confirmed)
        self.rule = AckRule(self.state.policy, self.in_sync, self.lease, number)
        #: It takes nothing more, and acknowledges what it has taken.
        self.is_retiring = False
        self.is_over = False
        #: Where the log may be another one than readers have seen, from there on; None: it is that one.
        self.cut: int | None = None
        #: Why the office ended by itself; the service around it looks.
        self.on_end: Callable[[], None] = lambda: None
        self._register = register
        self._epochs = epochs
        self._begin = begin
        self._settled = Settled(self.rule, boottime)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._store: Store | None = None
        self._arrivals: Arrivals | None = None
        self._commits: GroupCommit | None = None
        self._flushes = False
        self._state_commits: GroupCommit | None = None
        self._scheduled = False
        #: Up to where the stream was shipped last, to who had room.
        self._shipped = BEGIN
        #: One call that may change what is known of the register at a time.
        self._is_changing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._changing: asyncio.Task[None] | None = None
        self.shipping = Shipping(self)

    @property
    def is_sync(self) -> bool:
        """Whether what is acknowledged is on every replica in sync."""
        return self.state.policy.mode == "sync"

    @property
    def serves(self) -> bool:
        """Whether it takes messages now."""
        return self._store is not None and not self.is_over and self.lease.holds

    @property
    def is_for_another(self) -> bool:
        """Whether it has a disk that does not do its share, and a replica follows that can be elected at once."""
        store = self._store
        fails = store is not None and (not store.is_healthy or self.in_sync.master_lags)
        return fails and bool(self.in_sync.surely & self.shipping.connected())

    @property
    def is_shipping(self) -> bool:
        """Whether replicas may connect."""
        return self._arrivals is not None and not self.is_over

    @property
    def end(self) -> StreamPosition:
        """Where the stream ends."""
        store = self._store
        return StreamPosition(self._begin.offset if store is None else store.max_physical_offset, self.recorder.last)

    @property
    def extent(self) -> StreamExtent:
        """What there is to be shipped."""
        store = self._store
        log_begin = 0 if store is None else store.min_physical_offset
        return StreamExtent(self._epochs.map, StreamPosition(log_begin, self.recorder.folded), self.end)

    @property
    def epochs(self) -> EpochMap:
        """Its epochs; not to be changed."""
        return self._epochs.map

    def log_bytes(self, begin: int, end: int) -> LogBytes:
        """As `Store.log_bytes`; MessageExpired, too, once the store is being closed."""
        if self._store is None:
            raise MessageExpired(f"offset {begin}: the store is closed")
        return self._store.log_bytes(begin, end)

    def expired_ends(self, log_min: int) -> Steps[dict[str, dict[int, int]]]:
        """As `Store.expired_ends`; StoreBusy once the store is being closed."""
        if self._store is None:
            raise StoreBusy("how far queues are is not known: the store is closed")
        return self._store.expired_ends(log_min)

    # -- around the broker's service

    async def begin(self) -> bool:
        """Get the lease, and keep it; whether there is one by now, after some attempts."""
        for _ in range(10):
            await self._renew()
            if self.lease.holds or self.is_over:
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        self._tasks.append(self._loop.create_task(self._keep_lease()))
        return self.lease.holds

    def hold(self, store: Store) -> None:
        """The store was opened: before anybody reads, only what is confirmed is seen. Any thread."""
        self._store = store
        self._flushes = store.config.flush == "sync"
        self.recorder.log_end = lambda: store.max_physical_offset
        store.confirmed.hold(self.in_sync.confirmed.offset)
        if self.cut is not None:
            store.cut_before(self.cut)

    def serve(self, tell: Callable[..., None], commits: GroupCommit) -> Arrivals:
        """The service is there: from now on it is shipped; what is returned is told of what was appended.

        Args:
            tell: wakes who waits for queues.
            commits: brings the log to disk.
        """
        assert self._store is not None
        self._commits = commits
        self._state_commits = GroupCommit(self._store.sync_progress)
        self._arrivals = Arrivals(self._store, tell, self._appended)
        commits.on_flushed = self.look
        self._tasks.append(self._loop.create_task(self._look_after()))
        self.look()
        return self._arrivals

    @property
    def durable(self) -> Callable[[], Awaitable[SendStatus]] | None:
        """As `BrokerContext.durable`; None: what is appended is as safe as is promised, or `answer` sees to it."""
        return self._durable if self.is_sync or self._flushes else None

    async def settled(self, end: StreamPosition) -> SendStatus:
        """What may be said of a change that ends there."""
        if self.is_sync:
            self._changed_here()
            return await self._settled.wait(end)
        if not self.lease.holds:
            self.check_master()
        return SendStatus.SEND_OK

    async def settled_durably(self, end: StreamPosition) -> SendStatus:
        """As `settled`, for a change of offsets or deliveries: with `flush: sync` it is on this disk before.

        Replicas sync what they acknowledge. Where all machines lose power, the former master may be elected again.
        """
        if self.is_sync and self._flushes and self._state_commits is not None:
            self._changed_here()
            status = await self._state_commits.wait()
            if status is not SendStatus.SEND_OK:
                return status
        return await self.settled(end)

    async def is_shared(self, end: StreamPosition) -> bool:
        """Whether all in sync have what ends there, with sync; it is waited for a while. Too few in sync are enough."""
        if self.is_sync and not self.in_sync.confirmed.covers(end):
            self._changed_here()
            await asyncio.sleep(0)  # a master that is alone has confirmed it then
        if self.is_sync and self.in_sync.confirmed.covers(end):
            self.check_master()
            return True
        return await self.settled(end) is SendStatus.SEND_OK or self.in_sync.confirmed.covers(end)

    @property
    def answers_directly(self) -> bool:
        """Whether `answer` says all that an append waits for."""
        return not self._flushes

    def written(self, *_: object) -> None:
        """Something was written, and what is made of it here comes next: replicas may have it meanwhile."""
        if not self.is_sync:
            return  # they have it behind the answer, which does not wait for them
        if self._scheduled or self.in_sync.confirmed.offset < self._shipped.offset:
            self._changed_here()  # together with what else comes until then
        else:
            self._ship()

    def answer(self, make: Callable[[SendStatus], _T]) -> PromptFuture[_T]:
        """What `make` makes of the status of what was just appended, with sync once all in sync have it."""
        if not self.is_sync:
            return self._settled.when(self.look(), make)
        end = self.end
        if end != self._shipped:
            self._changed_here()
        return self._settled.when(end, make)

    def going_on(self, answering: Awaitable[Command]) -> asyncio.Future[Command]:
        """It goes on if the connection of who asked is lost meanwhile."""
        return asyncio.shield(asyncio.ensure_future(answering))

    async def _durable(self) -> SendStatus:
        end = self.end
        self._changed_here()
        if self._flushes and self._commits is not None:
            status = await self._commits.wait()
            if status is not SendStatus.SEND_OK:
                return status
        return await self._settled.wait(end)

    def check_master(self) -> None:
        """Raise StoreFollows unless this broker is surely master."""
        if self.is_over or not self.lease.holds:
            raise StoreFollows(f"{self.name}: this broker is not the master now")

    def check_in_office(self) -> None:
        """Raise StoreFollows if it has ended meanwhile."""
        if self.is_over:
            raise StoreFollows(f"{self.name}: the office of epoch {self.epoch} has ended")

    def check_may_write(self) -> None:
        """Raise what a message is refused with before a byte of it is written."""
        refusal = self.rule.refusal()
        if refusal is None and not self.is_over and not self.is_retiring:
            return
        if self.is_retiring:
            raise StoreFollows(f"{self.name}: this broker leaves office: another one is being elected")
        self.check_master()
        raise TooFewInSync(
            f"{refusal}: {sorted(self.in_sync.surely)} are, {self.state.policy.min_in_sync} have to be",
        )

    # -- what happens

    def changed(self) -> None:
        """State has changed; any thread."""
        if self._scheduled or self.is_over:
            return
        if threading.get_ident() == self._thread:
            self._changed_here()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._changed_here)

    def _changed_here(self) -> None:
        if not self._scheduled and not self.is_over:
            self._scheduled = True
            self._loop.call_soon(self._ship)

    def _appended(self) -> None:
        if self._flushes and self._commits is not None:
            self._commits.request()
        if not self.is_sync:
            self._changed_here()  # behind answers that do not wait for it
        elif self._shipped != self.end:
            self.written()

    def _ship(self) -> None:
        self._scheduled = False
        if self.is_over:
            return
        self._shipped = end = self.look()
        self.shipping.pump(end)

    def look(self) -> StreamPosition:
        """Something was appended, brought to disk or acknowledged: what is confirmed by now is seen and said.

        Returns:
            where the stream ends.
        """
        store, end = self._store, self.end
        if self.is_over or self._arrivals is None:
            return end
        safe = end if store is None or not self._flushes else StreamPosition(store.flushed_offset, end.sequence)
        self.in_sync.appended(end, safe)
        confirmed = self.in_sync.confirmed
        if store is not None:
            store.confirmed.advance(confirmed.offset)
            self._arrivals.confirmed()
        self._settled.look(confirmed)
        return end

    def learn(self) -> None:
        """Somebody has started whom the register may know by now."""
        self._change(self._learn)

    def leave(self) -> None:
        """Acknowledge nothing any more, from now on."""
        if self.is_over:
            return
        self.is_over = True
        self.lease.give_up()
        for task in self._tasks:
            task.cancel()
        self.shipping.over()
        self._settled.wake_all()

    async def finish(self) -> None:
        """The office ends: give replicas in sync a moment to have everything."""
        deadline = self._loop.time() + _FINISH_SECONDS
        while self.is_shipping and self._loop.time() < deadline:
            self.shipping.pump(self.look())
            if self.in_sync.confirmed.covers(self.end):
                return
            await asyncio.sleep(0.01)

    def closing(self) -> None:
        """The store is about to be closed."""
        self._begin = self.end
        self._store = None

    async def release(self) -> None:
        """Tell the keepers that the lease is over; only after `leave`."""
        await self._register.release(self.name, self.claim)

    # -- the lease

    async def _keep_lease(self) -> None:
        while not self.is_over:
            await asyncio.sleep(RENEWAL_SECONDS if self.lease.left_seconds > RENEWAL_SECONDS else _AGAIN_SECONDS)
            await self._renew()

    async def _renew(self) -> None:
        began = self.lease.ask()
        try:
            seconds = await self._register.renew(self.name, self.claim)
        except RegisterConflict:
            if not self.lease.holds:
                self._end()
        except RegisterError as error:
            _log.debug("%s: the lease was not renewed: %s", self.name, error)
        else:
            if not self.is_over:
                had = self.lease.holds
                self.lease.given(began, seconds)
                if not had and self.lease.holds:
                    self._settled.wake_all()

    def _end(self) -> None:
        self.leave()
        self.on_end()

    # -- the set

    async def _look_after(self) -> None:
        turn = 0
        while not self.is_over:
            try:
                self._look_once(turn)
            except Exception:  # noqa: BLE001 - the next turn is another one
                _log.exception("%s: looking after the replicas failed", self.name)
            turn += 1
            await asyncio.sleep(_LOOK_SECONDS)

    def _look_once(self, turn: int) -> None:
        self.look()
        wanted = self.in_sync.wanted()
        if wanted is not None and self.lease.holds:
            self._change(lambda: self._change_set(wanted))
        self.shipping.tick(heartbeat=turn % _HEARTBEAT_LOOKS == 0)
        self._settled.sweep()
        if turn % 100 == 0 and self._store is not None:
            self._epochs.drop_before(StreamPosition(self._store.min_physical_offset, 0))

    def _change(self, call: Callable[[], Awaitable[Registered]]) -> None:
        if self._is_changing or self.is_over:
            return
        self._is_changing = True

        async def change() -> None:
            try:
                now = await call()
            finally:
                self._is_changing = False
            self._take(now)

        self._changing = self._loop.create_task(change())

    async def _change_set(self, wanted: frozenset[int]) -> Registered:
        _log.info("%s: in sync shall be %s, not %s", self.name, sorted(wanted), sorted(self.in_sync.members))
        self.in_sync.propose(wanted)
        asked = self.registered
        try:
            return await self._register.change(self.name, asked, self.state.with_set(wanted))
        except RegisterUnknown:
            return await self._asked(settle=True)
        except RegisterConflict:
            return await self._asked(settle=False)
        except RegisterError:
            return asked

    async def _learn(self) -> Registered:
        return await self._asked(settle=False)

    async def _asked(self, *, settle: bool) -> Registered:
        while not self.is_over:
            try:
                return await (self._register.settle(self.name) if settle else self._register.read(self.name))
            except RegisterError:
                await asyncio.sleep(2 * _AGAIN_SECONDS)
        return self.registered

    def _take(self, now: Registered) -> None:
        """What the register says, once no change of ours can be made any more."""
        if self.is_over:
            return
        state = now.value
        if not isinstance(state, GroupState) or (state.master, state.epoch) != (self.number, self.epoch):
            self._end()
            return
        self.registered, self.state = now, state
        self.rule = self._settled.rule = AckRule(state.policy, self.in_sync, self.lease, self.number)
        nonces = {number: record.nonce for number, record in state.replicas.items()}
        self.in_sync.decided(state.in_sync, nonces)
        self.shipping.known(nonces)
        self.look()
        self._settled.wake_all()

    def take_registered(self, now: Registered) -> None:
        """What the role loop has read: other policies and replicas are heard of; changes of ours are not touched."""
        if self._is_changing or now == self.registered:
            return
        if now.version > self.registered.version:
            self._take(now)
        else:  # read before a change of ours was made; or the register was restored, and has others in sync
            self.learn()
