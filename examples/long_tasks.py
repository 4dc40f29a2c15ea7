"""A pool of Ray actors with long tasks: more workers than queues, and one that dies in the middle of a task.

It prints:
    done: 12 of 12 tasks, by several workers
    tries of the task whose worker died: 2
"""

import os
import time

import ray

from raymq import cluster
from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PullConsumer, PushConsumer

WORKERS, TASKS = 3, 12


class Worker:
    """One member of the group, which gets a task whenever it is free."""

    def __init__(self, name_servers: list[str], number: int) -> None:
        mq = self.mq = Connection(name_servers)
        self.number, self.results = number, Producer(mq, group="workers")
        how = {"mode": "pop", "lease": 2.0, "threads": 1, "max_reconsume_times": 3}
        self.consumer = PushConsumer(mq, "workers", {"tasks": "*"}, self.work, **how)
        self.consumer.start()

    def work(self, messages: list) -> ConsumeResult:
        (task,) = messages
        time.sleep(0.2)  # a long task: the lease is renewed while it runs
        if task.body == b"0" and not task.reconsume_times:
            os._exit(1)  # as a segmentation fault or a lack of memory does
        tries = str(task.reconsume_times + 1)
        self.results.send(Message("results", task.body, tags=str(self.number), properties={"tries": tries}))
        return ConsumeResult.SUCCESS


def main(mq: Connection) -> None:
    """Run against any cluster; its workers are on the Ray that this program has joined, or starts."""
    if is_own := not ray.is_initialized():
        ray.init(num_cpus=1, include_dashboard=False)
    for topic in ("tasks", "results"):
        Admin(mq).create_topic(topic, queues=1)
    remote = ray.remote(num_cpus=0, max_restarts=-1)(Worker)
    workers = [remote.remote(mq.name_servers, number) for number in range(WORKERS)]
    ray.get([worker.__ray_ready__.remote() for worker in workers])
    done: dict[bytes, tuple[str, str]] = {}
    with Producer(mq, group="office") as producer, PullConsumer(mq, group="office") as results:
        producer.send_batch([Message("tasks", b"%d" % number) for number in range(TASKS)])
        (queue,) = results.queues("results")
        while len(done) < TASKS:
            for result in results.poll(queue, TASKS, timeout=1.0):
                done[result.body] = result.tags, result.properties["tries"]
    by = "several workers" if len({number for number, _ in done.values()}) > 1 else "one worker"
    print(f"done: {len(done)} of {TASKS} tasks, by {by}")
    print(f"tries of the task whose worker died: {done[b'0'][1]}")
    if is_own:
        ray.shutdown()


if __name__ == "__main__":
    with cluster.start(brokers=1) as local:
        main(local)
