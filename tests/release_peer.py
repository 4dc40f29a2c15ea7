"""Run one side of a cluster whose other side is another release; PYTHONPATH selects the release.

    release_peer.py broker NAME DIRECTORY      a name server and a broker; prints the name server's address
    release_peer.py replica SPEC               one replica of a group, as replica_process.py; prints its address
    release_peer.py cluster ROOT NAMESPACE     a cluster of two replicas on its own Ray; prints the addresses of its
                                               name server and of Ray
    release_peer.py exchange NAME_SERVER       sends and receives with all clients, and prints the results as JSON
    release_peer.py look NAME_SERVER           reads the messages of `exchange`, and prints them as JSON

The first three end with their standard input. The program uses only stable interfaces of RayMQ, as it must run with
each release; it is not a test.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import raymq.storage.errors
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SimpleConsumer,
)

ROWS = 20
STORE = {"commitlog_file_bytes": 1 << 22, "index_slots": 1_000, "index_entries": 10_000}


async def broker(name: str, directory: str) -> None:
    from raymq.actors.broker.service import BrokerService
    from raymq.actors.names.service import NameServerService
    from raymq.actors.protocol import BrokerSpec, NameServerSpec

    names = await NameServerService.start(NameServerSpec(0, str(Path(directory).parent), "127.0.0.1", 0))
    spec = BrokerSpec(name, "test", directory, "127.0.0.1", (names.address,), store=STORE)
    service = await BrokerService.start(spec, "node")
    print(names.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await service.stop()
    await names.stop()


async def replica(fields: dict[str, Any]) -> None:
    from raymq.actors.broker.service import BrokerService
    from raymq.actors.protocol import BrokerSpec

    service = await BrokerService.start(BrokerSpec(**{**fields, "name_servers": tuple(fields["name_servers"])}), "node")
    print(service.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await service.stop()


def cluster(root: str, namespace: str) -> None:
    import ray

    from raymq import cluster

    config = {"replication": "sync", "commitlog_file_bytes": 1 << 24, "index_slots": 1_000}
    with cluster.start(1, Path(root), namespace, replicas=2, config=config) as mq:
        print(mq.name_servers[0], ray.get_runtime_context().gcs_address, flush=True)
        sys.stdin.read()


def bodies(numbers: range) -> list[bytes]:
    return [b"m%03d" % number for number in numbers]


def decoded(messages: list[bytes]) -> list[str]:
    return sorted(message.decode() for message in messages)


def pull_bodies(mq: Connection, topic: str) -> list[bytes]:
    found: list[bytes] = []
    with PullConsumer(mq, "pullers") as pull:
        for queue in pull.queues(topic):
            pull.seek(queue, "earliest")
            while pull.position(queue) < pull.offsets(queue)[1]:
                found += [each.body for each in pull.poll(queue, 100, timeout=5.0)]
            pull.commit(queue, pull.position(queue))
    return found


def wait_until(found: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until the condition is true or the time is over, without an error."""
    deadline = time.monotonic() + seconds
    while not found() and time.monotonic() < deadline:
        time.sleep(0.02)


def exchange(mq: Connection) -> dict[str, Any]:
    result: dict[str, Any] = {}
    with Admin(mq) as admin, Producer(mq, "p") as producer, Producer(mq, "i", idempotent=True) as numbered:
        for topic in ("plain", "pushed", "popped", "timed", "numbered", "written"):
            admin.create_topic(topic, queues=2)
        result["states"] = [each.state for each in admin.cluster_info().brokers]
        for body in bodies(range(5)):
            producer.send(Message("plain", body, tags="a", keys=["k"]))
        producer.send_batch([Message("plain", body) for body in bodies(range(5, 50))])
        producer.send_async(Message("plain", b"m050")).result(10)
        result["pulled"] = decoded(pull_bodies(mq, "plain"))
        result["queried"] = decoded([each.body for each in admin.query_by_key("plain", "k")])
        for number in range(0, ROWS, 2):
            numbered.send_batch([Message("numbered", body) for body in bodies(range(number, number + 2))])
        numbered.send(Message("numbered", b"m020"))
        result["numbered"] = decoded(pull_bodies(mq, "numbered"))
        result["pushed"] = consume_pushed(mq, producer)
        result["popped"] = receive_popped(mq, producer)
        result["timed"], result["recalled"] = consume_timed(mq, producer)
        result["written"] = write_staged(mq)
        producer.send(Message("timed", b"later", deliver_at=time.time() + 3_600))
    return result


