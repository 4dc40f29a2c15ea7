"""Test `PushConsumer.run` and `raymq worker`, and the signals that end them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.client import (
    Admin,
    ClientClosed,
    Connection,
    ConsumeResult,
    InvalidInput,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    SubscriptionMismatch,
    TopicNotFound,
)
from raymq.cluster.cli import main_group
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = [signal.getsignal(which) for which in SIGNALS]
    yield
    assert [signal.getsignal(which) for which in SIGNALS] == before


def send(mq: Connection, count: int = 1) -> None:
    with Producer(mq, "p") as producer:
        for number in range(count):
            producer.send(Message("t", b"%d" % number), queue=QUEUE)


def start_thread(do: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


class BlockingListener:
    """Block each call until `may_end` is set."""

    def __init__(self) -> None:
        self.called, self.may_end = threading.Event(), threading.Event()

    def __call__(self, _: list[Any]) -> ConsumeResult:
        self.called.set()
        self.may_end.wait(30)
        return ConsumeResult.SUCCESS


@pytest.mark.parametrize("which", SIGNALS)
def test_signal_finishes_running_calls_and_leaves_group(mq: Connection, admin: Admin, which: signal.Signals) -> None:
    send(mq)
    slow = BlockingListener()

    def interrupt() -> None:
        assert slow.called.wait(20)
        os.kill(os.getpid(), which)
        poll_until(lambda: consumer._closed, 10)
        slow.may_end.set()

    consumer = PushConsumer(mq, "g", {"t": "*"}, slow)
    interrupting = start_thread(interrupt)
    consumer.run()
    interrupting.join()
    assert consumer.wait(0)
    progress = admin.group_progress("g")[QUEUE]
    assert (progress.committed_offset, progress.owner) == (1, None)


def test_signal_to_another_thread_ends_run(mq: Connection, admin: Admin) -> None:
    """Signal another thread, as can happen while the process is stopped."""
    consumer = PushConsumer(mq, "g", {"t": "*"}, lambda _: ConsumeResult.SUCCESS)

    def interrupt() -> None:
        poll_until(lambda: consumer.health.running, 10)
        time.sleep(0.2)  # until the main thread waits; otherwise the test checks nothing
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    interrupting = start_thread(interrupt)
    consumer.run()
    interrupting.join()
    assert consumer.wait(0)


@pytest.mark.parametrize("mode", ["queue", "pop"])
def test_second_signal_skips_wait_for_running_calls(mq: Connection, admin: Admin, mode: str) -> None:
    send(mq)
    slow = BlockingListener()

    def interrupt() -> None:
        assert slow.called.wait(20)
        os.kill(os.getpid(), signal.SIGTERM)
        poll_until(lambda: consumer._closed, 10)
        os.kill(os.getpid(), signal.SIGINT)

    consumer = PushConsumer(mq, "g", {"t": "*"}, slow, mode=mode)
    interrupting = start_thread(interrupt)
    began = time.monotonic()
    consumer.run(timeout=60.0)
    assert time.monotonic() - began < 20
    slow.may_end.set()
    interrupting.join()
    assert admin.group_progress("g")[QUEUE].owner is None


def test_run_returns_when_consumer_is_shut_down_elsewhere(mq: Connection, admin: Admin) -> None:
    del admin
    consumer = PushConsumer(mq, "g", {"t": "*"}, lambda _: ConsumeResult.SUCCESS)

    def end() -> None:
        poll_until(lambda: consumer.health.running, 10)
        consumer.shutdown()

    ending = start_thread(end)
    consumer.run()
    ending.join()
    with pytest.raises(ClientClosed):
        consumer.run()


def test_signal_during_start_ends_run(mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    del admin
    consumer = PushConsumer(mq, "g", {"t": "*"}, lambda _: ConsumeResult.SUCCESS)
    start = PushConsumer._start

    def interrupted(self: PushConsumer, attempt: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)  # lets Python run its signal handlers
        start(self, attempt)

    monkeypatch.setattr(PushConsumer, "_start", interrupted)
    consumer.run()
    assert not consumer.health.running


def test_run_raises_start_errors(mq: Connection, admin: Admin) -> None:
    del admin
    consumer = PushConsumer(mq, "g", {"no": "*"}, lambda _: ConsumeResult.SUCCESS, missing_topics="error")
    with pytest.raises(TopicNotFound):
        consumer.run()


def test_run_refuses_other_threads_and_event_loops(mq: Connection, admin: Admin) -> None:
    del admin
    consumer = PushConsumer(mq, "g", {"t": "*"}, lambda _: ConsumeResult.SUCCESS)
    caught = []

    def off_the_main_thread() -> None:
        with pytest.raises(InvalidInput) as error:
            consumer.run()
        caught.append(str(error.value))

    start_thread(off_the_main_thread).join()
    assert "main thread" in caught[0]
    assert "start() and shutdown()" in caught[0]

    async def on_a_loop() -> None:
        with pytest.raises(InvalidInput, match="astart"):
            consumer.run()

    asyncio.run(on_a_loop())


MODULE = """
import asyncio, os, signal
from raymq.client import ConsumeResult
bodies, sizes = [], []

