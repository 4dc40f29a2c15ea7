"""Kill members and brokers at random under load (make soak), and account for every message and offset."""

from __future__ import annotations

import os
import random
import threading
import time
from bisect import bisect
from collections import defaultdict
from pathlib import Path

import pytest

from raymq import cluster
from raymq.client import Admin, MessageQueue, Producer, RayMQError
from tests.chaos.actors import await_restart, kill
from tests.chaos.history import History
from tests.chaos.traffic import Traffic
from tests.member_process import MemberProcess
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.soak, pytest.mark.timeout(1_800)]

NAMESPACE = "member-soak"
KILLS = int(os.environ.get("RAYMQ_SOAK_KILLS", "20"))
SEED = int(os.environ.get("RAYMQ_SOAK_SEED", str(int(time.time()))))
MEMBERS = 3


class OffsetWatch:
    """Read a group's committed offsets repeatedly; record them, and those that decreased."""

    def __init__(self, admin: Admin, group: str) -> None:
        self.seen: dict[MessageQueue, list[tuple[float, int]]] = defaultdict(list)
        self.looks = 0
        self.went_back: list[tuple[MessageQueue, int, int]] = []
        self._admin = admin
        self._group = group
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)

    def last_before(self, queue: MessageQueue, at: float) -> int | None:
        """Return the committed offset of a queue in the last reading before `at`."""
        seen = self.seen[queue]
        number = bisect(seen, (at, -1)) - 1
        return seen[number][1] if number >= 0 else None

    def _watch(self) -> None:
        highest: dict[MessageQueue, int] = {}
        while not self._stopped.wait(0.2):
            try:
                progress = self._admin.group_progress(self._group)
            except RayMQError:
                continue  # no broker answered
            self.looks += 1
            for queue, found in progress.items():
                offset = found.committed_offset
                if offset is None:
                    continue
                if offset < highest.get(queue, 0):
                    self.went_back.append((queue, highest[queue], offset))
                highest[queue] = max(offset, highest.get(queue, 0))
                self.seen[queue].append((time.monotonic(), offset))


def test_random_kills_lose_no_message_or_offset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(SEED)
    with own_ray(), cluster.start(brokers=2, root=tmp_path, namespace=NAMESPACE) as mq:
        admin = Admin(mq)
        admin.create_topic("soak", queues=4)
        traffic = Traffic("soak", [Producer(mq, f"p{number}") for number in range(2)])
        watch = OffsetWatch(admin, "group")
        history = History(traffic.account, watch.last_before)
        name_servers = ";".join(mq.name_servers)

        def member() -> MemberProcess:
            return MemberProcess(name_servers, "group", "soak", history.told)

        members = [member() for _ in range(MEMBERS)]
        traffic.start()
        account = traffic.account
        for number in range(KILLS):
            goal = len(account.acknowledged) + rng.randint(20, 400)
            poll_until(lambda at=goal: len(account.acknowledged) > at, 120, "traffic")  # type: ignore[misc]
            what = rng.choice(["member", "member", "broker-a", "broker-b"])
            if what == "member":
                dies = members.pop(rng.randrange(MEMBERS))
                history.member_killed(dies.pid)
                dies.kill()
                members.append(member())
            else:
                pid = kill(what, NAMESPACE)
                history.broker_killed(what)
                await_restart(what, NAMESPACE, pid)
            history.changed()
            with capsys.disabled():
                print(f"\n  {number + 1}/{KILLS} {account.line(what)}", end="", flush=True)
        traffic.stop()
        poll_until(lambda: not account.lost, 120, "every acknowledged message arrives")
        watch.stop()
        for each in members:
            each.stop()
    causes, unexplained = history.duplicates()
    with capsys.disabled():
        print(f"\n  seed {SEED}: {account.line('all')}; {watch.looks} looks at the offsets", end="")
        for cause, count in causes.most_common():
            print(f"\n  {count:8d} {cause}", end="")
    assert account.lost == set()
    assert account.ghosts == set()
    assert watch.went_back == []
    assert not unexplained, "\n\n".join(unexplained)
    assert causes.total() == account.duplicates