def consume_pushed(mq: Connection, producer: Producer) -> list[str]:
    taken: list[bytes] = []
    lock = threading.Lock()
    failed: set[bytes] = set()

    def listener(messages: list[ReceivedMessage]) -> list[ConsumeResult | Retry]:
        with lock:
            fails = [each.body == b"m003" and each.body not in failed for each in messages]
            failed.update(each.body for each, fail in zip(messages, fails, strict=True) if fail)
            taken.extend(each.body for each, fail in zip(messages, fails, strict=True) if not fail)
        return [Retry(1) if fail else ConsumeResult.SUCCESS for fail in fails]

    with PushConsumer(mq, "pushers", subscriptions={"pushed": "*"}, listener=listener):
        for body in bodies(range(ROWS)):
            producer.send(Message("pushed", body))
        wait_until(lambda: len(taken) >= ROWS)
    return decoded(taken)


def receive_popped(mq: Connection, producer: Producer) -> list[str]:
    taken: list[bytes] = []
    producer.send_batch([Message("popped", body) for body in bodies(range(ROWS))])
    with SimpleConsumer(mq, "poppers", {"popped": "*"}) as consumer:

        def all_there() -> bool:
            messages = consumer.receive(max_messages=8, invisible_duration=30.0, await_duration=2.0)
            if messages and consumer.ack(messages):
                taken.extend(each.body for each in messages)
            return len(taken) >= ROWS

        wait_until(all_there)
    return decoded(taken)


def consume_timed(mq: Connection, producer: Producer) -> tuple[list[str], str]:
    taken: list[bytes] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        taken.extend(each.body for each in messages)
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "sleepers", subscriptions={"timed": "*"}, listener=listener):
        called_back = producer.send(Message("timed", b"never", deliver_at=time.time() + 600))
        status = producer.recall(called_back).name
        producer.send(Message("timed", b"due", deliver_at=time.time() + 1))
        wait_until(lambda: bool(taken))
    return decoded(taken), status


def write_staged(mq: Connection) -> list[str]:
    """Do what Spark's sink does, without Spark: commit one write, and abort another."""
    try:
        from raymq.client.bulk.staged_write import StagedWrite
        from raymq.client.bulk.staged_writer import StagedWriter
    except ModuleNotFoundError:  # the previous release
        from raymq.client.bulk.committing import StagedWrite  # type: ignore[import-not-found, no-redef]
        from raymq.client.bulk.staging import StagedWriter  # type: ignore[import-not-found, no-redef]
    from raymq.storage.records.record import encode, encode_properties

    with Admin(mq) as admin:
        (name,) = {each.name for each in admin.cluster_info().brokers}
    for commits, numbers in ((True, range(ROWS)), (False, range(ROWS, 2 * ROWS))):
        write = StagedWrite.open(mq, "written", {name})
        assert isinstance(write, StagedWrite)
        records = [
            encode("written", 0, body, encode_properties({"UNIQ_KEY": body.decode()}), born_timestamp_ms=1,
                   born_host=("127.0.0.1", 0))
            for body in bodies(numbers)
        ]  # fmt: skip
        sizes = np.array([len(record) for record in records], np.int32)
        with StagedWriter(mq.name_servers) as writer:
            queue = MessageQueue("written", name, 0)
            writer.stage(write.transaction, "p", 0, queue, b"".join(records), sizes, home=write.home)
        if commits:
            write.commit([("p", name, ROWS)])
        else:
            write.abort({name})
    return decoded(pull_bodies(mq, "written"))


def read_back(mq: Connection) -> dict[str, Any]:
    with Admin(mq) as admin, PullConsumer(mq, "pullers") as pull:
        return {
            "plain": decoded(pull_bodies(mq, "plain")),
            "written": decoded(pull_bodies(mq, "written")),
            "committed": sum(pull.committed(queue) or 0 for queue in pull.queues("plain")),
            "states": [each.state for each in admin.cluster_info().brokers],
            "versions": [getattr(each, "version", None) for each in admin.cluster_info().brokers],
        }


def main(what: str, *arguments: str) -> None:
    if what == "broker":
        asyncio.run(broker(*arguments))
    elif what == "cluster":
        cluster(*arguments)
    elif what == "replica":
        asyncio.run(replica(json.loads(arguments[0])))
    else:
        with Connection([arguments[0]]) as mq:
            done = exchange(mq) if what == "exchange" else read_back(mq)
        print(json.dumps({"code": raymq.storage.errors.__file__, **done}))


if __name__ == "__main__":
    main(*sys.argv[1:])
