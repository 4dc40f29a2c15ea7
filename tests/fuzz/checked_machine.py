"""Compare a broker after kills and power losses with the model of its clients."""

from __future__ import annotations

from raymq.storage.records.record import Record
from tests.fuzz.simulated_machine import GROUP, TOPICS, SimulatedMachine, TopicQueue


class CheckedMachine(SimulatedMachine):
    """A simulated machine whose visible content is compared with the model."""

    # -- what must be --------------------------------------------------------------------------------------------

    def _look(self, *, anew: bool = False) -> None:
        """Read new messages, or all of them."""
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                self._look_at(topic, queue_id, anew=anew)

    def _look_at(self, topic: str, queue_id: int, *, anew: bool) -> None:
        known, key = self.known, (topic, queue_id)
        low, high = self.core.bounds(topic, queue_id)
        seen = known.seen.setdefault(key, {})
        assert low <= known.low.get(key, 0), f"{key} begins at {low}, not {known.low.get(key, 0)}"
        end = max(seen, default=-1) + 1
        assert high >= end, f"{key} ends at {high}, and was seen up to {end}"
        offset = low if anew else max(low, end)
        while offset < high:
            with self.store.read(topic, queue_id, offset, 100) as lease:
                records = lease.messages()
                assert records, f"{key} has nothing at {offset}"
                for record in records:
                    assert record.queue_offset == offset, f"{key} has {record.queue_offset} where {offset} is to be"
                    self._has_come(key, record)
                    offset += 1

    def _has_come(self, key: TopicQueue, record: Record) -> None:
        known, name, offset = self.known, name_of(record), record.queue_offset
        was = known.seen[key].get(offset)
        assert was in (None, name), f"{name!r} is where {was!r} was, at {offset} of {key}"
        place = known.places.get(name)
        assert place in (None, (*key, offset)), f"{name!r} is at {offset} of {key}, and at {place}"
        sent = known.sent[name]
        assert not sent.gone, f"{name!r} is of a topic that was deleted"
        assert name not in known.withdrawn, f"{name!r} was withdrawn and came"
        assert record.store_timestamp_ms >= sent.due_ms, f"{name!r} came too early"
        known.seen[key][offset] = name
        known.places[name] = *key, offset

    def _check_start(self) -> None:
        known = self.known
        if known.letting_go:
            self._lows()
            known.letting_go = False
        if known.loose:
            self._forget_loose()
        self._look(anew=True)
        if known.loose:
            known.loose = False
            names = known.seen.get(("v", 0), {})
            group_offset = self.core.offsets.get(GROUP, "v", 0) or 0
            assert group_offset <= self.core.bounds("v", 0)[1]
            known.consumed["v", 0] = {offset: name for offset, name in names.items() if offset < group_offset}
            known.committed["v", 0] = known.perhaps_committed["v", 0] = group_offset
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                self._check_group((topic, queue_id))
        self._check_whole()
        self.check_keys()

    def _forget_loose(self) -> None:
        for table in (self.known.seen, self.known.sure_seen):
            for name in table.pop(("v", 0), {}).values():
                self.known.places.pop(name, None)
        self.known.low["v", 0] = 1 << 62

    def _check_group(self, key: TopicQueue) -> None:
        known = self.known
        low, high = self.core.bounds(*key)
        group_offset = self.core.offsets.get(GROUP, *key) or 0
        assert group_offset <= high, f"the group is at {group_offset} of {key}, which ends at {high}"
        least, most = known.committed.get(key, 0), known.perhaps_committed.get(key, 0)
        if not self.store.read_barrier.is_blocked(key):
            assert min(least, high) <= group_offset <= most, (
                f"the group is at {group_offset} of {key}: {least}..{most}, end {high}"
            )
        consumed = {o: name for o, name in known.consumed.get(key, {}).items() if o < group_offset}
        known.consumed[key] = consumed
        for offset, name in known.seen.get(key, {}).items():
            if low <= offset < group_offset:
                assert consumed.get(offset) == name, f"{name!r} at {offset} of {key} is passed over at {group_offset}"
        known.committed[key] = known.perhaps_committed[key] = group_offset
        known.sure_committed[key] = min(known.sure_committed.get(key, 0), group_offset)

    def _check_whole(self) -> None:
        for name, (_, names) in self.known.staged.items():
            count = sum(each in self.known.places for each in names)
            assert count in (0, len(names)), f"readers see {count} of {len(names)} rows of {name}"

    def check_keys(self) -> None:
        names = [n for n, (t, q, o) in self.known.places.items() if o >= self.core.bounds(t, q)[0]]
        for name in self._random.sample(names, min(40, len(names))):
            topic, queue_id, offset = self.known.places[name]
            found = self.store.query(topic, name.decode(), 0, 1 << 62, 9)
            positions = [(name_of(each), each.queue_id, each.queue_offset) for each in found]
            assert positions == [(name, queue_id, offset)], (
                f"{name!r} is at {offset} of {topic} {queue_id}, its key: {positions}"
            )

    def _lows(self) -> None:
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                low = self.core.bounds(topic, queue_id)[0]
                self.known.low[topic, queue_id] = max(low, self.known.low.get((topic, queue_id), 0))


def name_of(record: Record) -> bytes:
    """Return a message's name."""
    return record.body.split(b" ")[0]
