"""Test that 64 pop members on 4 queues share tasks of 10 ms to 2 s evenly, each task once.

As a program, `test_shared_long_tasks.py NAME_SERVERS TOPIC MEMBERS` runs that number of members in one process. It
prints "ready", begins at the first input line, and prints for each task its number, start and end (monotonic seconds).
It ends when its standard input is closed.
"""

from __future__ import annotations

import heapq
import random
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage
from tests.fork_server import Program
from tests.integration.conftest import Services
from tests.polling import poll_until

# Among the soaks, which run one after the other: another suite on the same cores takes more than the missing 5 %.
pytestmark = [pytest.mark.integration, pytest.mark.soak]

PROCESSES, MEMBERS, TASKS = 4, 64, 2_000
LEAST_SHARE = 0.95
#: Other load on the machine can only lower the share.
ATTEMPTS = 3


def ideal_seconds(tasks: list[tuple[float, float]]) -> float:
    """Return the ideal duration: each free member takes the next task at once.

    Tasks keep their order and their measured duration: the delay of a loaded machine is not idle time of members.
    """
    free_at = [0.0] * MEMBERS
    for begun, ended in sorted(tasks):
        heapq.heapreplace(free_at, free_at[0] + ended - begun)
    return max(free_at)


def test_members_share_long_tasks_evenly(services: Services, mq: Connection, admin: Admin) -> None:
    shares: list[float] = []
    while max(shares, default=0.0) < LEAST_SHARE and len(shares) < ATTEMPTS:
        shares.append(measure_share(services, mq, admin, f"tasks{len(shares)}"))
    assert max(shares) >= LEAST_SHARE


def measure_share(services: Services, mq: Connection, admin: Admin, topic: str) -> float:
    """Run all tasks in a new group; return the share of the ideal duration."""
    admin.create_topic(topic, queues=2)  # on each of two brokers
    rng = random.Random(7)
    with Producer(mq, "p") as producer:
        tasks = [Message(topic, b"%d %r" % (number, 0.01 * 200 ** rng.random())) for number in range(TASKS)]
        producer.send_batch(tasks[: TASKS // 2])
        producer.send_batch(tasks[TASKS // 2 :])
    done: list[tuple[int, float, float]] = []

    def read(process: Program) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            number, begun, ended = line.split()
            done.append((int(number), float(begun), float(ended)))

    with ExitStack() as running:
        arguments = [__file__, services.name_server.address, topic, str(MEMBERS // PROCESSES)]
        processes = [
            running.enter_context(Program(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(PROCESSES)
        ]
        for process in processes:
            running.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        readers = [threading.Thread(target=read, args=(process,), daemon=True) for process in processes]
        for process, reader in zip(processes, readers, strict=True):
            reader.start()
            assert process.stdin is not None
            print("go", file=process.stdin, flush=True)
        poll_until(lambda: len(done) >= TASKS, 120)
        for process, reader in zip(processes, readers, strict=True):
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == 0
            reader.join(30)
    assert sorted(number for number, _, _ in done) == list(range(TASKS)), "each of them once"
    took = max(ended for _, _, ended in done) - min(begun for _, begun, _ in done)
    share = ideal_seconds([(begun, ended) for _, begun, ended in done]) / took
    work = sum(ended - begun for _, begun, ended in done) / MEMBERS
    print(f"{took:.2f} s, {share:.1%} of the ideal, {work / took:.1%} of what has no end")
    return share


def run_members(name_servers: str, topic: str, members: str) -> None:
    """Consume with this number of members until the standard input ends."""
    lock = threading.Lock()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        (message,) = messages
        begun = time.monotonic()
        number, seconds = message.body.split()
        time.sleep(float(seconds))
        with lock:
            print(int(number), begun, time.monotonic(), flush=True)
        return ConsumeResult.SUCCESS

    with Connection([name_servers]) as mq, ExitStack() as running:
        consumers = [
            PushConsumer(mq, f"of-{topic}", {topic: "*"}, listener, mode="pop", threads=1, lease=15.0)
            for _ in range(int(members))
        ]
        for consumer in consumers:
            consumer.pause()
            running.enter_context(consumer)
        print("ready", flush=True)
        sys.stdin.readline()
        for consumer in consumers:
            consumer.resume()
        sys.stdin.read()


if __name__ == "__main__":
    run_members(*sys.argv[1:])
