"""Hold a broker's leadership in one epoch: its lease, in-sync set and high watermark."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from raymq.actors.broker.core.reading.arrival_notifier import ArrivalNotifier
from raymq.actors.broker.core.reading.long_poll import QueueKey
from raymq.actors.broker.group_commit import GroupCommit
from raymq.actors.broker.replica.pending_acks import PendingAcks
from raymq.actors.broker.replica.replication_server import ReplicationServer
from raymq.actors.broker.replication.ack_rule import AckRule
from raymq.actors.broker.replication.epoch_file import EpochFileCache
from raymq.actors.broker.replication.epoch_map import EpochMap
from raymq.actors.broker.replication.in_sync_set import InSyncSet
from raymq.actors.broker.replication.reconciliation import StreamExtent
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import StoreFollows, TooFewInSync
from raymq.actors.keeper.errors import RegisterConflict, RegisterError, RegisterUnknown
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import LeaseClaim, Registered
from raymq.actors.keeper.master_lease import RENEWAL_SECONDS, MasterLease
from raymq.actors.keeper.register import Register
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture
from raymq.storage.clock import boottime
from raymq.storage.cooperative_steps import Steps
from raymq.storage.errors import MessageExpired, StoreBusy
from raymq.storage.failpoints import failpoint
from raymq.storage.histogram import Histogram
from raymq.storage.journal.replication_backlog import ReplicationBacklog
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.log.log_slice import LogSlice
from raymq.storage.store import Store

#: How often late replicas and requests past their time-out are looked for.
_LOOK_SECONDS: Final = 0.1
#: Up-to-date replicas get a heartbeat every so many looks.
_HEARTBEAT_LOOKS: Final = 4
_AGAIN_SECONDS: Final = 0.1
#: How long a stop waits for the in-sync replicas to have everything.
_FINISH_SECONDS: Final = 1.0

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Leadership:
    """The leadership of a broker in one epoch.

    It is created when the register names this broker as master, and ends before the broker takes another role. It
    belongs to the broker's loop; `changed` may be called by any thread.

    Attributes:
        in_sync, lease, rule: the decisions.
        shipping: the replicas' connections.
        journal: has the numbered changes of state.
        has_ended: nothing is acknowledged any more.
    """

    def __init__(
        self,
        cluster: str,
        name: str,
        number: int,
        nonce: str,
        registered: Registered,
        register: Register,
        journal: StateJournal,
        epochs: EpochFileCache,
        begin: StreamPosition,
        confirmed: StreamPosition,
    ) -> None:
        """Create the leadership of an epoch.

        `begin` is where the epoch begins, which is where this broker's stream ends. `confirmed` is the high watermark
        as it was known.
        """
        assert isinstance(registered.value, GroupState)
        self.cluster = cluster
        self.name = name
        self.number = number
        self.registered = registered
        self.state: GroupState = registered.value
        self.epoch = self.state.epoch
        self.claim = LeaseClaim(number, nonce, self.epoch)
        self.lease = MasterLease(boottime)
        self.journal = journal
        journal.on_append = self.changed
        #: The time from an append to its confirmation, of one append at a time.
        self.replicate_seconds = Histogram()
        self._measured: tuple[int, float] | None = None
        self.in_sync = InSyncSet(number, self.state.in_sync, begin, boottime, confirmed=confirmed)
        self.rule = AckRule(self.state.policy, self.in_sync, self.lease, number)
        #: It takes no new messages, and acknowledges those that it has taken.
        self.is_stepping_down = False
        self.has_ended = False
        #: Called when the leadership ends by itself.
        self.on_end: Callable[[], None] = lambda: None
        #: The newest election after which records may be missing, and whether this master is the first one behind it.
        self._loss_epoch = self.state.loss_epoch
        self._has_loss = self._loss_epoch == self.epoch
        self._register = register
        self._epochs = epochs
        self._begin = begin
        self._pending_acks = PendingAcks(self.rule, boottime)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._store: Store | None = None
        self._arrivals: ArrivalNotifier | None = None
        self._commits: GroupCommit | None = None
        self._flushes = False
        self._state_commits: GroupCommit | None = None
        self._scheduled = False
        #: Up to where the stream was last shipped, to replicas with room for it.
        self._shipped = BEGIN
        #: Only one call that may change the known value of the register runs at a time.
        self._is_changing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._changing: asyncio.Task[None] | None = None
        self.shipping = ReplicationServer(self)

    @property
    def is_sync(self) -> bool:
        """Return True if acknowledged messages are on every in-sync replica."""
        return self.state.policy.mode == "sync"

    @property
    def serves(self) -> bool:
        """Return True if the broker takes messages now."""
        return self._store is not None and not self.has_ended and self.lease.holds

    @property
    def should_hand_over(self) -> bool:
        """Return True if a connected in-sync replica should become master instead.

        That is so if the disk of this broker fails or lags, and such a replica can be elected at once.
        """
        store = self._store
        fails = store is not None and (not store.is_healthy or self.in_sync.is_master_lagging)
        return fails and bool(self.in_sync.guaranteed & self.shipping.connected())

    @property
    def accepts_replicas(self) -> bool:
        """Return True if replicas may connect."""
        return self._arrivals is not None and not self.has_ended

    @property
    def end(self) -> StreamPosition:
        """Return where the stream ends."""
        store = self._store
        return StreamPosition(self._begin.offset if store is None else store.max_physical_offset, self.journal.last)

    @property
    def extent(self) -> StreamExtent:
        """Return the part of the stream that can be shipped."""
        store = self._store
        log_begin = 0 if store is None else store.min_physical_offset
        return StreamExtent(self._epochs.map, StreamPosition(log_begin, self.backlog.dropped), self.end)

    @property
    def backlog(self) -> ReplicationBacklog:
        """Return the newest events."""
        assert self.journal.backlog is not None
        return self.journal.backlog

    @property
    def epochs(self) -> EpochMap:
        """Return its epochs; do not change them."""
        return self._epochs.map

    def log_slice(self, begin: int, end: int) -> LogSlice:
        """Return what `Store.log_slice` returns. Raise MessageExpired once the store is closed."""
        if self._store is None:
            raise MessageExpired(f"offset {begin}: the store is closed")
        return self._store.log_slice(begin, end)

    def expired_ends(self, log_min: int) -> Steps[dict[str, dict[int, int]]]:
        """Return what `Store.expired_ends` returns. Raise StoreBusy once the store is closed."""
        if self._store is None:
            raise StoreBusy("the queues' offsets are unknown: the store is closed")
        return self._store.expired_ends(log_min)

    # -- around the broker's service

    async def begin(self) -> None:
        """Acquire the lease, however long it takes, and keep it renewed.

        Raise StoreFollows if the leadership ends meanwhile.
        """
        while not self.lease.holds:
            await self._renew()
            self.check_not_ended()
            if not self.lease.holds:
                await asyncio.sleep(_AGAIN_SECONDS)
        self._tasks.append(self._loop.create_task(self._keep_lease()))

    def hold(self, store: Store) -> None:
        """Limit the reads of the store to confirmed messages, and record what readers have lost.

        Any thread. Raise StoreFull or StoreFailed if that cannot be written.
        """
        self._store = store
        self._flushes = store.config.flush == "sync"
        store.confirmed.hold(self.in_sync.confirmed.offset)
        failpoint("leader.before_loss")
        if store.record_loss(self._begin.offset, self._loss_epoch):
            self._has_loss = True
        if self._has_loss:
            store.record_truncation(self._begin.offset)

    def start_replication(self, wake: Callable[[Sequence[QueueKey]], None]) -> Callable[[Sequence[QueueKey]], None]:
        """Start to ship the stream; return the listener of appends.

        `wake` wakes the requests parked on queues once their messages may be read.
        """
        assert self._store is not None
        self._commits = GroupCommit.of_log(self._store)
        self._state_commits = GroupCommit(self._store.sync_state)
        self._arrivals = ArrivalNotifier(self._store, wake, self._appended)
        self._commits.on_flushed = self.advance
        self._tasks.append(self._loop.create_task(self._look_after()))
        self.advance()
        return self._arrivals.appended

    def durable(self) -> Awaitable[SendStatus] | None:
        """Return the wait of `Acks.durable`, or None if none is needed."""
        return self.settled_append() if self.is_sync or self._flushes else None

    async def settled(self, end: StreamPosition) -> SendStatus:
        """Return the status of a change that ends at `end`, once it is known."""
        if self.is_sync:
            self._changed_here()
            return await self._pending_acks.wait(end)
        if not self.lease.holds:
            self.check_master()
        return SendStatus.SEND_OK

    async def settled_durably(self, end: StreamPosition) -> SendStatus:
        """Return the status of a change, which `flush: sync` has on this disk first.

        It syncs offsets and deliveries: replicas sync what they acknowledge, and where all machines lose power, the
        former master may be elected again.
        """
        if self.is_sync and self._flushes and self._state_commits is not None:
            self._changed_here()
            status = await self._state_commits.wait()
            if status is not SendStatus.SEND_OK:
                return status
        return await self.settled(end)

    async def is_replicated(self, end: StreamPosition) -> bool:
        """Return True if, with sync, all in-sync replicas have the data that end at `end`.

        It waits for them for a while. Too few replicas in sync are enough.
        """
        if self.is_sync and not self.in_sync.confirmed.covers(end):
            self._changed_here()
            await asyncio.sleep(0)  # without other replicas the master has then confirmed it
        if self.is_sync and self.in_sync.confirmed.covers(end):
            self.check_master()
            return True
        return await self.settled(end) is SendStatus.SEND_OK or self.in_sync.confirmed.covers(end)

    @property
    def acks_without_flush(self) -> bool:
        """Return True if `answer` covers everything that an append waits for."""
        return not self._flushes

    def answer(self, make: Callable[[SendStatus], _T]) -> SyncCallbackFuture[_T]:
        """Return a future of `make`'s result for the status of the append just made.

        With sync it waits until all in-sync replicas have the append, which is shipped now.
        """
        if not self.is_sync:
            return self._pending_acks.when(self.advance(), make)
        end = self.end
        self._ship_append(end)
        return self._pending_acks.when(end, make)

    async def settled_append(self) -> SendStatus:
        """Return the status of all appends so far, once it is known."""
        end = self.end
        self._changed_here()
        if self._flushes and self._commits is not None:
            status = await self._commits.wait()
            if status is not SendStatus.SEND_OK:
                return status
        return await self._pending_acks.wait(end)

    def check_master(self) -> None:
        """Raise StoreFollows unless this broker is surely master."""
        if self.has_ended or not self.lease.holds:
            raise StoreFollows(f"{self.name}: this broker is not the master now")

    def check_not_ended(self) -> None:
        """Raise StoreFollows if the leadership has ended."""
        if self.has_ended:
            raise StoreFollows(f"{self.name}: its time as master in epoch {self.epoch} has ended")

    def check_may_write(self) -> None:
        """Raise the error that refuses a message, before a byte of it is written."""
        refusal = self.rule.refusal()
        if refusal is None and not self.has_ended and not self.is_stepping_down:
            return
        if self.is_stepping_down:
            raise StoreFollows(f"{self.name}: this broker is stepping down: another master is being elected")
        self.check_master()
        raise TooFewInSync(
            f"{refusal}: {sorted(self.in_sync.guaranteed)} are in sync, {self.state.policy.min_in_sync} have to be",
        )

    # -- events

    def changed(self) -> None:
        """Ship soon, because state has changed; any thread."""
        if self._scheduled or self.has_ended:
            return
        if threading.get_ident() == self._thread:
            self._changed_here()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._changed_here)

    def _changed_here(self) -> None:
        if not self._scheduled and not self.has_ended:
            self._scheduled = True
            self._loop.call_soon(self._ship)

    def _appended(self) -> None:
        if self._flushes and self._commits is not None:
            self._commits.request()
        if not self.is_sync:
            self._changed_here()  # after the answers, which do not wait for it
        else:
            self._ship_append(self.end)

    def _ship_append(self, end: StreamPosition) -> None:
        """Ship an append now, or once replicas have acknowledged the one before."""
        if end == self._shipped:
            return
        if self._scheduled or self.in_sync.confirmed.offset < self._shipped.offset:
            self._changed_here()
        else:
            self._ship()

    def _ship(self) -> None:
        self._scheduled = False
        if not self.accepts_replicas:
            return
        self._shipped = end = self.end
        if self._measured is None:
            self._measured = end.offset, time.monotonic()
        if self._record_end(end):
            self.confirm()
        self.shipping.pump(end)

    def advance(self) -> StreamPosition:
        """Raise the high watermark after appends, flushes or acknowledgements.

        Readers then see more, and waiting requests are answered.

        Returns:
            where the stream ends.
        """
        end = self.end
        if self.accepts_replicas:
            self._record_end(end)
            self.confirm()
        return end

    def _record_end(self, end: StreamPosition) -> bool:
        """Record where the stream ends; return True if more is confirmed by it."""
        store = self._store
        safe = end if store is None or not self._flushes else StreamPosition(store.flushed_offset, end.sequence)
        return self.in_sync.appended(end, safe)

    def confirm(self) -> None:
        """Let readers see what is confirmed, and answer the requests that wait for it."""
        confirmed = self.in_sync.confirmed
        if self._measured is not None and confirmed.offset >= self._measured[0]:
            self.replicate_seconds.observe(time.monotonic() - self._measured[1])
            self._measured = None
        if self._store is not None and self._arrivals is not None:
            self._store.confirmed.advance(confirmed.offset)
            self._arrivals.confirmed()
        self._pending_acks.advance(confirmed)

    def refresh_registered(self) -> None:
        """Read the register, because it may list a replica that has just started."""
        self._change(self._learn)

    def leave(self) -> None:
        """End the leadership: acknowledge nothing from now on."""
        if self.has_ended:
            return
        self.has_ended = True
        self.lease.revoke()
        for task in self._tasks:
            task.cancel()
        self.shipping.close()
        self._pending_acks.wake_all()

    async def finish(self) -> None:
        """Give in-sync replicas a moment to get everything, before the leadership ends."""
        deadline = self._loop.time() + _FINISH_SECONDS
        while self.accepts_replicas and self._loop.time() < deadline:
            self.shipping.pump(self.advance())
            if self.in_sync.confirmed.covers(self.end):
                return
            await asyncio.sleep(0.01)

    def detach_store(self) -> None:
        """Detach from the store, which is about to be closed."""
        self._begin = self.end
        self._store = None

    async def release(self) -> None:
        """Release the lease at the keepers; only after `leave`."""
        await self._register.release(self.name, self.claim)

    # -- the lease

    async def _keep_lease(self) -> None:
        while not self.has_ended:
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
            if not self.has_ended:
                had = self.lease.holds
                self.lease.given(began, seconds)
                if not had and self.lease.holds:
                    self._pending_acks.wake_all()

    def _end(self) -> None:
        self.leave()
        self.on_end()

    # -- the in-sync set

    async def _look_after(self) -> None:
        turn = 0
        while not self.has_ended:
            try:
                self._look_once(turn)
            except Exception:  # noqa: BLE001 - a failed check must not stop the next one
                _log.exception("%s: the check of the replicas failed", self.name)
            turn += 1
            await asyncio.sleep(_LOOK_SECONDS)

    def _look_once(self, turn: int) -> None:
        self.advance()
        desired = self.in_sync.desired()
        if desired is not None and self.lease.holds:
            self._change(lambda: self._change_set(desired))
        self.shipping.tick(heartbeat=turn % _HEARTBEAT_LOOKS == 0)
        self._pending_acks.sweep()
        if turn % 100 == 0 and self._store is not None:
            self._epochs.drop_before(StreamPosition(self._store.min_physical_offset, 0))

    def _change(self, call: Callable[[], Awaitable[Registered]]) -> None:
        if self._is_changing or self.has_ended:
            return
        self._is_changing = True

        async def change() -> None:
            try:
                now = await call()
            finally:
                self._is_changing = False
            self._take(now)

        self._changing = self._loop.create_task(change())

    async def _change_set(self, desired: frozenset[int]) -> Registered:
        _log.info(
            "%s: the in-sync set shall become %s, it is %s", self.name, sorted(desired), sorted(self.in_sync.members)
        )
        self.in_sync.propose(desired)
        registered = self.registered
        try:
            return await self._register.change(self.name, registered, self.state.with_set(desired))
        except RegisterUnknown:
            return await self._asked(settle=True)
        except RegisterConflict:
            return await self._asked(settle=False)
        except RegisterError:
            return registered

    async def _learn(self) -> Registered:
        return await self._asked(settle=False)

    async def _asked(self, *, settle: bool) -> Registered:
        while not self.has_ended:
            try:
                return await (self._register.settle(self.name) if settle else self._register.read(self.name))
            except RegisterError:
                await asyncio.sleep(2 * _AGAIN_SECONDS)
        return self.registered

    def _take(self, now: Registered) -> None:
        """Apply a value of the register, once no own change can be made any more."""
        if self.has_ended:
            return
        state = now.value
        if not isinstance(state, GroupState) or (state.master, state.epoch) != (self.number, self.epoch):
            self._end()
            return
        self.registered, self.state = now, state
        self.rule = self._pending_acks.rule = AckRule(state.policy, self.in_sync, self.lease, self.number)
        nonces = {number: record.nonce for number, record in state.replicas.items()}
        self.in_sync.committed(state.in_sync, nonces)
        self.shipping.known(nonces)
        self.advance()
        self._pending_acks.wake_all()

    def apply_registered(self, now: Registered) -> None:
        """Apply the register's value that the role loop has read.

        New policies and replicas take effect. A running change of this broker's own is left alone.
        """
        if self._is_changing or now == self.registered:
            return
        if now.version > self.registered.version:
            self._take(now)
        else:  # read before a change of this broker was made; or the register was restored, with another in-sync set
            self.refresh_registered()
