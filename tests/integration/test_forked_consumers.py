"""Test that a forked child sends no requests to brokers in the name of its parent's consumers."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter
from inspect import isawaitable

import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.client import Admin
from tests.integration.conftest import Services

pytestmark = pytest.mark.integration

LEAVE_CODES = (RequestCode.UNLOCK_BATCH_MQ, RequestCode.UNREGISTER_CLIENT, RequestCode.CHANGE_MESSAGE_INVISIBLETIME)

CHILD = """
    import os, sys, threading, time
    from raymq.client import ClientClosed, Connection, ConsumeResult, Message, Producer, PushConsumer, SimpleConsumer

    mq = Connection([sys.argv[1]])
    arrived = threading.Event()

    def listen(messages):
        arrived.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(mq, "g", {"t": "*"}, listen, ordered=True)
    consumer.start()
    simple = SimpleConsumer(mq, "s", {"t": "*"})
    producer = Producer(mq, "p", outbox=sys.argv[2])
    producer.send(Message("t", b"x"))
    arrived.wait(30)
    child = os.fork()
    if child == 0:
        consumer.pause()
        consumer.resume()
        consumer.shutdown(5.0)
        simple.close()
        producer.close()
        gone = consumer.wait(5.0) and not consumer.health.running and not simple.health.running
        try:
            simple.receive(await_duration=0.0)
        except ClientClosed as error:
            gone = gone and "to the parent process" in str(error)
        else:
            gone = False
        mq.close()
        os._exit(0 if gone else 1)
    status = os.waitpid(child, 0)[1]
    print("the child ended with", status, flush=True)
    sys.stdin.readline()
    consumer.shutdown()
    simple.close()
    producer.close()
"""


def test_child_shutdown_leaves_parent_consumers_registered(
    services: Services, admin: Admin, tmp_path_factory: pytest.TempPathFactory
) -> None:
    requests: Counter[int] = Counter()

    def count_requests(code: int, handler: Handler) -> Handler:
        async def handle(connection: ServerConnection, request: Command) -> Command | None:
            requests[code] += 1
            answer = handler(connection, request)
            return await answer if isawaitable(answer) else answer

        return handle

    for broker in services.brokers.values():
        handlers = broker._server.handlers
        broker._server.handlers = {**handlers, **{code: count_requests(code, handlers[code]) for code in LEAVE_CODES}}
    outbox = tmp_path_factory.mktemp("outbox") / "kept.sqlite"
    with subprocess.Popen(
        # Python 3.12 warns of forks in processes with threads.
        [
            sys.executable,
            "-W",
            "ignore:This process",
            "-c",
            textwrap.dedent(CHILD),
            services.name_server.address,
            outbox,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "the child ended with 0\n"
        assert requests == {}, "the brokers heard nothing of the child"
        out, error = parent.communicate("end\n", timeout=60)
    assert (parent.returncode, out, error) == (0, "", "")
    assert requests[RequestCode.UNLOCK_BATCH_MQ], "the parent says itself when it leaves"
    assert requests[RequestCode.UNREGISTER_CLIENT]
