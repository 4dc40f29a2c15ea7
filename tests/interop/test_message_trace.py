"""Test RocketMQ's message trace with `mqadmin` (5.3.3): its clients store it, `queryMsgTraceById` reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raymq.client import Admin, Connection
from tests.integration.conftest import Services
from tests.interop.conftest import mqadmin
from tests.polling import poll_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def test_mqadmin_finds_trace_of_a_message(java_suite: Path, tmp_path: Path) -> None:
    services = Services(tmp_path)
    services.start()
    try:
        server = services.name_server.address
        with Connection([server]) as mq, Admin(mq) as admin:
            admin.create_topic("orders", queues=1)
            sent = mqadmin(java_suite, "sendMessage", "-n", server, "-t", "orders", "-p", "x", "-k", "k", "-m", "true")
            found = re.search(r"SEND_OK\s+([0-9A-F]{32,})", sent)
            assert found is not None, sent
            poll_until(lambda: admin.query_by_key("RMQ_SYS_TRACE_TOPIC", found[1]), 30, "the trace is stored")
            traced = mqadmin(java_suite, "queryMsgTraceById", "-n", server, "-i", found[1])
            assert re.search(r"Pub\s.*\ssuccess", traced), traced
    finally:
        services.stop()
