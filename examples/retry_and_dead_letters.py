"""A listener that fails: its message comes again after a while, rests in the dead letters, and is sent again by hand.

It prints:
    try 0 of b'refund 7': the bank is closed
    try 1 of b'refund 7': the bank is closed
    dead: b'refund 7' of topic invoices, listener returned Retry(delay_level=1)
    try 0 of b'refund 7': done
    sent again: 1
"""

import threading

from raymq import cluster
from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage, Retry


def main(mq: Connection) -> None:
    """Run against any cluster."""
    admin = Admin(mq)
    admin.create_topic("invoices", queues=1)
    bank_is_open, done = threading.Event(), threading.Event()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult | Retry:
        message = messages[0]
        outcome = "done" if bank_is_open.is_set() else "the bank is closed"
        print(f"try {message.reconsume_times} of {message.body!r}: {outcome}")
        if not bank_is_open.is_set():
            return Retry(delay_level=1)  # in 1 s; RECONSUME_LATER waits 10 s, 30 s, 1 min ... 2 h
        done.set()
        return ConsumeResult.SUCCESS

    with (
        Producer(mq, group="desk") as producer,
        PushConsumer(mq, group="refunds", subscriptions={"invoices": "*"}, listener=listener, max_reconsume_times=1),
    ):
        producer.send(Message("invoices", b"refund 7"))
        while not (dead := admin.dlq_list("refunds")):
            done.wait(0.05)
        print(f"dead: {dead[0].body!r} of topic {dead[0].topic}, {dead[0].reason}")
        bank_is_open.set()
        again = admin.dlq_redrive("refunds").redriven
        done.wait(10)
        print("sent again:", len(again))


if __name__ == "__main__":
    with cluster.start(brokers=1) as local:
        main(local)
