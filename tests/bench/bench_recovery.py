"""How soon a broker that was killed acknowledges again, and where the time goes.

    python bench_recovery.py [--json] [--kills N] [--pause S] [--replicas N]

A thread sends one message after the other, at the default settings, to a cluster of one broker, whose process is killed
(SIGKILL) N times. From the kill to the first acknowledgement behind it the parts are: until Ray has begun the actor in
another process (`process`: its start, and all imports), until that listens (`listening`: recovery), and until the first
send is acknowledged (`acknowledged`: registration, the client's route and connection). `spare`: whether the process was
there before the kill.

With several replicas the master is killed; `acknowledged` is then the time from `process` to the first acknowledgement,
below 0 where another replica was master before.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

import ray

from raymq import cluster
from raymq.actors import actor_calls
from raymq.actors.naming import replica_name
from raymq.client import Admin, Message, Producer
from raymq.client.errors import SendError

#: How long a kill may take to be recovered from.
GIVE_UP_SECONDS = 60.0
_LOOK_SECONDS = 0.002


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def broker_pids(raylet: int, killed: int) -> list[int]:
    """The processes of a raylet that run the actor `Broker`, but for the one that was killed."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != killed:
            try:
                title = (process / "cmdline").read_bytes()
                if title.startswith(b"ray::Broker") and int(stat_fields(int(process.name))[1]) == raylet:
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def listens(address: str) -> bool:
    """Whether somebody accepts connections there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 0.5).close()
    except OSError:
        return False
    return True


class Sending:
    """A thread that sends, and tells when it was answered last."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._stopped = threading.Event()
        #: When a send was acknowledged last.
        self.acknowledged = 0.0
        self.errors = 0
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        while not self._stopped.is_set():
            try:
                self._producer.send(Message("recovery", b"x"))
            except SendError:
                self.errors += 1
            else:
                self.acknowledged = time.monotonic()
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """End it."""
        self._stopped.set()
        self._thread.join()


def wait(predicate: object, what: str) -> float:
    """The time at which `predicate()` became true."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not predicate():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(_LOOK_SECONDS)
    return time.monotonic()


def started(pid: int) -> float:
    """When a process started, by the monotonic clock, to a hundredth of a second."""
    ticks = int(stat_fields(pid)[19])
    return ticks / os.sysconf("SC_CLK_TCK") - time.clock_gettime(time.CLOCK_BOOTTIME) + time.monotonic()


def killed_master(names: list[str], namespace: str) -> int:
    """Kill the process of the broker that is master; its process id."""
    for name in names:
        status = ray.get(actor_calls.find(name, namespace).status.remote())
        if status.role == "master":
            os.kill(status.pid, signal.SIGKILL)
            return int(status.pid)
    raise RuntimeError("no broker is master")


def measure_failover(kills: int, pause: float, replicas: int) -> dict[str, list[float]]:
    """The parts of each succession of a killed master, in seconds."""
    parts: dict[str, list[float]] = {each: [] for each in ("process", "acknowledged", "all")}
    with tempfile.TemporaryDirectory() as root:
        namespace = f"bench-recovery-{os.getpid()}"
        names = [replica_name("broker-a", number) for number in range(replicas)]
        copies = cluster.start(root=root, namespace=namespace, brokers=1, replicas=replicas)
        with copies as mq, Producer(mq, "bench") as producer:
            Admin(mq).create_topic("recovery", queues=4)
            sending = Sending(producer)
            for _ in range(kills):
                time.sleep(pause)
                before = {int(ray.get(actor_calls.find(name, namespace).pid.remote())) for name in names}
                raylet = int(stat_fields(min(before))[1])
                pid = killed_master(names, namespace)
                killed = time.monotonic()
                process = acknowledged = 0.0
                while not (process and acknowledged):
                    if not process and set(broker_pids(raylet, pid)) - before:
                        process = time.monotonic()
                    # A send that was under way at the kill is answered at once, if at all.
                    if not acknowledged and sending.acknowledged > killed + 0.1:
                        acknowledged = sending.acknowledged
                    if time.monotonic() > killed + GIVE_UP_SECONDS:
                        raise TimeoutError("a process, or an acknowledgement")
                    time.sleep(_LOOK_SECONDS)
                parts["process"].append(process - killed)
                parts["acknowledged"].append(acknowledged - process)
                parts["all"].append(acknowledged - killed)
            sending.stop()
            parts["errors"] = [float(sending.errors)]
    return parts


def measure(kills: int, pause: float) -> dict[str, list[float]]:
    """The parts of each recovery, in seconds."""
    parts: dict[str, list[float]] = {each: [] for each in ("process", "listening", "acknowledged", "all", "spare")}
    with tempfile.TemporaryDirectory() as root:
        namespace = f"bench-recovery-{os.getpid()}"
        with cluster.start(root=root, namespace=namespace, brokers=1) as mq, Producer(mq, "bench") as producer:
            Admin(mq).create_topic("recovery", queues=4)
            broker = actor_calls.find("broker-a", namespace)
            address = ray.get(broker.address.remote(10.0, 10.0))
            sending = Sending(producer)
            for _ in range(kills):
                time.sleep(pause)
                pid = ray.get(broker.pid.remote())
                raylet = int(stat_fields(pid)[1])
                killed = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                process = wait(lambda: broker_pids(raylet, pid), "a process")  # noqa: B023 - called at once
                new = broker_pids(raylet, pid)[0]
                listening = wait(lambda: listens(address), "the port")
                wait(lambda: sending.acknowledged > listening, "an acknowledgement")  # noqa: B023
                parts["process"].append(process - killed)
                parts["listening"].append(listening - process)
                parts["acknowledged"].append(sending.acknowledged - listening)
                parts["all"].append(sending.acknowledged - killed)
                parts["spare"].append(float(started(new) < killed))
            sending.stop()
            parts["errors"] = [float(sending.errors)]
    return parts


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pause", type=float, default=8.0, help="seconds between a recovery and the next kill")
    parser.add_argument("--replicas", type=int, default=1, help="of the broker whose master is killed")
    arguments = parser.parse_args()
    if arguments.replicas > 1:
        parts = measure_failover(arguments.kills, arguments.pause, arguments.replicas)
    else:
        parts = measure(arguments.kills, arguments.pause)
    if arguments.json:
        print(json.dumps({name: [round(value, 3) for value in values] for name, values in parts.items()}))
        return
    print(f"{'':14}{'p50':>8}{'longest':>9}")
    for name, values in parts.items():
        print(f"{name:14}{statistics.median(values):8.2f}{max(values):9.2f}")


if __name__ == "__main__":
    main()
