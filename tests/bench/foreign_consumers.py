"""Consuming from other systems on this machine: Kafka, RabbitMQ streams and Redis, each measured by its own client.

A program, run by `foreign.py` with an interpreter that has the clients. Prints rows as JSON. A backlog is drained once
to warm up, then `ROUNDS` times; the median counts.
    foreign_consumers.py kafka DIRECTORY_OF_JARS SIZE ... | rabbitmq DIRECTORY_OF_PACKAGES SIZE ... | redis
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import struct
import sys
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.bench.foreign_servers import kafka_node, rabbitmq_node, redis_server

#: The backlogs: enough that the first and the last answer of each queue do not count.
MESSAGES = {100: 800_000, 1024: 400_000}
QUEUES = 4
ROUNDS = 3
#: Of one call.
ASKED = 10_000
#: The messages that are processed one by one, as many as by a push consumer, and how many are committed at a time.
POLLED = 50_000
COMMITTED = 1_000
#: The pace at which the way from send to receipt is measured, and for how long.
PACE_PER_SECOND = 1_000
PACED = 3_000
BODY_BYTES = 1024
TIMEOUT = 60.0

Row = dict[str, object]


def kafka_rows(jars: str, sizes: list[int]) -> list[Row]:
    """Draining by `consume(10000)`: messages made for Python, bodies copied, checksums not compared.

    And message by message, with commits.
    """
    from confluent_kafka import Consumer, Producer, TopicPartition

    rows: list[Row] = []
    with kafka_node(jars, {f"t{size}": QUEUES for size in sizes}) as address:
        for size in sizes:
            topic, count = f"t{size}", MESSAGES[size]
            filler = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 1_000_000})
            for number in range(count):
                filler.produce(topic, bytes(size), partition=number % QUEUES)
            filler.flush(TIMEOUT)
            os.sync()  # what the disk still has to take would be measured, too
            settings = {
                "bootstrap.servers": address,
                "group.id": "bench",
                "enable.auto.commit": False,
                # Fetched ahead without a pause: with the defaults it rests for a second whenever its queue is full.
                "queued.min.messages": 1_000_000,
                "fetch.queue.backoff.ms": 1,
            }
            seconds = []
            for _ in range(ROUNDS + 1):
                consumer = Consumer(settings)
                began, left = time.perf_counter(), count
                consumer.assign([TopicPartition(topic, number, 0) for number in range(QUEUES)])
                while left:
                    left -= len(consumer.consume(min(left, ASKED), TIMEOUT))
                seconds.append(time.perf_counter() - began)
                consumer.close()
            rows.append(_rate(f"Kafka, consume({ASKED})", size, seconds[1:]))
            rows += [_poll_and_commit(settings, topic, size), asyncio.run(_get_and_commit(address, topic, size))]
    return rows


def _poll_and_commit(settings: dict[str, object], topic: str, size: int) -> Row:
    """A loop of `poll` as a program writes it, with a commit every `COMMITTED` messages."""
    from confluent_kafka import Consumer, TopicPartition

    seconds, cpu = [], []
    for _ in range(ROUNDS + 1):
        consumer = Consumer(settings)
        began, spent, left = time.perf_counter(), time.process_time(), POLLED
        consumer.assign([TopicPartition(topic, number, 0) for number in range(QUEUES)])
        while left:
            message = consumer.poll(TIMEOUT)
            assert message is not None
            assert len(message.value()) == size
            left -= 1
            if left % COMMITTED == 0:
                consumer.commit(message, asynchronous=True)
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - spent)
        consumer.close()
    return _polled("Kafka, poll and commit", size, seconds[1:], cpu[1:])


async def _get_and_commit(address: str, topic: str, size: int) -> Row:
    """The same by aiokafka's `getone`."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka.structs import TopicPartition

    seconds, cpu = [], []
    for _ in range(ROUNDS + 1):
        consumer = AIOKafkaConsumer(bootstrap_servers=address, group_id="bench-aiokafka", enable_auto_commit=False)
        await consumer.start()
        partitions = [TopicPartition(topic, number) for number in range(QUEUES)]
        began, spent, left = time.perf_counter(), time.process_time(), POLLED
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        while left:
            message = await consumer.getone()
            assert len(message.value) == size
            left -= 1
            if left % COMMITTED == 0:
                await consumer.commit()
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - spent)
        await consumer.stop()
    return _polled("aiokafka, getone and commit", size, seconds[1:], cpu[1:])


