"""Serve pop: lend messages to any member of a group, and redeliver unacknowledged ones.

Several consumers share one queue. A delivered message is invisible until its invisible time ends. Then it is delivered
again from the same offset, with its reconsume times one higher. If a delivery at its consumer's maximum of reconsume
times fails, the message goes to the group's dead letters. A delivery is identified by its pop time: the handle of an
older delivery has no effect. The group's committed offset is the oldest message in flight. So if the offset is moved
(by an administrator's reset or a consumer of another kind), the deliveries below it end.

In-flight messages survive SIGKILL: offsets are committed first, then the table of deliveries is written, and only then
does a consumer receive the messages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final

from raymq.actors.broker.core.copies.republisher import DEAD_LETTER, POP, CopyPurpose, Republisher, rejection_reason
from raymq.actors.broker.core.periodic_retry import PerKeyRetry
from raymq.actors.broker.core.pop.dead_letter_recovery import dead_letter_key, find_dead_lettered
from raymq.actors.broker.core.pop.deadline_heap import DeadlineHeap
from raymq.actors.broker.core.pop.pop_reader import read_new, read_redelivered
from raymq.actors.broker.core.pop.pop_request import PoppedRecords, PopQueueResult, PopRequest, PopResult
from raymq.actors.broker.core.pop.unacked_queue import UnackedQueue
from raymq.actors.broker.core.reading.filtered_reader import ScanBudget
from raymq.actors.broker.core.redelivery import retry
from raymq.actors.naming import RETRY_PREFIX
from raymq.actors.protocol import SettleAction, Settlement, SettleOutcome, SettleResult
from raymq.actors.request_limits import MAX_IN_FLIGHT
from raymq.storage.errors import NotFoundError, OffsetOutOfRange, QueueNotFound, StoreCorrupt, StoreError
from raymq.storage.records import property_names as names
from raymq.storage.records.failure_reason import failure_reason
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import ExpiryReason, GroupQueue, InFlightMessage, InFlightQueue

MAX_INVISIBLE_MS: Final = 12 * 3600 * 1000
#: How many dead messages one sweep moves, over all queues, and how many queues it checks, so that it never blocks the
#: event loop for long.
_DEAD_PER_SWEEP: Final = 100
_QUEUES_PER_SWEEP: Final = 2_000
#: How many expired messages one pop takes back of a queue, and one sweep of all queues, for the same reason. The rest
#: is due at once, so the next pop or sweep continues with it.
_EXPIRED_AT_ONCE: Final = 5_000
#: How many unreadable messages one pop skips in a queue, for the same reason.
_MAX_SKIPPED: Final = 64
_DEAD_BYTES: Final = 1 << 20
#: A message whose consumers ended this often without an answer may be the cause.
_SUSPECT_ENDS: Final = 2
#: Messages within this distance of the log's end count as in memory (RocketMQ's accessMessageInMemoryMaxRatio, 40 %).
_MEMORY_BYTES: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 2 // 5

_log = logging.getLogger(__name__)

#: Puts a record into a group's dead-letter queue, with a reason.
SendToDlq = Callable[[str, Record, str], None]


def _ignore_ready(group: str, topic: str, queue_id: int) -> None:
    """Ignore that messages became ready, in a core without a service."""


class PopService:
    """All groups that pop on one broker. Used on the broker's event loop.

    `clock` is wall time without jumps, in seconds. `on_ready` is called with group, topic and queue id when messages of
    a queue become available other than by arrival.
    """

    def __init__(self, store: Store, clock: Callable[[], float], send_to_dlq: SendToDlq, copying: Republisher) -> None:
        self._store = store
        self._copying = copying
        self._clock = clock
        self._bury = send_to_dlq
        self.on_ready: Callable[[str, str, int], None] = _ignore_ready
        self._lent: dict[GroupQueue, UnackedQueue] = {}
        self._troubles = PerKeyRetry(clock)
        #: When deliveries expire; and the other queues to check: those with dead messages and those that failed.
        self._alarms = DeadlineHeap()
        self._waiting: dict[GroupQueue, None] = {}
        self._latest_pop_ms = 0
        self._least_pop_ms = 0
        #: In-flight deliveries whose dead letter is in the log, as (group, key); the value is where the log ended then.
        self._dead_lettered = dict.fromkeys(find_dead_lettered(store), 0)
        self._next_letter_line, self._unlogged_letters = 0.0, 0
        for queue, outstanding in list(store.in_flight.queues.items()):
            if store.consumer_offsets.get(*queue) is None:  # its group was deleted
                with contextlib.suppress(StoreError):  # else the next access to the queue drops it
                    store.in_flight.forget(queue)
                    continue
            newest = max(each.pop_time_ms for each in outstanding.deliveries.values())
            self._latest_pop_ms = max(self._latest_pop_ms, newest)
            self._lent[queue] = UnackedQueue(queue, self._anchored(queue, outstanding))
            self._arm(self._lent[queue])

    # -- what consumers do ---------------------------------------------------------------------------------------

    def receive(self, request: PopRequest) -> PopResult:
        """Deliver messages: queues in random order, redelivered messages of a queue first.

        An unreadable message is quarantined, and counts as done for this group.

        Raises:
            StoreError: the deliveries could not be written; no consumer was given anything.
        """
        popped = PopResult(self._pop_time())
        room, space_bytes = request.max_messages, request.max_bytes
        failure: Exception | None = None
        for queue_id in random.sample(request.queue_ids, len(request.queue_ids)):
            if room <= 0 or space_bytes <= 0:
                break
            taken = PoppedRecords()
            try:
                self._take(request, queue_id, room, space_bytes, taken, popped)
            except Exception as error:  # noqa: BLE001 - messages of other queues are lent already
                failure = failure or error
                continue
            if taken.offsets:
                popped.queues.append(PopQueueResult(queue_id, taken))
                room -= len(taken.offsets)
                space_bytes -= taken.size_bytes
        if failure is not None and not popped.queues:
            raise failure
        return popped

    def has_messages(self, group: str, topic: str, queue_ids: Iterable[int], *, ordered: bool) -> bool:
        """Return True if `receive` would probably find messages (a filter may drop them)."""
        for queue_id in queue_ids:
            queue = (group, topic, queue_id)
            low, high = self._bounds(queue)
            lent = self._current(queue)
            if lent is None:
                if high > max(low, self._store.consumer_offsets.get(*queue) or 0):
                    return True
                continue
            self._advance(lent)
            has_new = len(lent.deliveries) < MAX_IN_FLIGHT and high > max(low, lent.next_offset)
            if (lent.has_ready or has_new) and not (ordered and lent.is_blocked):
                return True
        return False

    def unacked(self, group: str, topic: str, queue_id: int) -> UnackedQueue | None:
        """Return the messages in flight of a queue in a group.

        None if there are none. Do not change them.
        """
        return self._lent.get((group, topic, queue_id))

    def acknowledge(self, group: str, topic: str, queue_id: int, pop_time_ms: int, offsets: Iterable[int]) -> int:
        """End deliveries of one pop, and return how many of them were in force.

        The handles of the others are stale.

        Raises:
            StoreError: it could not be written; the messages are in flight as before.
        """
        lent = self._current((group, topic, queue_id))
        if lent is None:
            return 0
        now_ms = self._now_ms()
        done = [offset for offset in offsets if lent.find_live(offset, pop_time_ms, now_ms) is not None]
        if done:
            self._finish(lent, done)
        return len(done)

    def change_invisible(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        pop_time_ms: int,
        invisible_ms: int,
        *,
        undelivered: bool = False,
    ) -> int | None:
        """Extend a delivery by `invisible_ms` from now; return its new pop time.

        The result is None if the handle is stale.

        Args:
            undelivered: no program has processed the message: its next delivery does not count as another try.

        Raises:
            StoreError: it could not be written; nothing has changed.
        """
        lent = self._current((group, topic, queue_id))
        delivery = None if lent is None else lent.find_live(offset, pop_time_ms, self._now_ms())
        if lent is None or delivery is None:
            return None
        renewed_ms = max(self._pop_time(), pop_time_ms + 1)
        self._latest_pop_ms = max(self._latest_pop_ms, renewed_ms)
        visible_at_ms = self._now_ms() + invisible_ms
        changed = delivery._replace(pop_time_ms=renewed_ms, visible_at_ms=visible_at_ms, lease_ms=invisible_ms)
        if undelivered:
            changed = changed._replace(ending=ExpiryReason.UNSEEN)
        self._store.in_flight.deliver(lent.queue, lent.next_offset, {offset: changed})
        lent.delivered([offset])
        self._arm(lent)
        return renewed_ms

    def settle(self, group: str, settlements: Iterable[Settlement]) -> list[SettleResult]:
        """Apply a consumer's decisions about deliveries, and return the outcome of each.

        RUN and HOLD keep the handle valid, so that a request whose answer was lost may be repeated.

        Raises:
            StoreError: it could not be written; the deliveries of some queues may be settled.
        """
        by_queue: dict[tuple[str, int], list[tuple[int, Settlement]]] = {}
        outcomes: dict[int, SettleResult] = {}
        for number, each in enumerate(settlements):
            outcomes[number] = SettleResult(SettleOutcome.STALE)
            by_queue.setdefault((each.topic, each.queue_id), []).append((number, each))
        for (topic, queue_id), queue_settlements in by_queue.items():
            lent = self._current((group, topic, queue_id))
            if lent is not None:
                outcomes |= self._settle_queue(lent, queue_settlements)
        return list(outcomes.values())

    def _settle_queue(self, lent: UnackedQueue, settlements: list[tuple[int, Settlement]]) -> dict[int, SettleResult]:
        now_ms = self._now_ms()
        renewed_ms = self._pop_time()
        outcomes: dict[int, SettleResult] = {}
        done: list[int] = []
        changed: dict[int, InFlightMessage] = {}
        for number, each in settlements:
            delivery = lent.find_live(each.offset, each.pop_time_ms, now_ms)
            if delivery is None or each.offset in changed or each.offset in done:
                continue
            outcomes[number] = SettleResult(SettleOutcome.DONE)
            if each.action is SettleAction.ACK:
                done.append(each.offset)
                continue
            renewed_ms = max(renewed_ms, each.pop_time_ms + 1)
            if each.action is SettleAction.RUN:
                changed[each.offset] = _lasting(delivery, now_ms, each.argument, ExpiryReason.UNANSWERED)
            elif each.action is SettleAction.HOLD:
                changed[each.offset] = _lasting(delivery, now_ms, each.argument, ExpiryReason.UNSEEN)
            elif each.action is SettleAction.RETURN:
                changed[each.offset] = _lasting(delivery, now_ms, 0, ExpiryReason.UNSEEN)
            else:
                changed[each.offset] = failed = self._failed(delivery, now_ms, each)
                outcomes[number] = (
                    SettleResult(SettleOutcome.DEAD)
                    if failed.is_final_delivery
                    else SettleResult(SettleOutcome.DONE, failed.lease_ms)
                )
            if each.action in (SettleAction.RETURN, SettleAction.RETRY):  # the consumer's handle becomes stale
                changed[each.offset] = changed[each.offset]._replace(pop_time_ms=renewed_ms)
                self._latest_pop_ms = max(self._latest_pop_ms, renewed_ms)
        if changed:
            self._store.in_flight.deliver(lent.queue, lent.next_offset, changed)
            lent.delivered(list(changed))
            self._arm(lent)
        if done:
            self._finish(lent, done)
        if changed:
            self._advance(lent)
        return outcomes

    def _failed(self, delivery: InFlightMessage, now_ms: int, settlement: Settlement) -> InFlightMessage:
        """Return the delivery after its listener failed.

        It either waits for its next try, or it has expired as the final delivery.
        """
        times = retry.clamp_reconsume_times(delivery.reconsume_times)
        tables = self._store.delay_level_history
        reason = failure_reason(settlement.reason)
        decision = retry.decide_retry(times, settlement.argument, delivery.max_reconsume_times, tables.levels, reason)
        if isinstance(decision, retry.RetryLater):
            return _lasting(delivery, now_ms, tables.delay_ms(decision.level - 1), ExpiryReason.FAILED)
        dead = _lasting(delivery, now_ms, 0, ExpiryReason.FAILED)
        return dead._replace(
            max_reconsume_times=min(delivery.max_reconsume_times, delivery.reconsume_times),
            reason=decision.reason,
        )

    # -- what the broker does ------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Take back expired messages, report readiness, and move dead messages.

        It has to be called many times per second.
        """
        self._waiting |= dict.fromkeys(self._alarms.due(self._now_ms()))
        each = max(1, _DEAD_PER_SWEEP // max(1, len(self._waiting)))
        remaining, expired = _DEAD_PER_SWEEP, _EXPIRED_AT_ONCE
        for queue in list(islice(self._waiting, _QUEUES_PER_SWEEP)):
            if expired <= 0:
                break
            del self._waiting[queue]
            lent = self._lent.get(queue)
            if lent is None:
                continue
            if self._troubles.is_backing_off(queue):
                self._waiting[queue] = None  # after the others
                continue
            try:
                expired -= self._advance(lent, expired)
                if remaining > 0 and lent.has_dead and self._current(queue) is lent:
                    done = 0
                    for offset in lent.dead(each + len(self._dead_lettered)):
                        done += done < each and self._dead_letter_one(lent, offset)
                    remaining -= done
                if lent.has_dead:
                    self._waiting[queue] = None
            except StoreError as error:  # they wait for the next sweep
                _log.debug("dead letters of %s cannot be moved to the dead letter queue: %s", queue, error)
                self._waiting[queue] = None
            except Exception as error:  # noqa: BLE001 - a failure of one queue must not stop the others
                self._troubles.failed(queue, f"the sweep of lent messages of {queue}", error, _log)
                self._waiting[queue] = None
            else:
                self._troubles.succeeded(queue)
        self._troubles.retain_only(self._lent)

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """Drop the deliveries of a queue whose group offset was reset.

        Handles from before have no effect.
        """
        self._drop((group, topic, queue_id))
        self.on_ready(group, topic, queue_id)

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic, whose deliveries the store has already dropped."""
        for queue in [queue for queue in self._lent if queue[1] == topic]:
            del self._lent[queue]
            self._least_pop_ms = self._latest_pop_ms + 1

    def forget_group(self, group: str, topic: str | None = None) -> None:
        """Drop a group's deliveries in one topic or in all; raises as `InFlightTable.forget`."""
        for queue in [queue for queue in self._lent if queue[0] == group and topic in (None, queue[1])]:
            self._drop(queue)

    # -- taking --------------------------------------------------------------------------------------------------

    def _take(
        self, request: PopRequest, queue_id: int, room: int, space_bytes: int, taken: PoppedRecords, popped: PopResult
    ) -> None:
        """Lend messages of one queue: add them to `taken`, and other results to `popped`."""
        queue = (request.group, request.topic, queue_id)
        low, high = self._bounds(queue)
        lent = self._current(queue)
        same_attempt = False
        if lent is not None:
            self._advance(lent)
            same_attempt = request.ordered and request.attempt_id is not None and request.attempt_id == lent.attempt_id
            if request.ordered and lent.is_blocked:
                if not same_attempt:
                    popped.remaining += max(0, high - lent.next_offset)
                    return
                lent.release_all()
        try:
            if lent is not None:
                self._take_again(lent, room, space_bytes, taken, same_attempt)
                lent = self._lent.get(queue)
            position = self._start(queue, request.from_end) if lent is None else max(lent.next_offset, low)
            position = min(position, high)
            has_ready = lent is not None and lent.has_ready
            popped.has_more |= (
                has_ready and not taken.offsets
            )  # the ready messages that were examined are finished, and others may follow
            # In ordered mode no new message overtakes a redelivered one that found no space or could not be read.
            if not (request.ordered and has_ready) and (lent is None or len(lent.deliveries) < MAX_IN_FLIGHT):
                position = self._take_new(request, queue_id, position, room, space_bytes, taken, popped.scan)
                popped.has_more |= not taken.offsets and position < high
            self._lend(queue, lent, request, position, popped.pop_time_ms, taken)
        except BaseException:
            if queue in self._lent:
                self._lent[queue].rebuild()  # messages that were taken are ready again
                self._arm(self._lent[queue])
            raise
        popped.remaining += high - position
        if lent is not None:
            popped.remaining += lent.ready_count

    def _take_again(
        self, lent: UnackedQueue, room: int, space_bytes: int, taken: PoppedRecords, same_attempt: bool
    ) -> None:
        """Take ready messages; deleted and unreadable ones are finished.

        A request that repeats the `same_attempt` because its answer was lost does not count as another try.
        """
        _, topic, queue_id = lent.queue
        times = {}
        for offset in lent.take_ready(room):
            before = lent.deliveries[offset]
            times[offset] = (
                retry.clamp_reconsume_times(before.reconsume_times) if same_attempt else before.next_reconsume_times
            )
        lost, later, unreadable = read_redelivered(self._store, topic, queue_id, times, space_bytes, taken)
        lent.return_unread(later)
        for offset, reason in unreadable.items():
            self._set_aside(lent.queue, offset, reason)
        if lost or unreadable:
            self._finish(lent, [*lost, *unreadable])

    def _set_aside(self, queue: GroupQueue, offset: int, reason: str) -> None:
        group, topic, queue_id = queue
        self._copying.quarantine(CopyPurpose(POP, group), [self._copying.place((topic, queue_id), offset)], reason)

    def _take_new(
        self,
        request: PopRequest,
        queue_id: int,
        position: int,
        room: int,
        space_bytes: int,
        taken: PoppedRecords,
        scan: ScanBudget,
    ) -> int:
        """Take new messages from `position` on within the limits; return the next offset."""
        room -= len(taken.offsets)
        space_bytes -= taken.size_bytes
        if room <= 0 or space_bytes <= 0:
            return position
        for _ in range(_MAX_SKIPPED):
            try:
                return read_new(
                    self._store, request.topic, queue_id, position, room, space_bytes, request.wanted, taken, scan
                )
            except Exception as error:
                reason = rejection_reason(error)
                if not isinstance(error, StoreCorrupt):
                    raise
            self._set_aside((request.group, request.topic, queue_id), position, reason)
            position += 1
        return position

    def _lend(
        self,
        queue: GroupQueue,
        lent: UnackedQueue | None,
        request: PopRequest,
        next_offset: int,
        pop_time_ms: int,
        taken: PoppedRecords,
    ) -> None:
        """Write the new deliveries to the store."""
        if not taken.offsets:
            if lent is None:
                self._store.consumer_offsets.commit(*queue, next_offset)
            elif lent.next_offset != next_offset:
                self._store.in_flight.deliver(queue, next_offset, {})
            return
        visible_at_ms = self._now_ms() + request.invisible_ms
        before = {} if lent is None else lent.deliveries
        deliveries: dict[int, InFlightMessage] = {}
        for offset, times in zip(taken.offsets, taken.reconsume_times, strict=True):
            unanswered = before[offset].next_unanswered_count if offset in before else 0
            lasting = visible_at_ms, times, request.max_reconsume_times, request.invisible_ms
            deliveries[offset] = InFlightMessage(pop_time_ms, *lasting, request.ending, unanswered)
            if unanswered >= _SUSPECT_ENDS or (unanswered and times >= request.max_reconsume_times):
                taken.suspects.append(offset)
        self._store.consumer_offsets.commit(*queue, taken.offsets[0] if lent is None else lent.ack_floor())
        outstanding = self._store.in_flight.deliver(queue, next_offset, deliveries)
        if lent is None:
            lent = self._lent[queue] = UnackedQueue(queue, outstanding)
        else:
            lent.delivered(taken.offsets)
        self._arm(lent)
        lent.ordered, lent.attempt_id = request.ordered, request.attempt_id
        self._latest_pop_ms = max(self._latest_pop_ms, pop_time_ms)

    def _advance(self, lent: UnackedQueue, most: int | None = None) -> int:
        """Take back at most `most` expired messages, and return how many entries were checked.

        Report readiness if messages became ready.
        """
        had = lent.ready_count
        looked_at = lent.advance(self._now_ms(), _EXPIRED_AT_ONCE if most is None else most)
        self._arm(lent)
        if lent.ready_count > had:
            self.on_ready(*lent.queue)
        return looked_at

    def _arm(self, lent: UnackedQueue) -> None:
        """Schedule the next check of the queue: at its next expiry, or at once."""
        if lent.has_dead:
            self._waiting[lent.queue] = None
        if (at_ms := lent.next_expiry_ms) is not None:
            self._alarms.set(lent.queue, at_ms)

    def _start(self, queue: GroupQueue, from_end: bool) -> int:
        """Return where a group without deliveries continues in a queue.

        A group that begins there commits that offset.
        """
        low, high = self._bounds(queue)
        committed = self._store.consumer_offsets.get(*queue)
        if committed is None:
            # Messages of a retry topic have failed in this group, so none of them may be skipped.
            skips = from_end and not queue[1].startswith(RETRY_PREFIX) and not self._is_young(queue, low)
            committed = high if skips else low
            self._store.consumer_offsets.commit(*queue, committed)
        return max(committed, low)

    def _is_young(self, queue: GroupQueue, low: int) -> bool:
        """Return True if the queue's first message ever is still in memory.

        A new group gets all messages of such a queue even if it asks for new ones only, since its consumer may have
        started before they were sent. Source: RocketMQ's initPopOffsetByCheckMsgInMem.
        """
        if low > 0:
            return False
        try:
            places = self._store.entries(queue[1], queue[2], 0, 1)[0]
        except (NotFoundError, OffsetOutOfRange, ValueError):  # ValueError: the queue is empty
            return True
        return not len(places) or self._store.max_physical_offset - int(places[0]) <= _MEMORY_BYTES

    # -- ending --------------------------------------------------------------------------------------------------

    def _finish(self, lent: UnackedQueue, offsets: Collection[int]) -> None:
        """End the deliveries of messages that were acknowledged, moved or deleted."""
        # Commit the offset first: a kill in between leaves deliveries below it, which `_current` then drops.
        self._store.consumer_offsets.commit(*lent.queue, lent.ack_floor(without=frozenset(offsets)))
        try:
            self._store.in_flight.acknowledge(lent.queue, offsets)
        except StoreError:
            with contextlib.suppress(StoreError):  # else they are done, as the committed offset says
                self._store.consumer_offsets.commit(*lent.queue, lent.ack_floor())
            raise
        lent.acknowledged()
        if not lent.deliveries:
            del self._lent[lent.queue]
        if lent.ordered and not lent.is_blocked:
            self.on_ready(*lent.queue)

    def _dead_letter_one(self, lent: UnackedQueue, offset: int) -> bool:
        """Store a dead message's dead letter, and end its delivery once that is safe.

        An existing dead letter is not stored again. Return True if anything was done, False if the stored dead letter
        only has to become durable.
        """
        group, topic, queue_id = lent.queue
        delivery = lent.deliveries[offset]
        death = dead_letter_key(lent.queue, offset, delivery.pop_time_ms)
        buried = group, death
        if is_new := buried not in self._dead_lettered:
            times = retry.clamp_reconsume_times(delivery.reconsume_times) + 1
            reason = _reason(delivery, times)
            duty, topic_queue = CopyPurpose(DEAD_LETTER, group), (topic, queue_id)
            try:
                records, _ = self._copying.read(duty, topic_queue, offset, 1, _DEAD_BYTES)
                for record in records:
                    record.reconsume_times = times
                    record.properties[names.DIED_IN] = death
                    self._bury(group, record, reason)
                    self._dead_lettered[buried] = self._store.max_physical_offset
                    if delivery.ending != ExpiryReason.FAILED:  # else its consumer logs the failure
                        self._log_letter(lent.queue, offset, record, reason)
            except Exception as error:  # noqa: BLE001 - an error of a stored message concerns that message only
                refusal = rejection_reason(error)
                self._store.check_ready()
                self._copying.quarantine(duty, [self._copying.place(topic_queue, offset)], refusal)
        # A loss of power may remove a letter that is not durable, and leave a journal in which the message is done.
        if self._dead_lettered.get(buried, 0) <= self._store.confirmed.durable_offset:
            self._finish(lent, [offset])
            self._dead_lettered.pop(buried, None)
            return True
        return is_new

    def _log_letter(self, queue: GroupQueue, offset: int, record: Record, reason: str) -> None:
        """Log a dead letter, at most one per second, with a count of the others."""
        now = self._clock()
        if now < self._next_letter_line:
            self._unlogged_letters += 1
            return
        more = f" ({self._unlogged_letters} more dead letters)" if self._unlogged_letters else ""
        self._next_letter_line, self._unlogged_letters = now + 1.0, 0
        group, topic, queue_id = queue
        _log.warning(
            "group %s: the message of topic %s queue %d offset %d (unique key %s) is a dead letter: %s%s",
            *(group, topic, queue_id, offset, record.unique_key, reason, more),
        )

    def _current(self, queue: GroupQueue) -> UnackedQueue | None:
        """Return the unacknowledged messages of a queue that the committed offset allows.

        Others may have moved the group's offset; deliveries that the new offset ends are dropped first.
        """
        lent = self._lent.get(queue)
        if lent is None:
            return None
        ack_floor = lent.ack_floor()
        committed = self._store.consumer_offsets.get(*queue)
        if committed == ack_floor:
            return lent
        if committed is None or committed < ack_floor:
            self._drop(queue)
            return None
        if committed > lent.next_offset:
            self._store.in_flight.deliver(queue, committed, {})
        self._store.in_flight.acknowledge(queue, [offset for offset in lent.deliveries if offset < committed])
        if not lent.deliveries:
            del self._lent[queue]
            return None
        lent.rebuild()
        self._arm(lent)
        return lent

    def _drop(self, queue: GroupQueue) -> None:
        self._store.in_flight.forget(queue)  # first: if a full disk prevents it, the messages stay in flight
        self._lent.pop(queue, None)
        self._least_pop_ms = self._latest_pop_ms + 1

    # -- time and place ------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _anchored(self, queue: GroupQueue, known: InFlightQueue) -> InFlightQueue:
        """Return the deliveries of an earlier process, limited to their lease durations.

        The clock of that process may have been ahead; then a delivery ends after its lease duration from now.
        """
        now_ms = self._now_ms()
        ahead = {
            offset: each._replace(visible_at_ms=now_ms + _lent_ms(each), lease_ms=_lent_ms(each))
            for offset, each in known.deliveries.items()
            if each.visible_at_ms > now_ms + _lent_ms(each)
        }
        return self._store.in_flight.deliver(queue, known.next_offset, ahead) if ahead else known

    def _pop_time(self) -> int:
        """Return the pop time of new deliveries, never that of an older or voided handle.

        Do not use it as a time: after a clock that was ahead, it stays ahead.
        """
        now_ms = self._now_ms()
        return max(now_ms if now_ms >= self._latest_pop_ms else self._latest_pop_ms + 1, self._least_pop_ms)

    def _bounds(self, queue: GroupQueue) -> tuple[int, int]:
        _, topic, queue_id = queue
        try:
            return self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        except QueueNotFound:  # nothing was ever written to it
            return 0, 0


def _lasting(delivery: InFlightMessage, now_ms: int, milliseconds: int, ending: ExpiryReason) -> InFlightMessage:
    """Return the delivery with a new expiry in `milliseconds`, and with that `ending`."""
    return delivery._replace(visible_at_ms=now_ms + milliseconds, lease_ms=milliseconds, ending=ending)


def _reason(delivery: InFlightMessage, times: int) -> str:
    """Return why a message is a dead letter.

    It is the listener's last reason, or that the message was not acknowledged.
    """
    if delivery.reason:
        return delivery.reason
    if delivery.ending == ExpiryReason.UNANSWERED:
        return f"its consumer ended without an answer {delivery.next_unanswered_count} times"
    if delivery.ending == ExpiryReason.TRIED:
        return f"not acknowledged in time, {times} times"
    return retry.failed(times)


def _lent_ms(delivery: InFlightMessage) -> int:
    """Return for how long a message was lent.

    Entries of older versions have no lease duration: it is computed from their pop time, if that was not ahead.
    """
    lease_ms = delivery.lease_ms or delivery.visible_at_ms - delivery.pop_time_ms
    return lease_ms if lease_ms > 0 else MAX_INVISIBLE_MS
