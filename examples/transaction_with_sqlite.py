"""Change a database and send a message: both or neither, wherever the program ends.

If a program ends before it commits, the broker asks any producer of the group, and the checker looks into the database.
It marks an order that it does not find, so that a slow program cannot store it any more. The database commits last.

It prints:
    order 1: paid
    order 2: not enough money
    order 3: paid, and the program ends before it commits
    messages: [b'order 1', b'order 3']
"""

import sqlite3
import tempfile
from itertools import islice

from raymq import cluster
from raymq.client import Admin, Connection, Message, Producer, ReceivedMessage, TransactionOutcome

PAID, DROPPED = "paid", "dropped"


def pay(database: sqlite3.Connection, order: str, money: int) -> None:
    """Store an order in one transaction of the database."""
    with database:  # commits at the end, or rolls back and raises
        database.execute("INSERT INTO orders VALUES (?, ?)", (order, PAID))
        if money < 5:
            raise ValueError("not enough money")


def main(mq: Connection) -> None:
    """Pay three orders."""
    Admin(mq).create_topic("paid-orders", queues=1)
    database = sqlite3.connect(path := tempfile.mkdtemp() + "/shop.db")
    database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT)")

    def check(message: ReceivedMessage) -> TransactionOutcome:
        with sqlite3.connect(path) as own:
            own.execute("INSERT OR IGNORE INTO orders VALUES (?, ?)", (message.keys[0], DROPPED))
            (state,) = own.execute("SELECT state FROM orders WHERE id = ?", (message.keys[0],)).fetchone()
        return TransactionOutcome.COMMIT if state == PAID else TransactionOutcome.ROLLBACK

    with Producer(mq, "shop", transaction_checker=check) as producer:
        with producer.transaction(Message("paid-orders", b"order 1", keys=["1"])):
            pay(database, "1", money=10)
        print("order 1: paid")
        try:
            with producer.transaction(Message("paid-orders", b"order 2", keys=["2"])):
                pay(database, "2", money=1)
        except ValueError as error:
            print("order 2:", error)
        producer.begin(Message("paid-orders", b"order 3", keys=["3"]), check_after=1)
        pay(database, "3", money=10)
        print("order 3: paid, and the program ends before it commits")
        print("messages:", [each.body for each in islice(Admin(mq).tail("paid-orders", "earliest"), 2)])


if __name__ == "__main__":
    with cluster.start(brokers=1, root=tempfile.mkdtemp()) as mq:
        main(mq)
