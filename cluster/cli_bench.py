"""The commands `raymq bench ...`, which measure a running cluster."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from raymq.client import Admin, Connection, Message, Producer, PullConsumer, RayMQError
from raymq.cluster.bench.load_run import (
    LoadCounts,
    LoadRun,
    Worker,
    batch_sends,
    gathered_sends,
    repeated_reads,
    single_sends,
)
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.output import console, print_fields, print_json
from raymq.cluster.seconds_option import Seconds

_PREFIX: Final = "raymq-bench"
_QUEUES: Final = 4
#: The messages that a bench of reading stores in its own topic, at most, and the bytes of their bodies.
_STORED_MESSAGES: Final = 100_000
_STORED_BYTES: Final = 256 << 20
_FILL_BATCH: Final = 500

_topic = click.option("--topic", help="Use this topic; by default one of its own, which is deleted at the end.")
_size = click.option("--size", type=click.IntRange(1), default=1024, show_default=True, help="Bytes of each body.")
_seconds = click.option("--seconds", type=Seconds(0.1), default=10.0, show_default=True)
_threads = click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True)


@click.group("bench")
def bench_commands() -> None:
    """Measure the rates and latencies of a running cluster."""


@bench_commands.command("produce")
@_topic
@_size
@_seconds
@_threads
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Messages per call; 1: single sends."
)
@click.option("--linger", type=Seconds(0.0), default=0.0, show_default=True, help="Gather sends for so long.")
@json_option
@click.pass_obj
def produce(
    finder: Finder,
    topic: str | None,
    size: int,
    seconds: float,
    threads: int,
    batch: int,
    linger: float,
    as_json: bool,
) -> None:
    """Send messages for some seconds: rates, and the latency of a call until it is acknowledged.

    With --linger a latency is the time from a send to its acknowledgement. Random bodies are sent, so that they do not
    compress. With --topic the messages stay in the topic, and its consumers receive them.
    """
    if linger and batch > 1:
        raise click.UsageError("give --linger or --batch, not both")
    body = os.urandom(size)
    with finder.connect() as mq, _bench_topic(mq, topic) as name, Producer(mq, _PREFIX, linger=linger) as producer:

        def worker() -> Worker:
            if linger:
                return gathered_sends(producer, name, body)
            return batch_sends(producer, name, body, batch) if batch > 1 else single_sends(producer, name, body)

        fields = {"topic": name, "size": size, "threads": threads, "batch": batch, "linger": linger}
        _measure("sending", fields, [worker() for _ in range(threads)], seconds, as_json=as_json)


@bench_commands.command("consume")
@_topic
@_size
@_seconds
@_threads
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="The most messages per call."
)
@json_option
@click.pass_obj
def consume(
    finder: Finder, topic: str | None, size: int, seconds: float, threads: int, batch: int, as_json: bool
) -> None:
    """Read stored messages for some seconds: rates, and the latency of a call that returns messages.

    Without --topic messages of --size are stored first. The messages are read from the first one on, again and again;
    nothing is committed, and no group is left.
    """
    group = f"{_PREFIX}-{uuid.uuid4().hex[:12]}"
    with finder.connect() as mq, Admin(mq) as admin, _bench_topic(mq, topic) as name, contextlib.ExitStack() as stack:
        if topic is None:
            _fill(mq, name, size)
        consumers = [stack.enter_context(PullConsumer(mq, group)) for _ in range(threads)]
        stack.callback(_quietly, lambda: admin.delete_group(group))
        queues = consumers[0].queues(name)
        parts = [queues[number::threads] for number in range(threads)]
        workers = [repeated_reads(*each, batch) for each in zip(consumers, parts, strict=True) if each[1]]
        fields = {"topic": name, "size": size if topic is None else None, "threads": len(workers), "batch": batch}
        _measure("reading", fields, workers, seconds, as_json=as_json)


@contextlib.contextmanager
def _bench_topic(mq: Connection, topic: str | None) -> Iterator[str]:
    """Yield the topic of a bench.

    Create and delete it if the user has named none.
    """
    if topic is not None:
        yield topic
        return
    name = f"{_PREFIX}-{uuid.uuid4().hex[:12]}"
    with Admin(mq) as admin:
        admin.create_topic(name, queues=_QUEUES)
        try:
            yield name
        finally:
            _quietly(lambda: admin.delete_topic(name), f"topic {name} is left: raymq topic delete {name} --yes")


def _quietly(call: Callable[[], object], hint: str = "") -> None:
    """Clean up; an error must not hide the result of the bench."""
    try:
        call()
    except RayMQError as error:
        if hint:
            click.echo(f"{hint} ({error})", err=True)


def _fill(mq: Connection, topic: str, size: int) -> None:
    body = os.urandom(size)
    messages = max(1, min(_STORED_MESSAGES, _STORED_BYTES // size))
    with Producer(mq, _PREFIX) as producer:
        for first in range(0, messages, _FILL_BATCH):
            producer.send_batch([Message(topic, body) for _ in range(min(_FILL_BATCH, messages - first))])


def _measure(what: str, fields: dict[str, Any], workers: list[Worker], seconds: float, *, as_json: bool) -> None:
    """Run the workers with a progress bar, and print the result.

    Exit with 1 if nothing succeeded.
    """
    with _progress(what, seconds) as shown:
        run = LoadRun(workers, seconds, shown)
        counts = run.run()
    result = {**fields, **_result(counts, run.elapsed)}
    if as_json:
        print_json(result)
    else:
        latency = result.pop("latency")
        print_fields({**result, **{f"latency {name}": _shown(value) for name, value in latency.items()}}, as_json=False)
    if not counts.messages:
        sys.exit(1)


def _result(counts: LoadCounts, elapsed: float) -> dict[str, Any]:
    return {
        "seconds": round(elapsed, 3),
        "messages": counts.messages,
        "bytes": counts.bytes,
        "failed": dict(counts.failed),
        "messages_per_second": counts.messages / elapsed,
        "bytes_per_second": counts.bytes / elapsed,
        "latency": counts.latency.summary(),
    }


def _shown(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3f} ms"


@contextlib.contextmanager
def _progress(what: str, seconds: float) -> Iterator[Callable[[float, int, int], None]]:
    """Show a progress bar on stderr if it is a terminal; yield its update function."""
    from rich.progress import BarColumn, Progress, TextColumn

    is_shown = sys.stderr.isatty()
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(
        *columns, console=console(sys.stderr, quiet=not is_shown), disable=not is_shown, transient=True
    ) as bars:
        task = bars.add_task(what, total=seconds, rate="")

        def update(passed: float, messages: int, size: int) -> None:
            rate = messages / max(passed, 1e-3)
            bars.update(
                task,
                completed=passed,
                rate=f"{rate:,.0f} messages/s, {size / max(passed, 1e-3) / 1e6:,.1f} MB/s",
            )

        yield update
