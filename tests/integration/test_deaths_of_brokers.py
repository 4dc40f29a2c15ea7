"""A broker's death is one line on the terminal of whoever started the cluster, and none of Ray's."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.program import run

pytestmark = [pytest.mark.integration, pytest.mark.ray]

PROGRAM = """
import os, signal, sys, threading, time
from raymq import cluster
from raymq.client import Admin, Message, Producer

with cluster.start(brokers=1, root=sys.argv[1], namespace="deaths") as mq:
    Admin(mq).create_topic("t")
    os.kill(Admin(mq).cluster_info().brokers[0].pid, signal.SIGKILL)
    Producer(mq, "p", timeout=60).send(Message("t", b"x"))
    time.sleep(0.5)
    for each in threading.enumerate():
        if each.name == "raymq-death":
            each.join(60)
"""


def test_a_brokers_death_is_one_line(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", PROGRAM, str(tmp_path), environment=os.environ | {"RAY_ADDRESS": "local"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert re.fullmatch(r"broker-a \(process \d+\) died; it was back after [\d.]+ s\n", done.stderr)
