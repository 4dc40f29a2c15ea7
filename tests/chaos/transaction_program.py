"""Begin and end transactions until killed; the decisions are rows of a SQLite database.

Run as `python -m tests.chaos.transaction_program NAME_SERVERS DATABASE FIRST`: transactions are numbered from FIRST.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import sys
import threading
from pathlib import Path

from raymq import cluster
from raymq.client import Message, Producer, RayMQError, ReceivedMessage, TransactionOutcome

GROUP, TOPIC = "shop", "t"
THREADS = 8
COMMIT, ROLLBACK = "commit", "rollback"


def open_database(path: str | Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=60.0, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=OFF")  # only processes are killed
    database.execute("CREATE TABLE IF NOT EXISTS decisions (id TEXT PRIMARY KEY, decision TEXT)")
    return database


def decide(database: sqlite3.Connection, number: str, decision: str) -> str:
    """Return the decision about a transaction: the first one that was stored."""
    database.execute("INSERT OR IGNORE INTO decisions VALUES (?, ?)", (number, decision))
    row: tuple[str] = database.execute("SELECT decision FROM decisions WHERE id = ?", (number,)).fetchone()
    return row[0]


def checker(path: str | Path) -> object:
    """Return a transaction checker that rolls back what is not decided yet."""

    def check(message: ReceivedMessage) -> TransactionOutcome:
        with contextlib.closing(open_database(path)) as database:
            is_commit = decide(database, message.body.decode(), ROLLBACK) == COMMIT
        return TransactionOutcome.COMMIT if is_commit else TransactionOutcome.ROLLBACK

    return check


def run_transactions(producer: Producer, path: str, numbers: itertools.count[int]) -> None:
    """Commit about two of three transactions, roll back some, and leave some to the checker."""
    database = open_database(path)
    for number in numbers:
        body = str(number)
        with contextlib.suppress(RayMQError):  # the checker decides
            transaction = producer.begin(Message(TOPIC, body.encode()))
            decision = decide(database, body, ROLLBACK if number % 5 == 0 else COMMIT)
            if number % 7 == 0:
                continue  # neither committed nor rolled back
            if decision == COMMIT:
                transaction.commit()
            else:
                transaction.rollback()


def main(name_servers: str, path: str, first: str) -> None:
    numbers = itertools.count(int(first))
    with (
        cluster.connect(name_servers=name_servers) as mq,
        Producer(mq, GROUP, transaction_checker=checker(path)) as producer,  # type: ignore[arg-type]
    ):
        threads = [threading.Thread(target=run_transactions, args=(producer, path, numbers)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
