"""Kill a program at each step of a transaction with a database: the row and the message are both there, or neither."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from raymq.client import Admin, Connection, Producer, ReceivedMessage, TransactionOutcome
from tests.integration.conftest import Services
from tests.integration.test_transactions import bodies
from tests.polling import poll_until

pytestmark = pytest.mark.integration

#: Where the program is killed; the last step does not kill.
STEPS = ("begun", "row inserted", "row committed", "message committed", "ended")
PROGRAM = textwrap.dedent(
    """
    import os, signal, sqlite3, sys
    from raymq import cluster
    from raymq.client import Message, Producer

    name_servers, path, kill_at = sys.argv[1:]

    def step(name):
        if name == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with cluster.connect(name_servers=name_servers) as mq, Producer(mq, "shop") as producer:
        transaction = producer.begin(Message("t", b"order", keys=["1"]), check_after=1)
        step("begun")
        with sqlite3.connect(path) as database:
            database.execute("INSERT INTO orders VALUES ('1', 'paid')")
            step("row inserted")
        step("row committed")
        transaction.commit()
        step("message committed")
    """
)


@pytest.mark.parametrize("kill_at", STEPS)
@pytest.mark.usefixtures("admin")
def test_killed_program_leaves_row_and_message_or_neither(
    services: Services, mq: Connection, tmp_path: Path, kill_at: str
) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT)")
    arguments = [services.name_server.address, str(path), kill_at]
    subprocess.run([sys.executable, "-c", PROGRAM, *arguments], timeout=60, check=False)

    def check(message: ReceivedMessage) -> TransactionOutcome:
        with sqlite3.connect(path) as own:
            own.execute("INSERT OR IGNORE INTO orders VALUES (?, 'dropped')", (message.keys[0],))
            (state,) = own.execute("SELECT state FROM orders WHERE id = ?", (message.keys[0],)).fetchone()
        return TransactionOutcome.COMMIT if state == "paid" else TransactionOutcome.ROLLBACK

    with Producer(mq, "shop", transaction_checker=check), Admin(mq) as admin:
        poll_until(lambda: not admin.transactions(), 20, "the transaction is decided")
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT id FROM orders WHERE state = 'paid'").fetchall()
    assert len(rows) == (kill_at not in STEPS[:2])
    assert bodies(mq) == [b"order"] * len(rows)
