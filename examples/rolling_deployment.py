"""A consumer that starts before its topic, and a deployment that changes its subscriptions.

It prints:
    waits for: ['parcels']
    old version got b'letter to Oslo'
    old version ended, version 1 is in force: True
    new version got b'box to Rome'
"""

import queue

from raymq import cluster
from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage
from raymq.client.errors import SubscriptionMismatch


def main(mq: Connection) -> None:
    """Run against any cluster."""
    admin = Admin(mq)
    received: queue.SimpleQueue[str] = queue.SimpleQueue()

    def member(version: int, tags: str) -> PushConsumer:
        """One process of the service, as it is in this version of the program."""

        def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
            received.put(f"{'new' if version else 'old'} version got {messages[0].body!r}")
            return ConsumeResult.SUCCESS

        return PushConsumer(mq, "depot", {"parcels": tags}, listener, ordered=True, subscription_version=version)

    old = member(0, "letter")
    old.start()  # the topic does not exist: one warning in the log, and it begins once it does
    print("waits for:", admin.group_progress("depot").missing_topics)
    admin.create_topic("parcels", queues=1)
    with Producer(mq, group="desk") as producer:
        producer.send(Message("parcels", b"letter to Oslo", tags="letter"))
        print(received.get(timeout=30))
        with member(1, "letter || box"):  # without a higher version it would be refused while the old one lives
            try:
                old.wait(timeout=30)
            except SubscriptionMismatch as error:
                print(f"old version ended, version {error.in_force} is in force:", not old.health.running)
            producer.send(Message("parcels", b"box to Rome", tags="box"))
            print(received.get(timeout=30))


if __name__ == "__main__":
    with cluster.start(brokers=1) as local:
        main(local)
