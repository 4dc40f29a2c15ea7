"""Fuzz push consumers over rebalances: members' output is compared with the logs and with committed offsets.

Members of one group, in processes of their own, join, leave, are killed and pause; brokers pause, are killed and
restarted, and queues are added. In any case each acknowledged message succeeds at some member, a committed offset never
decreases and never passes an unprocessed message, and in an ordered group a message begins after all before it in its
queue have succeeded. The clocks are real: a seed chooses the operations, not their results.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.client.errors import RayMQError
from tests.fork_server import Program
from tests.fuzz import push_member
from tests.fuzz.logs import bodies_of
from tests.fuzz.push_member import GROUP, TOPIC, MemberOptions
from tests.fuzz.seeds import seeded, try_each
from tests.integration.conftest import Services
from tests.polling import poll_until

STRATEGIES: Final = ("average", "sticky", "consistent-hash")
MAX_MEMBERS: Final = 4
LIFE_SECONDS: Final = 12.0


@dataclass(frozen=True, order=True)
class Step:
    """A line of a member's output."""

    at: float
    what: str
    member: int
    queue: MessageQueue
    offset: int
    body: bytes


class ConsumersFuzz:
    """Two brokers, a producer, and the members of a group."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self._directory = directory
        self._seed = seed
        draw = self._random = random.Random(seed)
        self._ordered = draw.random() < 0.6
        self._services = Services(directory / "brokers", names=("broker-a", "broker-b"))
        self._members: dict[int, subprocess.Popen[bytes]] = {}
        self._joined = 0
        self._queues = draw.randint(1, 4)
        self._stored: dict[bytes, None] = {}
        self._commits: dict[MessageQueue, list[tuple[float, int]]] = defaultdict(list)
        self._sent, self._ended = threading.Event(), threading.Event()
        self._options: dict[str, Any] = {
            "consumer": {
                "ordered": self._ordered,
                "strategy": draw.choice(STRATEGIES),
                "batch_size": draw.choice((1, 1, 4, 32)),
                "threads": draw.choice((1, 4, 20)),
                "rate_limit": draw.choice((None, None, None, 200.0)),
                "ordered_retry_interval": 0.05,
            },
            "slow": draw.choice((0.0, 0.01, 0.05)),
            "slowest": draw.choice((0.2, 1.0)),
            "fails": draw.choice((0.0, 0.0, 0.02)),
            "patience": draw.choice((0.0, 1.0, 30.0)),
        }

    def live(self) -> None:
        self.log.append(str(self._options))
        self._services.start()
        try:
            with Connection([self._services.name_server.address]) as mq:
                admin = Admin(mq)
                admin.create_topic(TOPIC, queues=self._queues)
                threads = [threading.Thread(target=each, args=(mq,)) for each in (self._send, self._watch)]
                for thread in threads:
                    thread.start()
                try:
                    self._disturb(admin)
                    self._sent.set()
                    threads[0].join()
                    poll_until(lambda: not self._missing(), 120.0)
                    self._end_members()
                finally:
                    self._sent.set()
                    self._ended.set()
                    for thread in threads:
                        thread.join()
                self._check(bodies_of(mq, TOPIC))
        finally:
            for process in self._members.values():
                process.kill()
                process.wait()
            self._services.stop()

    # -- operations

    def _disturb(self, admin: Admin) -> None:
        draw = self._random
        for _ in range(draw.randint(1, 3)):
            self._join()
        works = (self._join, self._leave, self._die, self._freeze, self._stall, self._crash, self._restart)
        weights = [1, *(draw.choice((0, 1, 3)) for _ in works[1:]), draw.choice((0, 1))]
        until = time.monotonic() + LIFE_SECONDS
        while time.monotonic() < until:
            time.sleep(draw.choice((0.05, 0.5, 1.5, 3.0)))
            draw.choices([*works, partial(self._grow, admin)], weights)[0]()
        if not self._members:
            self._join()

    def _join(self) -> None:
        if len(self._members) >= MAX_MEMBERS:
            return
        number, self._joined = self._joined, self._joined + 1
        options = MemberOptions(
            self._services.name_server.address, str(self._file(number)), self._seed * 100 + number, **self._options
        )
        self._file(number).touch()
        self._members[number] = Program([push_member.__file__, options.to_json()])
        self.log.append(f"join {number}")

    def _leave(self) -> None:
        self._take_one("leave", signal.SIGTERM)

    def _die(self) -> None:
        self._take_one("die", signal.SIGKILL)

    def _take_one(self, how: str, number: signal.Signals) -> None:
        if len(self._members) < 2:
            return
        member = self._random.choice(list(self._members))
        process = self._members.pop(member)
        self.log.append(f"{how} {member}")
        process.send_signal(number)
        threading.Thread(target=process.wait, daemon=True).start()

    def _freeze(self) -> None:
        """Pause a member for longer or shorter than its queues and locks last."""
        if not self._members:
            return
        member = self._random.choice(list(self._members))
        seconds = self._random.uniform(0.2, 4.0)
        self.log.append(f"freeze {member} for {seconds:.1f} s")
        process = self._members[member]
        process.send_signal(signal.SIGSTOP)
        threading.Timer(seconds, process.send_signal, (signal.SIGCONT,)).start()

    def _stall(self) -> None:
        """Pause all brokers for a moment."""
        self.log.append("stall")
        self._services.loop.loop.call_soon_threadsafe(time.sleep, self._random.uniform(0.1, 2.5))

    def _crash(self) -> None:
        self._again("crash", self._services.crash_broker)

    def _restart(self) -> None:
        self._again("restart", self._services.stop_broker)

    def _again(self, how: str, end: Any) -> None:
        name = self._random.choice(self._services.names)
        self.log.append(f"{how} {name}")
        end(name)
        time.sleep(self._random.choice((0.0, 0.3, 1.0, 3.0)))
        self._services.start_broker(name)

    def _grow(self, admin: Admin) -> None:
        self._queues += 1
        self.log.append(f"{self._queues} queues")
        try:
            admin.update_topic(TOPIC, queues=self._queues)
        except RayMQError as error:
            self.log.append(type(error).__name__)

    def _end_members(self) -> None:
        for process in self._members.values():
            process.send_signal(signal.SIGTERM)
        for member, process in self._members.items():
            ended = process.wait(60.0)
            assert ended in {0, -signal.SIGTERM}, f"member {member} ended with {ended}"  # or it had not begun yet

    def _send(self, mq: Connection) -> None:
        draw = random.Random(self._seed)
        with Producer(mq, group="p", timeout=3.0) as producer:
            for number in range(1 << 20):
                if self._sent.wait(draw.choice((0.0, 0.001, 0.01, 0.05))):
                    return
                body = b"%06d" % number
                try:
                    producer.send(Message(TOPIC, body))
                except RayMQError:  # it may be stored nevertheless
                    continue
                self._stored[body] = None

    def _watch(self, mq: Connection) -> None:
        admin = Admin(mq)
        while not self._ended.wait(0.1):
            try:
                progress = admin.group_progress(GROUP)
            except RayMQError:
                continue
            now = time.monotonic()
            for queue, found in progress.items():
                if found.committed_offset is not None and queue.topic == TOPIC:
                    self._commits[queue].append((now, found.committed_offset))

    # -- checks

    def _file(self, member: int) -> Path:
        return self._directory / f"member-{member}"

    def _steps(self) -> list[Step]:
        found = []
        for member in range(self._joined):
            for line in self._file(member).read_text().splitlines():
                at, what, topic, broker, queue_id, offset, body = json.loads(line)
                found.append(Step(at, what, member, MessageQueue(topic, broker, queue_id), offset, body.encode()))
        return sorted(found)

    def _missing(self) -> set[bytes]:
        return set(self._stored) - {step.body for step in self._steps() if step.what == "done"}

    def _check(self, logs: dict[MessageQueue, list[bytes]]) -> None:
        steps = self._steps()
        assert self._missing() == set(), "stored, and no member had it"
        for step in steps:
            if step.queue.topic == TOPIC:  # others are retries
                assert logs[step.queue][step.offset] == step.body, f"{step} is another message"
        self._check_commits(steps)
        if self._ordered:
            self._check_order(steps)

    def _check_commits(self, steps: list[Step]) -> None:
        ended: dict[tuple[MessageQueue, int], float] = {}
        for step in steps:
            if step.what == "done" or (step.what == "failed" and not self._ordered):
                ended.setdefault((step.queue, step.offset), step.at)
        for queue, seen in self._commits.items():
            before = 0
            for at, committed in seen:
                assert committed >= before, f"{queue}: the committed offset went back from {before} to {committed}"
                for offset in range(before, committed):
                    assert ended.get((queue, offset), at + 1) <= at, (
                        f"{queue}: {committed} committed before {offset} ended"
                    )
                before = committed

    def _check_order(self, steps: list[Step]) -> None:
        """Check that a message begins after all before it succeeded, or in the same call with them."""
        succeeded: dict[MessageQueue, set[int]] = defaultdict(set)
        lowest: dict[MessageQueue, int] = defaultdict(int)
        in_call: dict[tuple[MessageQueue, int], set[int]] = defaultdict(set)
        for step in steps:
            queue, offset = step.queue, step.offset
            beside = in_call[queue, step.member]
            if step.what == "begun":
                beside.add(offset)
                before = range(lowest[queue], offset)
                assert not [each for each in before if each not in succeeded[queue] | beside], (
                    f"{step} before older ones"
                )
                continue
            beside.discard(offset)
            if step.what == "done":
                succeeded[queue].add(offset)
                while lowest[queue] in succeeded[queue]:
                    lowest[queue] += 1


@seeded(many=20)
def test_groups_lose_no_message_over_rebalances(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, ConsumersFuzz)
