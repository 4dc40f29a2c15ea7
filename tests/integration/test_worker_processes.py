"""Test that workers of multiprocessing and process pools send pending messages when they end."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from raymq.client import Admin
from tests.integration.conftest import Services

SCRIPT = """
    import multiprocessing, sys, threading
    from concurrent.futures import ProcessPoolExecutor
    from raymq.client import Connection, Message, Producer

    mq = Connection([sys.argv[1]])
    inherited = Producer(mq, "p", linger=0.2)

    def send(producer):
        for _ in range(10):
            producer.send_async(Message("t", b"x"))

    def work(address, who):
        if who == "inherited":
            send(inherited)
            return
        producer = Producer(Connection([address]), "p", linger=0.0 if who == "hasty" else 0.2)
        send(producer)
        if who == "thread":
            # Begins when the worker has nothing else to do any more, which is after its finalizers.
            threading.Thread(target=lambda: (threading.Event().wait(0.5), send(producer))).start()

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[2])
        if sys.argv[3] == "pool":
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                pool.submit(work, sys.argv[1], sys.argv[4]).result(60)
        else:
            process = context.Process(target=work, args=(sys.argv[1], sys.argv[4]))
            process.start()
            process.join(60)
            sys.exit(process.exitcode)
"""


@pytest.mark.parametrize(
    ("method", "worker", "who", "sent"),
    [
        ("fork", "process", "inherited", 10),
        ("fork", "process", "lingering", 10),
        pytest.param("fork", "process", "hasty", 10, marks=pytest.mark.long),
        ("fork", "process", "thread", 20),
        pytest.param("fork", "pool", "lingering", 10, marks=pytest.mark.long),
        ("forkserver", "process", "lingering", 10),
        ("forkserver", "pool", "lingering", 10),
        ("forkserver", "process", "inherited", 10),
        ("spawn", "process", "thread", 20),
    ],
)
def test_worker_process_sends_pending_messages_at_exit(
    services: Services, admin: Admin, tmp_path: Path, method: str, worker: str, who: str, sent: int
) -> None:
    script = tmp_path / "workers.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, str(script), services.name_server.address, method, worker, who],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sum(stats.max_offset for stats in admin.topic_stats("t").values()) == sent
