"""Replicate a store to another one without a connection, by copying bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from raymq.storage.config import StoreConfig
from raymq.storage.store import Store
from tests.store_records import append, make_record


def fill(store: Store, appends: int, seed: int = 0) -> None:
    """Append records of several topics, queues and sizes, in batches of several sizes."""
    random_ = random.Random(seed)
    for number in range(appends):
        records = [
            make_record(
                b"%d.%d " % (number, each) + random_.randbytes(random_.choice((0, 10, 300, 900))),
                topic=random_.choice(("orders", "parts")),
                queue_id=random_.randrange(3),
                keys=f"k{number}.{each}",
                tags=random_.choice((None, "a", "b")),
            )
            for each in range(random_.choice((1, 1, 2, 14)))
        ]
        append(store, *records)


def iter_pieces(master: Store, begin: int, random_: random.Random, most: int = 700) -> Iterator[tuple[int, bytes]]:
    """Yield the master's log from `begin` on, in pieces of random sizes."""
    while begin < master.max_physical_offset:
        with master.log_slice(begin, min(begin + random_.randint(1, most), master.max_physical_offset)) as found:
            yield begin, bytes(found.view)
            begin = found.end


def ship(
    master: Store, replica: Store, seed: int = 0, most: int = 700, written: Callable[[], None] = lambda: None
) -> None:
    """Replicate until the replica has the master's end."""
    for offset, content in iter_pieces(master, replica.received_offset, random.Random(seed), most):
        replica.append_replicated(offset, content, written)


@dataclass(frozen=True)
class DivergedBrokers:
    """Two brokers with the same log up to a position, and different messages behind it.

    Attributes:
        place: the end of the common log.
        master: the directory of the current master, closed.
        former: the directory of the former master, closed.
        former_end: the end of the former master's log.
    """

    place: int
    master: Path
    former: Path
    former_end: int

    def check(self, former: Store) -> bool:
        """Check that the former master is unchanged, or truncated and able to follow.

        Returns:
            whether it is truncated.
        """
        log, end = b"".join(log_content(self.master).values()), former.max_physical_offset
        found = b"".join(log_content(former.directory).values())
        assert former.recovery.corruption == []
        assert found[: self.place] == log[: self.place]
        assert end >= self.place
        offset = former.consumer_offsets.get("g", "orders", 0)
        assert offset is not None
        assert offset <= former.max_offset("orders", 0)
        assert (former.delay_offsets.get(1) or 0) <= former.max_offset("SCHEDULE_TOPIC_XXXX", 0)
        assert former.delay_offsets.log_end <= end
        if end == self.place:
            assert not any(found[end:])
        with Store.open(self.master, former.config, read_only=True) as master:
            if found[:end] != log[:end]:
                return False
            former.follow()
            ship(master, former)
            assert b"".join(log_content(former.directory).values())[: len(log)].rstrip(b"\0") == log.rstrip(b"\0")
            assert read_bodies(former) == read_bodies(master)
            for record in master.walk(0):
                for name in ("KEYS", "UNIQ_KEY"):
                    if (key := record.properties.get(name)) is not None:
                        assert [each.physical_offset for each in former.query(record.topic, key, 0, 1 << 60, 9)] == [
                            each.physical_offset for each in master.query(record.topic, key, 0, 1 << 60, 9)
                        ]
        return True


def diverge_brokers(directory: Path, config: StoreConfig, *, common: int = 20, own: int = 25) -> DivergedBrokers:
    """Create two diverged brokers; the former master deleted a topic and committed later offsets."""
    delayed = [
        make_record(b"d%d" % each, topic="SCHEDULE_TOPIC_XXXX", queue_id=0, keys=f"d{each}") for each in range(4)
    ]
    with Store.open(directory / "former", config) as former:
        fill(former, common)
        append(former, make_record(b"gone", topic="gone"), *delayed[:2])
        place = former.max_physical_offset
        former.flush()
        with Store.open(directory / "master", config) as master:
            master.follow()
            ship(former, master)
            master.become_leader()
            # The same messages again, as their senders got no answer from the former master.
            fill(master, own, seed=1)
            append(master, delayed[2])
            assert master.max_physical_offset > place + 2 * config.commitlog_file_bytes
        fill(former, own, seed=1)
        append(former, *delayed[2:])
        fill(former, own, seed=2)
        former.consumer_offsets.commit("g", "orders", 0, former.max_offset("orders", 0, written=True))
        former.delay_offsets.commit(1, 4, former.max_physical_offset)
        former.delete_topic("gone")
        end = former.max_physical_offset
    return DivergedBrokers(place, directory / "master", directory / "former", end)


def log_content(directory: Path) -> dict[str, bytes]:
    """Return the log's files without empty, preallocated ones."""
    found = {path.name: path.read_bytes() for path in sorted((directory / "commitlog").iterdir())}
    return {name: content for name, content in found.items() if any(content)}


def read_bodies(store: Store) -> dict[tuple[str, int], list[bytes]]:
    """Return the readable bodies by queue."""
    found: dict[tuple[str, int], list[bytes]] = {}
    for topic in store.topics():
        for queue_id in store.queues(topic):
            bodies = found[topic, queue_id] = []
            offset = store.min_offset(topic, queue_id)
            while offset < store.max_offset(topic, queue_id):
                with store.read(topic, queue_id, offset, 32) as lease:
                    bodies += [record.body for record in lease.messages()]
                    offset = lease.next_offset
    return found
