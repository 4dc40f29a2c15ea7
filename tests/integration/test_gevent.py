"""Test programs patched by gevent: unsupported patches raise an error with the remedy, which works."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from raymq.client import Admin, Connection

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed"),
]

PROGRAM = """
import sys
from gevent import joinall, monkey, spawn
exec(sys.argv[1])
from raymq import cluster
from raymq.client import InvalidInput, Message, Producer
try:
    ways = [cluster.connect(name_servers=sys.argv[2]) for _ in range(2)]
except InvalidInput as error:
    print(error)
else:
    producers = [Producer(mq, "p") for mq in ways]
    jobs = [spawn(producer.send, Message("t", b"x")) for producer in producers for _ in range(3)]
    print([job.get().status.name for job in jobs])
    for each in [*producers, *ways]:
        each.close()
"""


def run_patched(patch: str, mq: Connection) -> str:
    command = [sys.executable, "-c", PROGRAM, patch, ";".join(mq.name_servers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_patched_threads_raise_error_with_working_remedy(mq: Connection, admin: Admin) -> None:
    """With patched threads two connections shared one thread, and each ended the other's event loop."""
    del admin
    assert "monkey.patch_all(thread=False, select=False)" in run_patched("monkey.patch_all()", mq)
    assert run_patched("monkey.patch_all(thread=False, select=False)", mq).strip() == str(["SEND_OK"] * 6)
