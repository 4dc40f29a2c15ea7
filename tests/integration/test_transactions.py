"""Test transactions of producers over real sockets: commits, rollbacks, checks and restarts of brokers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading

import pytest
from click.testing import CliRunner

from raymq.actors.broker.handlers import transaction_handlers
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.commands.transaction_commands import ended_answer
from raymq.actors.wire.frame import Command
from raymq.client import (
    Admin,
    Connection,
    InvalidInput,
    Message,
    MessageNotFound,
    MessageQueue,
    OutcomeUnknown,
    Producer,
    PullConsumer,
    ReceivedMessage,
    TopicExists,
    TransactionEnded,
    TransactionOutcome,
)
from raymq.cluster.cli import main_group
from raymq.cluster.doctor.broker_checks import given_up_transactions
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def bodies(mq: Connection, topic: str = "t") -> list[bytes]:
    """Return the bodies of all messages of a topic that consumers can read."""
    found = []
    with PullConsumer(mq, "reader") as consumer:
        for queue in consumer.queues(topic):
            consumer.seek(queue, "earliest")
            found += [message.body for message in consumer.poll(queue, 1_000, 0.05)]
    return found


def run_command(mq: Connection, *given: str) -> str:
    """Return the output of `raymq transaction`."""
    result = CliRunner().invoke(main_group, ["--name-servers", ";".join(mq.name_servers), "transaction", *given])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.usefixtures("admin")
def test_transaction_block_commits_at_its_end(mq: Connection) -> None:
    with Producer(mq, "p") as producer:
        with producer.transaction(Message("t", b"paid", keys=["k"])) as transaction:
            assert bodies(mq) == []
        assert transaction.outcome is TransactionOutcome.COMMIT
        assert transaction.result.transaction_id == transaction.message.unique_key
    assert bodies(mq) == [b"paid"]


@pytest.mark.usefixtures("admin")
def test_transaction_block_rolls_back_on_an_exception(mq: Connection) -> None:
    with Producer(mq, "p") as producer:
        with pytest.raises(KeyError), producer.transaction(Message("t", b"x")) as transaction:
            raise KeyError("no such account")
        assert transaction.outcome is TransactionOutcome.ROLLBACK
        with producer.transaction(Message("t", b"y")) as transaction:
            transaction.rollback()
    assert bodies(mq) == []


@pytest.mark.usefixtures("admin")
def test_first_decision_of_a_transaction_counts(mq: Connection) -> None:
    with Producer(mq, "p") as producer:
        transaction = producer.begin(Message("t", b"x"))
        transaction.commit()
        transaction.commit()
        with pytest.raises(TransactionEnded):
            transaction.rollback()
    assert bodies(mq) == [b"x"]


@pytest.mark.usefixtures("admin")
def test_transactions_of_asyncio_programs(mq: Connection) -> None:
    async def run() -> None:
        async with Producer(mq, "p", idempotent=True) as producer:
            transaction = await producer.abegin(Message("t", b"a"))
            await transaction.acommit()
            async with producer.transaction(Message("t", b"b")):
                pass
            with pytest.raises(KeyError):
                async with producer.transaction(Message("t", b"c")):
                    raise KeyError

    asyncio.run(run())
    assert sorted(bodies(mq)) == [b"a", b"b"]


@pytest.mark.usefixtures("admin")
def test_transaction_block_is_used_once(mq: Connection) -> None:
    with Producer(mq, "p") as producer:
        block = producer.transaction(Message("t", b"x"))
        with block, pytest.raises(RuntimeError, match="call it again"), block:
            pytest.fail("it began a second transaction")
        with pytest.raises(RuntimeError, match="call it again"), block:
            pytest.fail("it began a second transaction")
    assert bodies(mq) == [b"x"]


@pytest.mark.usefixtures("admin")
def test_commit_that_the_disk_does_not_confirm_is_unknown(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def unconfirmed(request: Command, _: SendStatus) -> Command:
        return ended_answer(request, SendStatus.FLUSH_DISK_TIMEOUT)

    with Producer(mq, "p") as producer:
        transaction = producer.begin(Message("t", b"x"))
        with monkeypatch.context() as patched:
            patched.setattr(transaction_handlers, "ended_answer", unconfirmed)
            with pytest.raises(OutcomeUnknown, match="no answer to COMMIT") as caught:
                transaction.commit(timeout=0.3)
        assert "FLUSH_DISK_TIMEOUT" in str(caught.value.attempts[-1])
        transaction.commit()
    assert bodies(mq) == [b"x"]


@pytest.mark.usefixtures("admin")
def test_forked_child_that_leaves_a_block_ends_nothing(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    with Producer(mq, "p") as producer, producer.transaction(Message("t", b"x")) as transaction:
        with monkeypatch.context() as child:
            child.setattr("os.getpid", lambda: -1)
            transaction.__exit__(SystemExit, SystemExit(), None)
            transaction.__exit__(None, None, None)
        assert transaction.outcome is TransactionOutcome.UNKNOWN
    assert bodies(mq) == [b"x"]


@pytest.mark.usefixtures("admin")
def test_forked_producer_is_another_member_of_its_group(mq: Connection) -> None:
    with Producer(mq, "p", transaction_checker=lambda _: TransactionOutcome.COMMIT) as producer:
        before = producer._responder
        assert before is not None
        producer._reset_in_child()
        producer.begin(Message("t", b"x")).commit()
        after = producer._responder
        assert after is not None
        assert after._client_id != before._client_id
        mq.run(before.stop())


@pytest.mark.usefixtures("admin")
def test_delayed_message_in_a_transaction_is_refused(mq: Connection) -> None:
    with Producer(mq, "p") as producer, pytest.raises(InvalidInput, match="delay_level"):
        producer.begin(Message("t", b"x", delay_level=3))


@pytest.mark.parametrize("outcome", [TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK])
@pytest.mark.usefixtures("admin", "quick_checks")
def test_checker_decides_open_transactions(mq: Connection, outcome: TransactionOutcome) -> None:
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionOutcome:
        asked.append(message)
        return outcome

    with Producer(mq, "p") as dying:
        dying.begin(Message("t", b"left", keys=["k"], properties={"a": "b"}))
    with Producer(mq, "p", transaction_checker=check):
        poll_until(lambda: asked, 10)
        if outcome is TransactionOutcome.COMMIT:
            poll_until(lambda: bodies(mq) == [b"left"], 10)
    [message] = asked
    assert (message.topic, message.body, message.keys, dict(message.properties)) == ("t", b"left", ["k"], {"a": "b"})
    assert bodies(mq) == ([b"left"] if outcome is TransactionOutcome.COMMIT else [])


@pytest.mark.parametrize("failure", [KeyError("x"), SystemExit(1), asyncio.CancelledError()], ids=repr)
@pytest.mark.usefixtures("admin", "quick_checks")
def test_failed_checker_is_logged_and_asked_again(
    mq: Connection, caplog: pytest.LogCaptureFixture, failure: BaseException
) -> None:
    answers = iter([failure, "nonsense", TransactionOutcome.COMMIT])

    async def check(_: ReceivedMessage) -> TransactionOutcome:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]

    with caplog.at_level(logging.WARNING), Producer(mq, "p", transaction_checker=check) as producer:
        producer.begin(Message("t", b"x"))
        poll_until(lambda: bodies(mq) == [b"x"], 20)
    assert "failed on message" in caplog.text
    assert type(failure).__name__ in caplog.text
    assert "'nonsense'" in caplog.text


@pytest.mark.usefixtures("admin")
def test_open_transaction_survives_a_killed_broker(services: Services, mq: Connection) -> None:
    with Producer(mq, "p", timeout=30) as producer:
        transaction = producer.begin(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 0))
        services.crash_broker("broker-a")
        threading.Timer(0.5, services.start_broker, ("broker-a",)).start()
        transaction.commit()
        poll_until(lambda: bodies(mq) == [b"x"], 10)
        transaction.commit()


@pytest.fixture
def quick_checks(services: Services, admin: Admin) -> None:
    """Let brokers ask after 0.2 s, every 0.3 s, and at most four times."""
    services.transaction_check_after, services.transaction_check_every, services.transaction_check_max = 0.2, 0.3, 4
    for name in services.names:
        services.stop_broker(name)
        services.start_broker(name)


def test_administrator_lists_and_decides_open_transactions(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "p") as producer:
        transactions = [producer.begin(Message("t", b"%d" % i)) for i in range(3)]
        ids = [each.result.message_id for each in transactions]
        found = admin.transactions("t")
        assert sorted(each.age for each in found) == [each.age for each in reversed(found)]
        found.sort(key=lambda each: each.message.body)  # two may have begun in the same millisecond
        assert [each.message.message_id for each in found] == ids
        assert {(each.producer_group, each.state, each.checks) for each in found} == {("p", "open", 0)}
        assert [each.message.body for each in found] == [b"0", b"1", b"2"]
        admin.commit_transaction(ids[0], dry_run=True)
        assert bodies(mq) == []
        admin.commit_transaction(ids[0])
        admin.rollback_transaction(ids[1])
        assert bodies(mq) == [b"0"]
        with pytest.raises(MessageNotFound):
            admin.commit_transaction(ids[1])
        with pytest.raises(TransactionEnded):
            transactions[1].commit()
        assert [each.message.message_id for each in admin.transactions()] == ids[2:]
        assert admin.transactions("other") == []


@pytest.mark.usefixtures("quick_checks")
def test_given_up_transaction_is_listed_and_resumed(mq: Connection, admin: Admin) -> None:
    unknown = Producer(mq, "p", transaction_checker=lambda _: TransactionOutcome.UNKNOWN)
    with unknown as producer:
        producer.begin(Message("t", b"late"))
        [given_up] = poll_until(lambda: [each for each in admin.transactions() if each.state == "given up"], 20)
    assert given_up.checks == 4
    found = admin.resume_transaction(given_up.message.message_id)
    [again] = admin.transactions()
    assert (again.state, again.checks, again.message.message_id) == ("open", 0, found)
    with pytest.raises(MessageNotFound, match="was decided"):
        admin.resume_transaction(given_up.message.message_id)
    admin.commit_transaction(found)
    assert bodies(mq) == [b"late"]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.usefixtures("quick_checks")
def test_given_up_transaction_is_decided_by_its_unique_key(mq: Connection, admin: Admin, commits: bool) -> None:
    unknown = Producer(mq, "p", transaction_checker=lambda _: TransactionOutcome.UNKNOWN)
    with unknown as producer:
        key = producer.begin(Message("t", b"late")).result.unique_key
        [given_up] = poll_until(lambda: [each for each in admin.transactions() if each.state == "given up"], 20)
    [told] = given_up_transactions([given_up])
    assert "no producer of group p decided: 1" in told.found
    (admin.commit_transaction if commits else admin.rollback_transaction)(key.lower())
    assert admin.transactions() == []
    assert bodies(mq) == ([b"late"] if commits else [])


@pytest.mark.usefixtures("quick_checks")
def test_doctor_reports_given_up_transactions(services: Services, mq: Connection, admin: Admin) -> None:
    def doctor() -> list[tuple[str, str]]:
        given = ["--name-servers", ";".join(mq.name_servers), "doctor", "--no-ray", "--json"]
        return [(each["check"], each["found"]) for each in json.loads(CliRunner().invoke(main_group, given).stdout)]

    unknown = Producer(mq, "p", transaction_checker=lambda _: TransactionOutcome.UNKNOWN)
    with unknown as producer:
        producer.begin(Message("t", b"late"), queue=MessageQueue("t", "broker-a", 0))
        poll_until(lambda: [each for each in admin.transactions() if each.state == "given up"], 20)
    told = "transactions that were given up, since no producer of group p decided: 1"
    assert ("transactions", told) in doctor()
    services.crash_broker("broker-b")
    found = doctor()
    assert any(check == "sockets" and "broker-b does not answer" in text for check, text in found)
    assert "cluster" not in {check for check, _ in found}


@pytest.mark.usefixtures("admin")
def test_transaction_commands_print_and_decide(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    with Producer(mq, "p") as producer:
        transaction = producer.begin(Message("t", b"shown", keys=["key-1"]))
    message_id = transaction.result.message_id
    table = run_command(mq, "list")
    assert message_id in table
    assert "shown" in table
    assert "key-1" in table
    [listed] = json.loads(run_command(mq, "list", "--json"))
    assert (listed["producer_group"], listed["state"]) == ("p", "open")
    assert "would be committed" in run_command(mq, "commit", message_id, "--dry-run")
    assert "committed" in run_command(mq, "commit", message_id)
    assert bodies(mq) == [b"shown"]
    assert "no open transaction" in run_command(mq, "list")


@pytest.mark.parametrize(
    ("message_type", "accepted"),
    [
        (None, {"plain", "delayed", "transaction"}),
        ("MIXED", {"plain", "delayed", "transaction"}),
        ("NORMAL", {"plain"}),
        ("FIFO", {"plain"}),
        ("DELAY", {"delayed"}),
        ("TRANSACTION", {"transaction"}),
    ],
)
def test_topic_accepts_messages_of_its_type(
    mq: Connection, admin: Admin, message_type: str | None, accepted: set[str]
) -> None:
    admin.create_topic("typed", queues=1, message_type=message_type)
    admin.create_topic("typed", queues=1)
    config = admin.topic_config("typed")
    assert (config.queues, config.permission, config.message_type) == (1, 6, message_type)
    with Producer(mq, "p") as producer:
        sends = {
            "plain": lambda: producer.send(Message("typed", b"x")),
            "delayed": lambda: producer.send(Message("typed", b"x", delay_level=1)),
            "transaction": lambda: producer.begin(Message("typed", b"x")),
        }
        for kind, send in sends.items():
            with contextlib.nullcontext() if kind in accepted else pytest.raises(InvalidInput, match="accepts only"):
                send()


def test_message_type_of_a_topic_can_be_changed(mq: Connection, admin: Admin) -> None:
    admin.update_topic("t", message_type="FIFO")
    assert admin.topic_config("t").message_type == "FIFO"
    with pytest.raises(TopicExists, match="attributes"):
        admin.create_topic("t", queues=2, message_type="DELAY")
    with pytest.raises(InvalidInput, match="message_type"):
        admin.update_topic("t", message_type="fast")
    with Producer(mq, "p") as producer:
        with pytest.raises(InvalidInput, match="FIFO"):
            producer.send(Message("t", b"x", delay_level=1))
        admin.update_topic("t", message_type="MIXED")
        producer.send(Message("t", b"x", delay_level=1))
