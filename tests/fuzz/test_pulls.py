"""Fuzz a pull consumer: what it reads, in threads and in asyncio, is compared with what was stored.

Its broker is restarted and killed, its topic is created again or gets more queues, polls are cancelled, and it seeks.
In any case it reads each queue from its position on, message by message, of one topic only; its committed offsets stay,
and it gets an error when its position becomes invalid. The clocks are real.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.client.errors import BrokerUnavailable, OffsetOutOfRange, RayMQError
from tests.fuzz.seeds import seeded, try_each
from tests.integration.conftest import Services
from tests.polling import poll_until

_T = TypeVar("_T")
WORKS: Final = 150
MAX_PREFETCHED_QUEUES: Final = 4
#: The result of a read: offsets and bodies.
Found = list[tuple[int, bytes]]
Read = Callable[[PullConsumer, MessageQueue, int, float], Found]


def poll(pull: PullConsumer, queue: MessageQueue, most: int, seconds: float) -> Found:
    return [(message.queue_offset, message.body) for message in pull.poll(queue, most, seconds)]


def fetch_table(pull: PullConsumer, queue: MessageQueue, most: int, seconds: float) -> Found:
    table = pull.fetch_table(queue, most, seconds)
    return list(zip(table["offset"].to_pylist(), table["body"].to_pylist(), strict=True))


async def apoll(pull: PullConsumer, queue: MessageQueue, most: int, seconds: float) -> Found:
    return [(message.queue_offset, message.body) for message in await pull.apoll(queue, most, seconds)]


def poll_in_asyncio(pull: PullConsumer, queue: MessageQueue, most: int, seconds: float) -> Found:
    return asyncio.run(apoll(pull, queue, most, seconds))


class PullsFuzz:
    """A broker, a topic with several lives, and one pull consumer."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self._random = random.Random(seed)
        self._services = Services(directory, names=("broker-a",))
        self._count = self._random.randint(1, 3)
        self._bodies = 0
        #: The content of each queue, for each life of the topic.
        self._lives: list[dict[MessageQueue, list[bytes]]] = [defaultdict(list)]
        #: The consumer's position: the topic's life, None: that of the next read; and the offset.
        self._places: dict[MessageQueue, tuple[int | None, int]] = {}
        self._committed: dict[MessageQueue, int] = {}

    def live(self) -> None:
        self._services.start()
        try:
            with (
                Connection([self._services.name_server.address]) as mq,
                Connection([self._services.name_server.address]) as other,
                Producer(other, "p", timeout=60.0, retries=20, idempotent=True) as self._producer,
            ):
                self._mq, self._admin = mq, Admin(other)
                self._patiently(lambda: self._admin.create_topic("t", queues=self._count))
                self._patiently(self._open)
                for _ in range(WORKS):
                    self._work()
                for queue in self._queues:
                    self._read_all(queue)
                self._pull.close()
        finally:
            self._services.stop()

    # -- operations

    def _work(self) -> None:
        works: dict[Callable[[], None], float] = {
            self._send: 8,
            self._read: 14,
            self._give_up: 3,
            self._read_together: 2,
            self._seek: 4,
            self._commit: 4,
            self._look: 2,
            self._again: 1,
            self._make_anew: 0.7,
            self._grow: 0.3,
            self._reopen: 0.7,
        }
        work = self._random.choices([*works], [*works.values()])[0]
        self.log.append(work.__name__)
        work()

    def _send(self) -> None:
        queue, log = self._queue, self._lives[-1]
        bodies = [b"%d" % (self._bodies + number) for number in range(self._random.choice((1, 1, 3, 20, 60)))]
        self._bodies += len(bodies)
        sent = self._producer.send_batch([Message("t", body) for body in bodies], queue=queue)
        assert [result.queue_offset for result in sent] == [len(log[queue]) + n for n in range(len(bodies))]
        log[queue] += bodies

    def _read(self) -> None:
        read = self._random.choice((poll, poll, poll_in_asyncio, fetch_table))
        self._read_by(read, self._queue, self._random.choice((1, 5, 32, 100)), self._random.choice((0.0, 0.05, 0.3)))

    def _read_by(self, read: Read, queue: MessageQueue, most: int, seconds: float) -> None:
        try:
            found = read(self._pull, queue, most, seconds)
        except RayMQError as error:
            self._failed(queue, error)
        else:
            assert len(found) <= most
            self._came(queue, found)

    def _give_up(self) -> None:
        async def briefly() -> Found | None:
            try:
                async with asyncio.timeout(seconds):
                    return await apoll(self._pull, queue, 10, 0.3)
            except TimeoutError:
                return None

        queue, seconds = self._queue, self._random.choice((0.0, 0.0005, 0.002, 0.005))
        try:
            found = asyncio.run(briefly())
        except RayMQError as error:
            self._failed(queue, error)
        else:
            if found is None:
                self._has_not_moved(queue)
            else:
                self._came(queue, found)

    def _read_together(self) -> None:
        async def together() -> list[Found | BaseException]:
            reads = (apoll(self._pull, queue, 10, 0.1) for queue in self._queues)
            return await asyncio.gather(*reads, return_exceptions=True)

        for queue, found in zip(self._queues, asyncio.run(together()), strict=True):
            if isinstance(found, BaseException):
                self._failed(queue, found)
            else:
                self._came(queue, found)

    def _seek(self) -> None:
        queue, now = self._queue, len(self._lives) - 1
        end = len(self._lives[-1][queue])
        _, here = self._place(queue)
        places: list[tuple[int | None, int, Callable[[], None]]] = [
            (now, 0, lambda: self._pull.seek(queue, "earliest")),
            (now, end, lambda: self._pull.seek(queue, "latest")),
            (now, 0, lambda: self._pull.seek_to_time(queue, 0.0)),
            (now, end, lambda: self._pull.seek_to_time(queue, time.time() + 60.0)),
            (None, here, lambda: self._pull.seek(queue, here)),
            (None, end + 3, lambda: self._pull.seek(queue, end + 3)),
        ]
        life, offset, seek = self._random.choice(places)
        self._patiently(seek)
        self._places[queue] = life, offset

    def _commit(self) -> None:
        queue = self._queue
        life, offset = self._places.get(queue, (None, 0))
        if life is None or offset > len(self._lives[life][queue]):
            return
        try:
            self._patiently(lambda: self._pull.commit(queue, offset))
        except OffsetOutOfRange:
            assert life < len(self._lives) - 1, f"{queue}: {offset} was refused"
        else:
            assert life == len(self._lives) - 1, f"{queue}: {offset} was committed, which was of an older topic"
            self._committed[queue] = max(offset, self._committed.get(queue, 0))

    def _look(self) -> None:
        queue = self._queue
        assert self._patiently(lambda: self._pull.offsets(queue)) == (0, len(self._lives[-1][queue]))
        assert (self._patiently(lambda: self._pull.committed(queue)) or 0) == self._committed.get(queue, 0)

    def _again(self) -> None:
        end = self._random.choice((self._services.stop_broker, self._services.crash_broker))
        end("broker-a")
        time.sleep(self._random.choice((0.0, 0.3)))
        self._services.start_broker("broker-a")
        self._patiently(lambda: self._admin.topic_stats("t"))

    def _make_anew(self) -> None:
        self._patiently(lambda: self._admin.delete_topic("t"))
        self._patiently(lambda: self._admin.create_topic("t", queues=self._count))
        self._lives.append(defaultdict(list))
        self._committed = {}
        if self._random.random() < 0.7:
            self._send()

    def _grow(self) -> None:
        if self._count < MAX_PREFETCHED_QUEUES:
            self._count += 1
            self._patiently(lambda: self._admin.update_topic("t", queues=self._count))

    def _reopen(self) -> None:
        self._pull.close()
        self._places = {}
        self._patiently(self._open)

    def _open(self) -> None:
        self._pull = PullConsumer(self._mq, "g")

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """Retry while the machine is busy or a broker is not registered yet."""
        found: list[_T] = []

        def done() -> bool:
            try:
                found.append(call())
            except BrokerUnavailable:
                return False
            return True

        poll_until(done, 60.0)
        return found[0]

    # -- checks

    @property
    def _queues(self) -> list[MessageQueue]:
        return [MessageQueue("t", "broker-a", number) for number in range(self._count)]

    @property
    def _queue(self) -> MessageQueue:
        return self._random.choice(self._queues)

    def _place(self, queue: MessageQueue) -> tuple[int, int]:
        """Return where a read begins."""
        life, offset = self._places.get(queue, (None, self._committed.get(queue, 0)))
        return len(self._lives) - 1 if life is None else life, offset

    def _came(self, queue: MessageQueue, found: Found) -> None:
        life, offset = self._place(queue)
        log = self._lives[life][queue]
        while found and offset == 0 and not log and life < len(self._lives) - 1:
            life += 1  # a queue without messages has the same start as that of the next topic of the name
            log = self._lives[life][queue]
        expected = list(enumerate(log))[offset : offset + len(found)]
        assert found == expected, f"{queue} at {offset} of life {life}: {found} instead of {expected}"
        assert found or life < len(self._lives) - 1 or offset >= len(log), f"{queue}: nothing came at {offset}"
        self._places[queue] = life, offset + len(found)

    def _failed(self, queue: MessageQueue, error: BaseException) -> None:
        if isinstance(error, BrokerUnavailable):
            self.log.append(type(error).__name__)
            self._has_not_moved(queue)
            return
        if not isinstance(error, OffsetOutOfRange):
            raise error
        life, offset = self._place(queue)
        assert life < len(self._lives) - 1 or offset > len(self._lives[-1][queue]), f"{queue}: {offset} is no place"
        self._patiently(lambda: self._pull.seek(queue, "earliest"))
        self._places[queue] = len(self._lives) - 1, 0

    def _has_not_moved(self, queue: MessageQueue) -> None:
        life, offset = self._place(queue)
        assert self._patiently(lambda: self._pull.position(queue)) == offset
        self._places[queue] = life, offset

    def _read_all(self, queue: MessageQueue) -> None:
        self._patiently(lambda: self._pull.seek(queue, "earliest"))
        self._places[queue] = len(self._lives) - 1, 0

        def read() -> bool:
            self._read_by(poll, queue, 100, 1.0)
            return self._places[queue][1] == len(self._lives[-1][queue])

        poll_until(read, 60.0)


@seeded(many=20)
def test_pull_consumer_reads_stored_messages(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, PullsFuzz)
