"""What is renewed first in a forked child: connections, then those who use them."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from raymq.client import ConsumeResult, Producer, PushConsumer
from raymq.client.connection import Connection
from raymq.client.forking import renew_in_child
from tests.forked import in_child


class Owner:
    """Says when it was renewed."""

    def __init__(self, name: str, renewed: list[str], *, before_users: bool) -> None:
        self.name = name
        self.renewed = renewed
        renew_in_child(self, Owner.renew, before_users=before_users)

    def renew(self) -> None:
        self.renewed.append(self.name)


def test_what_is_used_is_renewed_before_its_users_whatever_was_registered_first() -> None:
    renewed: list[str] = []
    owners = [Owner("user", renewed, before_users=False), Owner("used", renewed, before_users=True)]
    owners += [Owner("user too", renewed, before_users=False), Owner("used too", renewed, before_users=True)]
    assert in_child(lambda: ", ".join(renewed)) == "used, used too, user, user too"
    assert renewed == []  # the parent's are as they were


def test_a_childs_connection_closes_the_producer_that_it_has_inherited() -> None:
    mq = Connection(["127.0.0.1:1"])
    producer = Producer(mq, "p", linger=1.0)
    assert in_child(lambda: str(producer in mq._clients)) == "True"
    mq.close()


def test_a_childs_connection_closes_the_push_consumer_that_the_parent_has_not_started() -> None:
    mq = Connection(["127.0.0.1:1"])
    consumer = PushConsumer(mq, "g", {"t": "*"}, lambda _: ConsumeResult.SUCCESS)
    assert in_child(lambda: str(consumer in mq._clients)) == "True"
    mq.close()


@pytest.mark.parametrize("first", ["raymq.client.forking", "raymq.client.kept_bodies", "raymq.client.connection"])
def test_the_order_does_not_depend_on_what_was_imported_first(first: str) -> None:
    script = f"""
        import {first}, os
        from raymq.client import Producer
        from raymq.client.connection import Connection

        mq = Connection(["127.0.0.1:1"])
        producer = Producer(mq, "p", linger=1.0)
        child = os.fork()
        if not child:
            os._exit(0 if producer in mq._clients else 1)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert done.returncode == 0
