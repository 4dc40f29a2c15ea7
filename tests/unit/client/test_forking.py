"""Test the reset order in a forked child: connections first, then their users."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from raymq.actors.protocol import MessageQueue, RecordPositions, SendStatus
from raymq.actors.sending.sender import SendOutcome
from raymq.client import ConsumeResult, Producer, PushConsumer
from raymq.client.connection import Connection
from raymq.client.fork_hooks import register_child_reset
from raymq.client.produce import sent_results
from raymq.client.produce.sent_results import BatchResults
from tests.forked_child import run_in_child


class Owner:
    """An object that records when it is renewed."""

    def __init__(self, name: str, renewed: list[str], *, before_users: bool) -> None:
        self.name = name
        self.renewed = renewed
        register_child_reset(self, Owner.renew, before_users=before_users)

    def renew(self) -> None:
        self.renewed.append(self.name)


def test_used_objects_are_reset_before_their_users() -> None:
    renewed: list[str] = []
    owners = [Owner("user", renewed, before_users=False), Owner("used", renewed, before_users=True)]
    owners += [Owner("user too", renewed, before_users=False), Owner("used too", renewed, before_users=True)]
    assert run_in_child(lambda: ", ".join(renewed)) == "used, used too, user, user too"
    assert renewed == []  # the parent's objects are unchanged


def test_child_connection_knows_its_inherited_producer() -> None:
    mq = Connection(["127.0.0.1:1"])
    producer = Producer(mq, "p", linger=1.0)
    assert run_in_child(lambda: str(producer in mq._clients)) == "True"
    mq.close()


def test_child_connection_knows_an_unstarted_push_consumer() -> None:
    mq = Connection(["127.0.0.1:1"])
    consumer = PushConsumer(mq, "g", {"t": "*"}, lambda _: ConsumeResult.SUCCESS)
    assert run_in_child(lambda: str(consumer in mq._clients)) == "True"
    mq.close()


@pytest.mark.parametrize("first", ["raymq.client.fork_hooks", "raymq.client.lazy_record", "raymq.client.connection"])
def test_reset_order_is_independent_of_the_import_order(first: str) -> None:
    script = f"""
        import {first}, os
        from raymq.client import Producer
        from raymq.client.connection import Connection

        mq = Connection(["127.0.0.1:1"])
        producer = Producer(mq, "p", linger=1.0)
        child = os.fork()
        if not child:
            os._exit(0 if producer in mq._clients else 1)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert done.returncode == 0


def test_child_results_do_not_wait_for_parent_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child must not inherit the lock of a thread that builds results."""
    at_it, go_on = threading.Event(), threading.Event()

    def make(_sent: SendOutcome, numbers: Sequence[str | int]) -> list[Any]:
        if threading.current_thread() is not threading.main_thread():
            at_it.set()
            assert go_on.wait(30)
        return list(numbers)

    placed = RecordPositions("t", (0,), (0,), (0,))
    sent = SendOutcome(SendStatus.SEND_OK, MessageQueue("t", "b", 0), "127.0.0.1:1", placed)
    monkeypatch.setattr(sent_results, "results_of", make)
    thread = threading.Thread(target=lambda: len(list(BatchResults([sent], ["mine"]))))
    thread.start()
    assert at_it.wait(30)

    def look() -> str:
        signal.alarm(10)
        return str(list(BatchResults([sent], ["the child's"])))

    assert run_in_child(look) == '["the child\'s"]'
    go_on.set()
    thread.join()
