"""Pop: the broker lends messages to the members of a group, whichever asks, and takes back what is not acknowledged.

Several consumers share one queue. A message that was given out is invisible until its time is over; then it is given
out again, from the same place, with one more in its reconsume times, until its consumer's maximum sends it to the
group's dead letters. A delivery is named by its pop time: an older one's handle has no effect. The group's committed
offset is the oldest message that is out, so that whoever moves the offset (an administrator's reset, a consumer of
another kind) ends the deliveries that it leaves behind.

What is out survives SIGKILL: offsets are committed first, then the table of deliveries is written, and only then does a
consumer learn of it.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final

from raymq.actors.broker.core.copies.copying import DEAD_LETTER, POP, Copying, Duty, reason_of
from raymq.actors.broker.core.duty_troubles import PartTroubles
from raymq.actors.broker.core.pop.alarms import Alarms
from raymq.actors.broker.core.pop.buried import buried_deaths, death_of
from raymq.actors.broker.core.pop.queue import LentQueue
from raymq.actors.broker.core.pop.reading import read_again, read_new
from raymq.actors.broker.core.pop.request import Popped, PoppedQueue, PopRequest, Taken
from raymq.actors.broker.core.reading.filtered_reading import Scan
from raymq.actors.broker.core.redelivery import retry
from raymq.actors.naming import RETRY_PREFIX
from raymq.actors.protocol import SettleAction, Settlement, SettleOutcome, SettleResult
from raymq.actors.request_limits import MAX_IN_FLIGHT
from raymq.storage.errors import QueueNotFound, StoreCorrupt, StoreError
from raymq.storage.records import property_names as names
from raymq.storage.records.failure_reason import failure_reason
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from raymq.storage.tables.in_flight import Ending, GroupQueue, Lent, Outstanding

MAX_INVISIBLE_MS: Final = 12 * 3600 * 1000
#: How many dead messages one sweep moves, of all queues, and how many queues it looks at, so that it never holds the
#: loop for long.
_DEAD_PER_SWEEP: Final = 100
_QUEUES_PER_SWEEP: Final = 2_000
#: So many that ran out of time one pop takes back of a queue, and one sweep of all, for the same reason. What is left
#: is due at once, so that the next one goes on with it.
_EXPIRED_AT_ONCE: Final = 5_000
#: How many messages that cannot be read one pop passes over in a queue, for the same reason.
_MOST_PASSED_OVER: Final = 64
_DEAD_BYTES: Final = 1 << 20
#: A message whose consumers ended so often without an answer may be why.
_SUSPECT_ENDS: Final = 2

_log = logging.getLogger(__name__)

#: Puts a record into a group's dead-letter queue, with a reason.
Bury = Callable[[str, Record, str], None]


def _nobody_waits(group: str, topic: str, queue_id: int) -> None:
    """What readiness means to a core without a service."""


class Pop:
    """All groups that pop on one broker. `clock` is wall time without steps, in seconds. Used on the broker's loop.

    `on_ready` is called with group, topic and queue id when messages of a queue may be taken that could not before,
    arrivals apart.
    """

    def __init__(self, store: Store, clock: Callable[[], float], bury: Bury, copying: Copying) -> None:
        self._store = store
        self._copying = copying
        self._clock = clock
        self._bury = bury
        self.on_ready: Callable[[str, str, int], None] = _nobody_waits
        self._lent: dict[GroupQueue, LentQueue] = {}
        self._troubles = PartTroubles(clock)
        #: When something runs out of time, and the queues that are to be looked at besides: those that have dead ones,
        #: and those with which something went wrong.
        self._alarms = Alarms()
        self._waiting: dict[GroupQueue, None] = {}
        self._latest_pop_ms = 0
        self._least_pop_ms = 0
        #: Deliveries whose dead letter is in the log while they are still out, with their group; and where the log
        #: ended when it came.
        self._buried = dict.fromkeys(buried_deaths(store), 0)
        self._next_letter_line, self._unlogged_letters = 0.0, 0
        for queue, outstanding in list(store.in_flight.queues.items()):
            if store.consumer_offsets.get(*queue) is None:  # its group was deleted
                with contextlib.suppress(StoreError):  # else it is by whoever looks at the queue next
                    store.in_flight.forget(queue)
                    continue
            newest = max(each.pop_time_ms for each in outstanding.deliveries.values())
            self._latest_pop_ms = max(self._latest_pop_ms, newest)
            self._lent[queue] = LentQueue(queue, self._anchored(queue, outstanding))
            self._arm(self._lent[queue])

    # -- what consumers do ---------------------------------------------------------------------------------------

    def receive(self, asked: PopRequest) -> Popped:
        """Lend messages: of queues in any order, of a queue those that come again first.

        What cannot be read is set aside, and done for this group.

        Raises:
            StoreError: could not be written down; nobody was given anything.
        """
        popped = Popped(self._pop_time())
        room, space_bytes = asked.max_messages, asked.max_bytes
        failure: Exception | None = None
        for queue_id in random.sample(asked.queue_ids, len(asked.queue_ids)):
            if room <= 0 or space_bytes <= 0:
                break
            taken = Taken()
            try:
                self._take(asked, queue_id, room, space_bytes, taken, popped)
            except Exception as error:  # noqa: BLE001 - those of other queues are given out by now
                failure = failure or error
                continue
            if taken.offsets:
                popped.queues.append(PoppedQueue(queue_id, taken))
                room -= len(taken.offsets)
                space_bytes -= taken.size_bytes
        if failure is not None and not popped.queues:
            raise failure
        return popped

    def has_messages(self, group: str, topic: str, queue_ids: Iterable[int], *, ordered: bool) -> bool:
        """Whether `receive` would probably find something (it may be filtered out)."""
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

    def acknowledge(self, group: str, topic: str, queue_id: int, pop_time_ms: int, offsets: Iterable[int]) -> int:
        """End deliveries of one pop; how many of them were alive, the others' handles are stale.

        Raises:
            StoreError: could not be written down; they are out as before.
        """
        lent = self._current((group, topic, queue_id))
        if lent is None:
            return 0
        now_ms = self._now_ms()
        done = [offset for offset in offsets if lent.alive(offset, pop_time_ms, now_ms) is not None]
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
        """Let a delivery last `invisible_ms` from now on; its new pop time, None if the handle is stale.

        Args:
            undelivered: nobody has seen the message: when it comes again, that is not another try.

        Raises:
            StoreError: could not be written down; nothing has changed.
        """
        lent = self._current((group, topic, queue_id))
        delivery = None if lent is None else lent.alive(offset, pop_time_ms, self._now_ms())
        if lent is None or delivery is None:
            return None
        renewed_ms = max(self._pop_time(), pop_time_ms + 1)
        self._latest_pop_ms = max(self._latest_pop_ms, renewed_ms)
        visible_at_ms = self._now_ms() + invisible_ms
        changed = delivery._replace(pop_time_ms=renewed_ms, visible_at_ms=visible_at_ms, lent_ms=invisible_ms)
        if undelivered:
            changed = changed._replace(ending=Ending.UNSEEN)
        self._store.in_flight.deliver(lent.queue, lent.next_offset, {offset: changed})
        lent.delivered([offset])
        self._arm(lent)
        return renewed_ms

    def settle(self, group: str, settlements: Iterable[Settlement]) -> list[SettleResult]:
        """Do what a consumer wants to become of deliveries; the outcome of each.

        RUN and HOLD leave the handle as it is, so that a request whose answer was lost may be repeated.

        Raises:
            StoreError: could not be written down; the deliveries of some queues may be settled.
        """
        by_queue: dict[tuple[str, int], list[tuple[int, Settlement]]] = {}
        outcomes: dict[int, SettleResult] = {}
        for number, each in enumerate(settlements):
            outcomes[number] = SettleResult(SettleOutcome.STALE)
            by_queue.setdefault((each.topic, each.queue_id), []).append((number, each))
        for (topic, queue_id), wanted in by_queue.items():
            lent = self._current((group, topic, queue_id))
            if lent is not None:
                outcomes |= self._settle_queue(lent, wanted)
        return list(outcomes.values())

    def _settle_queue(self, lent: LentQueue, wanted: list[tuple[int, Settlement]]) -> dict[int, SettleResult]:
        now_ms = self._now_ms()
        renewed_ms = self._pop_time()
        outcomes: dict[int, SettleResult] = {}
        done: list[int] = []
        changed: dict[int, Lent] = {}
        for number, each in wanted:
            delivery = lent.alive(each.offset, each.pop_time_ms, now_ms)
            if delivery is None or each.offset in changed or each.offset in done:
                continue
            outcomes[number] = SettleResult(SettleOutcome.DONE)
            if each.action is SettleAction.ACK:
                done.append(each.offset)
                continue
            renewed_ms = max(renewed_ms, each.pop_time_ms + 1)
            if each.action is SettleAction.RUN:
                changed[each.offset] = _lasting(delivery, now_ms, each.argument, Ending.UNANSWERED)
            elif each.action is SettleAction.HOLD:
                changed[each.offset] = _lasting(delivery, now_ms, each.argument, Ending.UNSEEN)
            elif each.action is SettleAction.RETURN:
                changed[each.offset] = _lasting(delivery, now_ms, 0, Ending.UNSEEN)
            else:
                changed[each.offset] = failed = self._failed(delivery, now_ms, each)
                outcomes[number] = (
                    SettleResult(SettleOutcome.DEAD)
                    if failed.is_last
                    else SettleResult(SettleOutcome.DONE, failed.lent_ms)
                )
            if each.action in (SettleAction.RETURN, SettleAction.RETRY):  # the consumer has no claim on it any more
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

    def _failed(self, delivery: Lent, now_ms: int, wanted: Settlement) -> Lent:
        """A delivery whose listener has failed: it waits for its next try, or its time is over and it is the last."""
        times = retry.counted(delivery.reconsume_times)
        tables = self._store.delay_tables
        reason = failure_reason(wanted.reason)
        decision = retry.after_failure(times, wanted.argument, delivery.max_reconsume_times, tables.levels, reason)
        if isinstance(decision, retry.Later):
            return _lasting(delivery, now_ms, tables.delay_ms(decision.level - 1), Ending.FAILED)
        dead = _lasting(delivery, now_ms, 0, Ending.FAILED)
        return dead._replace(
            max_reconsume_times=min(delivery.max_reconsume_times, delivery.reconsume_times),
            reason=decision.reason,
        )

    # -- what the broker does ------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Take back what ran out of time, tell who waits for it, move the dead. To be called many times a second."""
        self._waiting |= dict.fromkeys(self._alarms.due(self._now_ms()))
        each = max(1, _DEAD_PER_SWEEP // max(1, len(self._waiting)))
        left, expired = _DEAD_PER_SWEEP, _EXPIRED_AT_ONCE
        for queue in list(islice(self._waiting, _QUEUES_PER_SWEEP)):
            if expired <= 0:
                break
            del self._waiting[queue]
            lent = self._lent.get(queue)
            if lent is None:
                continue
            if self._troubles.rests(queue):
                self._waiting[queue] = None  # behind the others
                continue
            try:
                expired -= self._advance(lent, expired)
                if left > 0 and lent.has_dead and self._current(queue) is lent:
                    done = 0
                    for offset in lent.dead(each + len(self._buried)):
                        done += done < each and self._bury_one(lent, offset)
                    left -= done
                if lent.has_dead:
                    self._waiting[queue] = None
            except StoreError as error:  # they wait for the next sweep
                _log.debug("dead messages of %s cannot be moved: %s", queue, error)
                self._waiting[queue] = None
            except Exception as error:  # noqa: BLE001 - one queue's trouble is not that of the others
                self._troubles.failed(queue, f"looking after what is out of {queue}", error, _log)
                self._waiting[queue] = None
            else:
                self._troubles.succeeded(queue)
        self._troubles.forget_all_but(self._lent)

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """The group's offset in a queue was reset: handles given out before have no effect."""
        self._drop((group, topic, queue_id))
        self.on_ready(group, topic, queue_id)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: the store has forgotten what was out of it."""
        for queue in [queue for queue in self._lent if queue[1] == topic]:
            del self._lent[queue]
            self._least_pop_ms = self._latest_pop_ms + 1

    def forget_group(self, group: str, topic: str | None = None) -> None:
        """Forget what is lent to a group, in one topic or in all; raises as `InFlight.forget`."""
        for queue in [queue for queue in self._lent if queue[0] == group and topic in (None, queue[1])]:
            self._drop(queue)

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        assert self._lent.keys() == self._store.in_flight.queues.keys()
        for lent in self._lent.values():
            assert lent.deliveries, "a queue of which nothing is out stays listed"
            alarm, expiry = self._alarms.of(lent.queue), lent.next_expiry_ms
            assert lent.queue in self._waiting or expiry is None or (alarm is not None and alarm <= expiry)
            assert lent.queue in self._waiting or not lent.has_dead
            lent.validate()

    # -- taking --------------------------------------------------------------------------------------------------

    def _take(
        self, asked: PopRequest, queue_id: int, room: int, space_bytes: int, taken: Taken, popped: Popped
    ) -> None:
        """Lend messages of one queue: adds them to `taken`, and what else there is to `popped`."""
        queue = (asked.group, asked.topic, queue_id)
        low, high = self._bounds(queue)
        lent = self._current(queue)
        same_attempt = False
        if lent is not None:
            self._advance(lent)
            same_attempt = asked.ordered and asked.attempt_id is not None and asked.attempt_id == lent.attempt_id
            if asked.ordered and lent.is_blocked:
                if not same_attempt:
                    popped.rest += max(0, high - lent.next_offset)
                    return
                lent.recall()
        try:
            if lent is not None:
                self._take_again(lent, room, space_bytes, taken, same_attempt)
                lent = self._lent.get(queue)
            position = self._start(queue, asked.from_end) if lent is None else max(lent.next_offset, low)
            position = min(position, high)
            has_ready = lent is not None and lent.has_ready
            popped.unseen |= has_ready and not taken.offsets  # what it has looked at is done, and those behind may come
            # In order nothing new passes what comes again and found no space, or could not be read.
            if not (asked.ordered and has_ready) and (lent is None or len(lent.deliveries) < MAX_IN_FLIGHT):
                position = self._take_new(asked, queue_id, position, room, space_bytes, taken, popped.scan)
                popped.unseen |= not taken.offsets and position < high
            self._lend(queue, lent, asked, position, popped.pop_time_ms, taken)
        except BaseException:
            if queue in self._lent:
                self._lent[queue].cut()  # what was taken from the ready ones is ready again
                self._arm(self._lent[queue])
            raise
        popped.rest += high - position
        if lent is not None:
            popped.rest += lent.ready_count

    def _take_again(self, lent: LentQueue, room: int, space_bytes: int, taken: Taken, same_attempt: bool) -> None:
        """Take what is ready. What is gone for good, or cannot be read, is done.

        Who asks once more by the `same_attempt`, since no answer came, has not tried again.
        """
        _, topic, queue_id = lent.queue
        times = {}
        for offset in lent.take_ready(room):
            before = lent.deliveries[offset]
            times[offset] = retry.counted(before.reconsume_times) if same_attempt else before.next_reconsume_times
        gone, later, unreadable = read_again(self._store, topic, queue_id, times, space_bytes, taken)
        lent.give_back(later)
        for offset, reason in unreadable.items():
            self._set_aside(lent.queue, offset, reason)
        if gone or unreadable:
            self._finish(lent, [*gone, *unreadable])

    def _set_aside(self, queue: GroupQueue, offset: int, reason: str) -> None:
        group, topic, queue_id = queue
        self._copying.refuse(Duty(POP, group), [self._copying.place((topic, queue_id), offset)], reason)

    def _take_new(
        self, asked: PopRequest, queue_id: int, position: int, room: int, space_bytes: int, taken: Taken, scan: Scan
    ) -> int:
        """Take from `position` on what there is room for; where to go on."""
        room -= len(taken.offsets)
        space_bytes -= taken.size_bytes
        if room <= 0 or space_bytes <= 0:
            return position
        for _ in range(_MOST_PASSED_OVER):
            try:
                return read_new(
                    self._store, asked.topic, queue_id, position, room, space_bytes, asked.wanted, taken, scan
                )
            except Exception as error:
                reason = reason_of(error)
                if not isinstance(error, StoreCorrupt):
                    raise
            self._set_aside((asked.group, asked.topic, queue_id), position, reason)
            position += 1
        return position

    def _lend(
        self,
        queue: GroupQueue,
        lent: LentQueue | None,
        asked: PopRequest,
        next_offset: int,
        pop_time_ms: int,
        taken: Taken,
    ) -> None:
        """Write down who has what from now on."""
        if not taken.offsets:
            if lent is None:
                self._store.consumer_offsets.commit(*queue, next_offset)
            elif lent.next_offset != next_offset:
                self._store.in_flight.deliver(queue, next_offset, {})
            return
        visible_at_ms = self._now_ms() + asked.invisible_ms
        before = {} if lent is None else lent.deliveries
        deliveries: dict[int, Lent] = {}
        for offset, times in zip(taken.offsets, taken.reconsume_times, strict=True):
            unanswered = before[offset].next_unanswered if offset in before else 0
            lasting = visible_at_ms, times, asked.max_reconsume_times, asked.invisible_ms
            deliveries[offset] = Lent(pop_time_ms, *lasting, asked.ending, unanswered)
            if unanswered >= _SUSPECT_ENDS or (unanswered and times >= asked.max_reconsume_times):
                taken.suspects.append(offset)
        self._store.consumer_offsets.commit(*queue, taken.offsets[0] if lent is None else lent.floor())
        outstanding = self._store.in_flight.deliver(queue, next_offset, deliveries)
        if lent is None:
            lent = self._lent[queue] = LentQueue(queue, outstanding)
        else:
            lent.delivered(taken.offsets)
        self._arm(lent)
        lent.ordered, lent.attempt_id = asked.ordered, asked.attempt_id
        self._latest_pop_ms = max(self._latest_pop_ms, pop_time_ms)

    def _advance(self, lent: LentQueue, most: int | None = None) -> int:
        """Take back what ran out of time, at most so much, and tell who waits for it; how many were looked at."""
        had = lent.ready_count
        looked_at = lent.advance(self._now_ms(), _EXPIRED_AT_ONCE if most is None else most)
        self._arm(lent)
        if lent.ready_count > had:
            self.on_ready(*lent.queue)
        return looked_at

    def _arm(self, lent: LentQueue) -> None:
        """Have the queue looked at when its time comes, or now."""
        if lent.has_dead:
            self._waiting[lent.queue] = None
        if (at_ms := lent.next_expiry_ms) is not None:
            self._alarms.set(lent.queue, at_ms)

    def _start(self, queue: GroupQueue, from_end: bool) -> int:
        """Where a group of which nothing is out goes on; a group that begins has committed that."""
        low, high = self._bounds(queue)
        committed = self._store.consumer_offsets.get(*queue)
        if committed is None:
            # What is retried has failed in this group: it is never behind where that begins.
            committed = high if from_end and not queue[1].startswith(RETRY_PREFIX) else low
            self._store.consumer_offsets.commit(*queue, committed)
        return max(committed, low)

    # -- ending --------------------------------------------------------------------------------------------------

    def _finish(self, lent: LentQueue, offsets: Collection[int]) -> None:
        """These are done: acknowledged, moved, or gone."""
        # The offset first: a kill in between leaves deliveries below it, which `_current` then drops.
        self._store.consumer_offsets.commit(*lent.queue, lent.floor(without=frozenset(offsets)))
        try:
            self._store.in_flight.acknowledge(lent.queue, offsets)
        except StoreError:
            with contextlib.suppress(StoreError):  # else it is done, as the offset says, which has been written down
                self._store.consumer_offsets.commit(*lent.queue, lent.floor())
            raise
        lent.acknowledged()
        if not lent.deliveries:
            del self._lent[lent.queue]
        if lent.ordered and not lent.is_blocked:
            self.on_ready(*lent.queue)

    def _bury_one(self, lent: LentQueue, offset: int) -> bool:
        """Put a dead message into the dead letters, if it is not there, and end its delivery once that is safe; whether
        anything was done, else its letter waits for that.
        """
        group, topic, queue_id = lent.queue
        delivery = lent.deliveries[offset]
        death = death_of(lent.queue, offset, delivery.pop_time_ms)
        buried = group, death
        if is_new := buried not in self._buried:
            times = retry.counted(delivery.reconsume_times) + 1
            reason = _reason(delivery, times)
            duty, topic_queue = Duty(DEAD_LETTER, group), (topic, queue_id)
            try:
                records, _ = self._copying.read(duty, topic_queue, offset, 1, _DEAD_BYTES)
                for record in records:
                    record.reconsume_times = times
                    record.properties[names.DIED_IN] = death
                    self._bury(group, record, reason)
                    self._buried[buried] = self._store.max_physical_offset
                    if delivery.ending != Ending.FAILED:  # its consumer knows and logs it
                        self._log_letter(lent.queue, offset, record, reason)
            except Exception as error:  # noqa: BLE001 - whatever a stored byte causes is that message's outcome
                refusal = reason_of(error)
                self._store.check_ready()
                self._copying.refuse(duty, [self._copying.place(topic_queue, offset)], refusal)
        # What might yet take the letter back, as a loss of power, leaves a journal that says that the message is done.
        if self._buried.get(buried, 0) <= self._store.confirmed.safe:
            self._finish(lent, [offset])
            self._buried.pop(buried, None)
            return True
        return is_new

    def _log_letter(self, queue: GroupQueue, offset: int, record: Record, reason: str) -> None:
        """Log a dead letter, at most one a second with a count of the others."""
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

    def _current(self, queue: GroupQueue) -> LentQueue | None:
        """What is out of a queue, once the group's offset, which others may have moved, has had its say."""
        lent = self._lent.get(queue)
        if lent is None:
            return None
        floor = lent.floor()
        committed = self._store.consumer_offsets.get(*queue)
        if committed == floor:
            return lent
        if committed is None or committed < floor:
            self._drop(queue)
            return None
        if committed > lent.next_offset:
            self._store.in_flight.deliver(queue, committed, {})
        self._store.in_flight.acknowledge(queue, [offset for offset in lent.deliveries if offset < committed])
        if not lent.deliveries:
            del self._lent[queue]
            return None
        lent.cut()
        self._arm(lent)
        return lent

    def _drop(self, queue: GroupQueue) -> None:
        self._store.in_flight.forget(queue)  # first: what a full disk does not let go of is out as before
        self._lent.pop(queue, None)
        self._least_pop_ms = self._latest_pop_ms + 1

    # -- time and place ------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _anchored(self, queue: GroupQueue, known: Outstanding) -> Outstanding:
        """What was lent in an earlier life: by a clock that was ahead of ours, too, no longer than it was lent for."""
        now_ms = self._now_ms()
        ahead = {
            offset: each._replace(visible_at_ms=now_ms + _lent_ms(each), lent_ms=_lent_ms(each))
            for offset, each in known.deliveries.items()
            if each.visible_at_ms > now_ms + _lent_ms(each)
        }
        return self._store.in_flight.deliver(queue, known.next_offset, ahead) if ahead else known

    def _pop_time(self) -> int:
        """The name of deliveries that are made now: never that of one whose handle was made void, or of an older one.

        It is no time to reckon with: after a clock that was ahead it stays ahead.
        """
        now_ms = self._now_ms()
        return max(now_ms if now_ms >= self._latest_pop_ms else self._latest_pop_ms + 1, self._least_pop_ms)

    def _bounds(self, queue: GroupQueue) -> tuple[int, int]:
        _, topic, queue_id = queue
        try:
            return self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        except QueueNotFound:  # nothing was ever written to it
            return 0, 0


def _lasting(delivery: Lent, now_ms: int, milliseconds: int, ending: Ending) -> Lent:
    """The same delivery, which ends so many milliseconds from now, and in that way."""
    return delivery._replace(visible_at_ms=now_ms + milliseconds, lent_ms=milliseconds, ending=ending)


def _reason(delivery: Lent, times: int) -> str:
    """Why a message is a dead letter: what its listener said last, or that nobody acknowledged it."""
    if delivery.reason:
        return delivery.reason
    if delivery.ending == Ending.UNANSWERED:
        return f"its consumer ended without an answer {delivery.next_unanswered} times"
    if delivery.ending == Ending.TRIED:
        return f"not acknowledged in time, {times} times"
    return retry.failed(times)


def _lent_ms(delivery: Lent) -> int:
    """For how long a message was lent; what older versions wrote says it by the pop time, if that was not ahead."""
    lent_ms = delivery.lent_ms or delivery.visible_at_ms - delivery.pop_time_ms
    return lent_ms if lent_ms > 0 else MAX_INVISIBLE_MS
