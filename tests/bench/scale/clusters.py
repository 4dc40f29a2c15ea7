"""The same load on clusters of 1, 2 and 4 brokers: what a message costs, and what idles. And what replicas add to that.

The clusters are real ones on a Ray of this machine, one after the other. Queues, messages, producers and consumers are
the same in each; so is the number of messages a second, far below what two cores can do. What is counted is processor
time, which another broker must not add to a message.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil
import ray

from raymq import cluster
from raymq.actors import actor_calls
from raymq.actors.naming import COORDINATOR_NAME, SCHEDULER_NAME, is_broker_name, is_keeper_name, is_name_server_name
from raymq.client import Admin
from raymq.cluster import cluster_launch, ray_runtime
from tests.bench.command_program import CommandProgram
from tests.bench.processor_time import processor_us
from tests.bench.scale.process_figures import processor_us_a_second
from tests.bench.scale.rows import Row, RowCollector

PART: Final = "clusters"
BROKERS: Final = (1, 2, 4)
GROUPS: Final = (1, 2)
#: Of all brokers together, so that nothing but their number differs.
QUEUES: Final = 8
PRODUCERS: Final = 2
CONSUMERS: Final = 2
#: Messages a second, of all producers together.
RATE: Final = 20_000
_TOPIC: Final = "load"
#: What Ray is told of; brokers ask for none.
_CPUS: Final = 4
_START_SECONDS: Final = 60.0
#: What an actor may take to say which process it is.
_CALL_SECONDS: Final = 30.0
#: Of what was started it takes so long until it does only what it always does.
_SETTLED_SECONDS: Final = 5.0


def stage_of(brokers: int) -> str:
    """What the rows of such a cluster are told under."""
    return f"{brokers} broker{'s' if brokers > 1 else ''}"


def stage_of_groups(groups: int) -> str:
    """The same of broker groups with two replicas."""
    return f"{groups} group{'s' if groups > 1 else ''} of 2"


def run(brokers: Sequence[int], seconds: float, folder: Path, collector: RowCollector) -> None:
    """Clusters of so many brokers, each watched for `seconds` while it is idle, and under load for as long; and of as
    many groups of two replicas, as far as `GROUPS` has them.
    """
    ray_runtime.start_embedded(_CPUS)
    try:
        logging.getLogger("ray").setLevel(logging.ERROR)
        for count in brokers:
            with _cluster(count, 1, folder) as (name_servers, pids), collector.step(f"{count} brokers"):
                collector.add(_loaded(count, name_servers, pids, seconds))
        for groups in sorted(set(brokers) & set(GROUPS)):
            with _cluster(groups, 2, folder) as (_, pids), collector.step(f"{groups} groups of 2 replicas"):
                time.sleep(min(seconds, _SETTLED_SECONDS))
                collector.add(_idle(stage_of_groups(groups), pids, seconds))
    finally:
        ray.shutdown()


@contextmanager
def _cluster(brokers: int, replicas: int, folder: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """A cluster's name servers and the processes of its actors, by their names; and those of Ray."""
    namespace = f"scale-{brokers}-{replicas}"
    with tempfile.TemporaryDirectory(dir=folder, prefix="raymq-scale-") as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that replicas share a machine
        with cluster.start(brokers, root, namespace, replicas=replicas) as mq:
            Admin(mq).create_topic(_TOPIC, queues=QUEUES // brokers)
            names = cluster_launch.names(namespace)
            calls = {name: actor_calls.find(name, namespace).pid.remote() for name in names}
            pids = {name: actor_calls.result(name, call, _CALL_SECONDS) for name, call in calls.items()}
            yield ";".join(mq.name_servers), {**pids, **_processes_of_ray()}


def _processes_of_ray() -> dict[str, int]:
    """Those that each machine of a Ray cluster has, and the head's."""
    found = {each.name(): each.pid for each in psutil.Process().children(recursive=True)}
    return {name: found[name] for name in ("raylet", "gcs_server") if name in found}


def role(name: str) -> str:
    """What a process is, by its name."""
    by_name = {SCHEDULER_NAME: "scheduler", COORDINATOR_NAME: "coordinator", "raylet": "raylet", "gcs_server": "GCS"}
    for applies, told in (
        (is_name_server_name, "name server"),
        (is_broker_name, "brokers"),
        (is_keeper_name, "keepers"),
    ):
        if applies(name):
            return told
    return by_name.get(name, name.rstrip("0123456789"))


def _by_role(used: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, each in used.items():
        found[role(name)] = found.get(role(name), 0.0) + each
    return found


def _idle(stage: str, pids: dict[str, int], seconds: float) -> Iterator[Row]:
    for name, used in _by_role(processor_us_a_second(pids, seconds)).items():
        yield Row(PART, name, stage, "CPU, no messages", used / 1000, "ms/s")


def _loaded(brokers: int, name_servers: str, pids: dict[str, int], seconds: float) -> Iterator[Row]:
    stage = stage_of(brokers)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as logs:

        def clients(what: str, count: int) -> list[CommandProgram]:
            made = []
            for number in range(count):
                command = [sys.executable, str(Path(__file__).with_name("load_client.py")), what, name_servers, _TOPIC]
                made.append(stack.enter_context(CommandProgram(command, Path(logs), Path(logs, f"{what}{number}"))))
            return made

        consumers, producers = clients("consume", CONSUMERS), clients("produce", PRODUCERS)
        everyone = {
            **pids,
            **{f"consumers{number}": each.pid for number, each in enumerate(consumers)},
            **{f"producers{number}": each.pid for number, each in enumerate(producers)},
        }
        _send(producers, RATE // 2, consumers)
        time.sleep(min(seconds, _SETTLED_SECONDS))
        idle = processor_us_a_second(everyone, seconds)
        before = {name: processor_us(pid) for name, pid in everyone.items()}
        began = time.monotonic()
        sent = _send(producers, int(RATE * seconds), consumers)
        took = time.monotonic() - began
        used = {name: processor_us(pid) - before[name] for name, pid in everyone.items()}
        for name, each in _by_role(idle).items():
            yield Row(PART, name, stage, "CPU, no messages", each / 1000, "ms/s")
        above = _by_role({name: max(0.0, used[name] - idle[name] * took) / sent for name in everyone})
        for name in ("brokers", "producers", "consumers", "name server", "scheduler"):
            yield Row(PART, name, stage, "CPU of a message, above that", above[name], "us")
        yield Row(PART, "all of RayMQ", stage, "CPU of a message, above that", sum(above.values()), "us")
        yield Row(PART, "all of RayMQ", stage, "messages a second", sent / took, "1/s")


def _send(producers: list[CommandProgram], count: int, consumers: Iterable[CommandProgram]) -> int:
    """Have so many sent and consumed; how many it were."""
    each = max(1, count // len(producers))
    until = _consumed(consumers) + each * len(producers)
    for producer in producers:
        producer.tell(f"send {each} {RATE / len(producers)}")
    for producer in producers:
        producer.answer()
    deadline = time.monotonic() + _START_SECONDS
    while _consumed(consumers) < until:
        if time.monotonic() > deadline:
            raise TimeoutError(f"of {until} messages {_consumed(consumers)} were consumed")
        time.sleep(0.05)
    return each * len(producers)


def _consumed(consumers: Iterable[CommandProgram]) -> int:
    found = 0
    for consumer in consumers:
        consumer.tell("consumed")
        found += int(consumer.answer())
    return found
