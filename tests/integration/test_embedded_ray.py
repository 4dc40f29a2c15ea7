"""Test an embedded Ray started on any thread, and processes forked from its program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program import output_of

pytestmark = [pytest.mark.integration, pytest.mark.ray, pytest.mark.timeout(150)]

#: The cluster is started on a thread that ends. Then children are forked, which end in different ways.
PROGRAM = """
import asyncio, contextlib, multiprocessing, os, signal, sys, time
from raymq import cluster
from raymq.client import Admin, BrokerUnavailable, InvalidInput, Message, Producer

def start():
    return cluster.start(brokers=1, root={root!r}, namespace="forks")

def send():
    with Producer(mq, "child") as producer:
        producer.send(Message("t", b"from a child"))

def refused():
    refusals = []
    for call in (mq.stop, cluster.connect, start):
        try:
            call()
        except (BrokerUnavailable, InvalidInput) as error:
            refusals.append("fork" in str(error))
    return refusals == [True, True, True]

def ends_by_exit():
    with mq:
        send()
        sys.exit(3 if refused() else 4)

def ends_by_os_exit():
    send()
    os._exit(5)

def ends_by_signal():
    send()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)

def ends_by_error():
    send()
    sys.stderr = open(os.devnull, "w")
    raise RuntimeError("a child fails")

mq = asyncio.run(asyncio.to_thread(start))
admin = Admin(mq)
admin.create_topic("t", queues=1)
for end in (ends_by_exit, ends_by_os_exit, ends_by_signal, ends_by_error):
    child = os.fork()
    if not child:
        end()
    began = time.monotonic()
    _, status = os.waitpid(child, 0)
    print(end.__name__, os.waitstatus_to_exitcode(status), time.monotonic() - began < 10, flush=True)
process = multiprocessing.get_context("fork").Process(target=send)
process.start()
process.join(10)
print("multiprocessing", process.exitcode)
print(sum(each.max_offset for each in admin.topic_stats("t").values()))
with Producer(mq, "parent") as producer:
    producer.send(Message("t", b"the parent goes on"))
mq.stop()
print("stopped", os.path.exists({root!r} + "/broker-a/abort"))
"""


def test_ended_threads_and_forked_children_leave_ray_running(tmp_path: Path) -> None:
    """The stop failed after a start on an ended thread; a forked child hung, or ended the parent's Ray."""
    forks = "ignore:This process:DeprecationWarning"  # Python 3.12 warns of forks in processes with threads
    output = output_of("-W", forks, "-c", PROGRAM.format(root=str(tmp_path / "data")), directory=tmp_path)
    assert output.splitlines() == [
        "ends_by_exit 3 True",
        "ends_by_os_exit 5 True",
        f"ends_by_signal {-15} True",
        "ends_by_error 1 True",
        "multiprocessing 0",
        "5",
        "stopped False",
    ]
