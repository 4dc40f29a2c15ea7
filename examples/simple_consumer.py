"""Workers that ask for jobs: what is acknowledged is done, the rest comes again when its time is over.

It prints:
    first: job 0, job 1, job 2, job 3
    again: job 1, job 3
    longer: True
    left: 0
"""

from raymq import cluster
from raymq.client import Admin, Connection, Message, Producer, SimpleConsumer


def main(mq: Connection) -> None:
    """Run against any cluster."""
    Admin(mq).create_topic("jobs", queues=1)
    with (
        Producer(mq, group="office") as producer,
        SimpleConsumer(mq, group="workers", subscriptions={"jobs": "*"}) as worker,
    ):
        producer.send_batch([Message("jobs", b"job %d" % number) for number in range(4)])
        jobs = worker.receive(max_messages=4, invisible_duration=1.0)
        print("first:", ", ".join(job.body.decode() for job in jobs))
        worker.ack([jobs[0], jobs[2]])
        again = worker.receive(max_messages=4, invisible_duration=30.0)  # waits for the second that is left
        again += worker.receive(max_messages=4, invisible_duration=30.0) if len(again) < 2 else []
        print("again:", ", ".join(job.body.decode() for job in again))
        print("longer:", worker.change_invisible_duration(again[0], 60.0))
        worker.ack(again)
        print("left:", len(worker.receive(await_duration=0.1)))


if __name__ == "__main__":
    with cluster.start(brokers=1) as local:
        main(local)