def _polled(name: str, size: int, seconds: list[float], cpu: list[float]) -> Row:
    rate, spent_us = POLLED / statistics.median(seconds), statistics.median(cpu) / POLLED * 1e6
    row = {"name": f"baseline: {name}, {size} B", "value": round(rate), "unit": "messages/s"}
    return row | {"cpu_us": [round(spent_us, 2)]}


def rabbitmq_rows(root: str, sizes: list[int]) -> list[Row]:
    """Draining a stream by rstream, each message given to a callback as the bytes that were sent."""
    with rabbitmq_node(root) as port:
        return [asyncio.run(_drain_stream(port, size)) for size in sizes]


async def _drain_stream(port: int, size: int) -> Row:
    from rstream import Consumer, Producer

    access = {"host": "127.0.0.1", "port": port, "username": "guest", "password": "guest"}
    stream, count = f"s{size}", MESSAGES[size]
    async with Producer(**access) as producer:
        await producer.create_stream(stream)
        for _ in range(0, count, 500):
            await producer.send_batch(stream, [bytes(size)] * 500)
    os.sync()
    seconds = []
    async with Consumer(**access) as consumer:
        for _ in range(ROUNDS + 1):
            began, left = time.perf_counter(), count
            done = asyncio.Event()

            def received(_message: bytes, _context: object, done: asyncio.Event = done) -> None:
                nonlocal left
                left -= 1
                if not left:
                    done.set()

            subscription = await consumer.subscribe(stream, received)
            await asyncio.wait_for(done.wait(), TIMEOUT)
            seconds.append(time.perf_counter() - began)
            await consumer.unsubscribe(subscription)
    return _rate("RabbitMQ streams, rstream", size, seconds[1:])


def redis_rows() -> list[Row]:
    """From before XADD to behind XREAD, which another process waits in, as ours do."""
    import redis

    apart = multiprocessing.get_context("spawn")
    with redis_server() as port:
        sender = redis.Redis("127.0.0.1", port)
        version = sender.info("server")["redis_version"]
        ours, theirs = apart.Pipe()
        reader = apart.Process(target=_read_stream, args=(port, theirs))
        reader.start()
        ours.recv()
        padding = bytes(BODY_BYTES - struct.calcsize("d"))
        due = time.perf_counter()
        for _ in range(PACED):
            due += 1 / PACE_PER_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
            sender.xadd("s", {"b": struct.pack("d", time.perf_counter()) + padding})
        times = ours.recv()
        reader.join(TIMEOUT)
    ordered = sorted(time_ * 1e6 for time_ in times[PACED // 10 :])
    name = f"baseline: Redis {version} XADD to XREAD, everysec, 1,000 messages/s, 1 KiB"
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    return [{"name": name, "value": round(p50), "unit": "us p50", "p99": round(p99)}]


def _read_stream(port: int, pipe: Pipe) -> None:
    """Say that it reads, then the seconds that each message took."""
    import redis

    client, last, times = redis.Redis("127.0.0.1", port), b"0", []
    client.ping()
    pipe.send("ready")
    while len(times) < PACED:
        ((_, entries),) = client.xread({"s": last}, block=int(TIMEOUT * 1000))
        now, last = time.perf_counter(), entries[-1][0]
        times += [now - struct.unpack_from("d", fields[b"b"])[0] for _, fields in entries]
    pipe.send(times)


def _rate(name: str, size: int, seconds: list[float]) -> Row:
    rate = MESSAGES[size] / statistics.median(seconds)
    return {"name": f"baseline: {name}, {size} B", "value": round(rate), "unit": "messages/s"}


if __name__ == "__main__":
    system, *arguments = sys.argv[1:]
    if system == "redis":
        rows = redis_rows()
    else:
        rows = (kafka_rows if system == "kafka" else rabbitmq_rows)(arguments[0], list(map(int, arguments[1:])))
    print(json.dumps(rows))