async def on_order(messages):
    await asyncio.sleep(0)
    bodies.extend(bytes(message.body) for message in messages)
    sizes.append(len(messages))
    if len(bodies) >= 6:
        os.kill(os.getpid(), signal.SIGTERM)
    return ConsumeResult.SUCCESS

nothing = None
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "orders_of_a_worker"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / "imports_another.py").write_text("import not_there_either")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    yield name
    sys.modules.pop(name, None)


def test_worker_consumes_until_signal(mq: Connection, admin: Admin, module: str) -> None:
    admin.create_topic("u", queues=1)
    send(mq, 3)
    with Producer(mq, "p") as producer:
        producer.send(Message("u", b"u", tags="x"))
        producer.send(Message("u", b"another tag", tags="y"))
        producer.send(Message("t", b"3", tags="x"), queue=QUEUE)
    line = ["--name-servers", ";".join(mq.name_servers), "worker", f"{module}:on_order", "--group", "g"]
    line += ["--topic", "t", "--topic", "u", "--threads", "2", "--batch-size", "8"]
    done = CliRunner().invoke(main_group, line, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert len(sys.modules[module].bodies) >= 6
    assert admin.group_progress("g")[QUEUE].owner is None


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        ("on_order", "MODULE:LISTENER"),
        ("not_there:on_order", "no module not_there"),
        ("orders_of_a_worker:missing", "orders_of_a_worker has no 'missing'"),
        ("orders_of_a_worker:nothing", "not a function"),
    ],
)
def test_worker_names_listener_not_found(module: str, listener: str, said: str) -> None:
    del module
    done = CliRunner().invoke(main_group, ["worker", listener, "--group", "g", "--topic", "t"])
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_import_error_inside_listener_module_is_raised(module: str) -> None:
    del module
    done = CliRunner().invoke(main_group, ["worker", "imports_another:x", "--group", "g", "--topic", "t"])
    assert isinstance(done.exception, ModuleNotFoundError)
    assert done.exception.name == "not_there_either"


def test_run_raises_error_of_ended_consumer(mq: Connection, admin: Admin) -> None:
    """Replace a member by one with a higher subscription version."""
    del admin
    old = PushConsumer(mq, "g", {"t": "a"}, lambda _: ConsumeResult.SUCCESS)
    new = PushConsumer(mq, "g", {"t": "b"}, lambda _: ConsumeResult.SUCCESS, subscription_version=1)

    def replace() -> None:
        poll_until(lambda: old.health.running, 10)
        new.start()

    replacing = start_thread(replace)
    with pytest.raises(SubscriptionMismatch):
        old.run()
    replacing.join()
    new.shutdown()
