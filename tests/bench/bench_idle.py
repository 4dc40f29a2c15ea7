"""What doing nothing costs: an idle cluster, and idle push consumers, in percent of one core.

    python bench_idle.py [--json] [--seconds S] [--consumers N]

A cluster of one broker, one name server and one scheduler is left alone, then N push consumers of one connection wait
in a process of their own for messages that do not come. What each process takes is read from /proc/PID/stat: processor
time, which other programs on the machine change little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import ray

from raymq import cluster
from raymq.actors import actor_calls
from raymq.client import Admin, ConsumeResult, PushConsumer

#: A start's own work is over after this.
SETTLE_SECONDS = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """What a process has taken so far, in user and in system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def percent(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    """What each process takes of one core while nothing is asked of it."""
    before = {name: processor_seconds(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    return {name: 100 * (processor_seconds(pid) - before[name]) / seconds for name, pid in pids.items()}


def consume(name_servers: str, count: int) -> None:
    """The program with the idle consumers."""
    with cluster.connect(name_servers=name_servers.split(";")) as mq:
        consumers = [
            PushConsumer(mq, f"idle-{number}", {"idle": "*"}, lambda _: ConsumeResult.SUCCESS)
            for number in range(count)
        ]
        for consumer in consumers:
            consumer.start()
        print("ready", flush=True)
        sys.stdin.read()


def measure(seconds: float, count: int) -> dict[str, float]:
    """Everything, by name."""
    with tempfile.TemporaryDirectory() as root:
        namespace = f"bench-idle-{os.getpid()}"
        with cluster.start(root=root, namespace=namespace, brokers=1) as mq:
            Admin(mq).create_topic("idle", queues=4)
            pids = {
                name: ray.get(actor_calls.find(name, namespace).pid.remote())
                for name in ("broker-a", "name-server-0", "scheduler")
            }
            time.sleep(SETTLE_SECONDS)
            rows = {f"{name}, alone": each for name, each in percent(pids, seconds).items()}
            rows["cluster, alone"] = sum(rows.values())
            child = subprocess.Popen(
                [sys.executable, __file__, "--consume", ";".join(mq.name_servers), "--consumers", str(count)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == b"ready\n"
                time.sleep(SETTLE_SECONDS)
                there = percent({**pids, f"{count} consumers": child.pid}, seconds)
            finally:
                child.kill()
                child.wait()
            rows[f"{count} consumers"] = there.pop(f"{count} consumers")
            return rows | {f"{name}, {count} consumers": each for name, each in there.items()}


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each state is measured")
    parser.add_argument("--consumers", type=int, default=100)
    parser.add_argument("--consume", metavar="NAME_SERVERS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.consume:
        consume(arguments.consume, arguments.consumers)
        return
    rows = measure(arguments.seconds, arguments.consumers)
    if arguments.json:
        print(json.dumps({name: round(value, 2) for name, value in rows.items()}))
        return
    for name, value in rows.items():
        print(f"{name:32}{value:8.2f} %")


if __name__ == "__main__":
    main()
