"""Order per key: a failure holds up the messages of its own key, and no other.

It prints:
    anna: created, then paid, then shipped
    bert: created, then paid, then shipped
    bert did not wait for anna
"""

import threading

from raymq import cluster
from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage

STEPS = ("created", "paid", "shipped")


def main(mq: Connection) -> None:
    """Run against any cluster."""
    Admin(mq).create_topic("orders", queues=1, ordered=True)
    done: list[tuple[str, str]] = []
    failed_once, finished = threading.Event(), threading.Event()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        customer, step = messages[0].keys[0], messages[0].body.decode()
        if (customer, step) == ("anna", "paid") and not failed_once.is_set():
            failed_once.set()
            return ConsumeResult.RECONSUME_LATER
        done.append((customer, step))
        if len(done) == 2 * len(STEPS):
            finished.set()
        return ConsumeResult.SUCCESS

    with (
        Producer(mq, group="shop") as producer,
        PushConsumer(
            mq, "books", {"orders": "*"}, listener, ordered=True, park_failed_keys=True, ordered_retry_interval=0.2
        ),
    ):
        for step in STEPS:
            for customer in ("anna", "bert"):
                producer.send(Message("orders", step.encode(), keys=[customer]), sharding_key=customer)
        finished.wait(10)
    for customer in ("anna", "bert"):
        print(f"{customer}: {', then '.join(step for owner, step in done if owner == customer)}")
    if done.index(("bert", "shipped")) < done.index(("anna", "shipped")):
        print("bert did not wait for anna")


if __name__ == "__main__":
    with cluster.start(brokers=1) as local:
        main(local)
