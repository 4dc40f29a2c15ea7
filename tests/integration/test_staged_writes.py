"""Test staged writes over real sockets: definite answers, and no staging after a decision."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from raymq.actors.broker.core.writes.transaction_coordinator import TRANSACTION_TIMEOUT_SECONDS
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.client.bulk import staged_write
from raymq.client.bulk.staged_write import CommittedWrite, StagedWrite
from raymq.client.bulk.staged_writer import StagedWriter
from raymq.client.errors import BrokerUnavailable, ClientClosed, InvalidInput, NotStored, OutcomeUnknown, TooFewInSync
from raymq.storage.records.record import encode, encode_properties
from tests import staged_rows
from tests.integration.conftest import Services
from tests.polling import poll_until
from tests.staged_rows import open_transactions

pytestmark = pytest.mark.integration

BROKERS = {"broker-a", "broker-b"}


def open_write(mq: Connection, series: str = "", number: int = 0) -> StagedWrite:
    write = StagedWrite.open(mq, "t", BROKERS, series=series, number=number)
    assert isinstance(write, StagedWrite)
    return write


def stage(mq: Connection, write: StagedWrite, mark: str = "row", part: str = "p") -> list[tuple[str, str, int]]:
    with StagedWriter(mq.name_servers) as writer:
        for broker in sorted(BROKERS):
            bodies = [f"{mark} {broker} {n}" for n in range(10)]
            records = [
                encode("t", 0, body.encode(), encode_properties({"UNIQ_KEY": body.replace(" ", "-")}),
                       born_timestamp_ms=1, born_host=("127.0.0.1", 0))
                for body in bodies
            ]  # fmt: skip
            sizes = np.array([len(record) for record in records], np.int32)
            queue = MessageQueue("t", broker, 0)
            staged_rows.send_chunk(writer, write, part, 0, queue, b"".join(records), sizes)
    return [(part, broker, 10) for broker in sorted(BROKERS)]


def count_stored(services: Services) -> int:
    return sum(broker.core.bounds("t", 0)[1] for broker in services.brokers.values())


def test_other_process_learns_outcome_of_write(services: Services, mq: Connection, admin: Admin) -> None:
    write = open_write(mq)
    parts = stage(mq, write)
    with Connection([services.name_server.address]) as another:
        with pytest.raises(InvalidInput, match="abort_write"):
            staged_write.finish(another, write.transaction)
        assert write.commit(parts) == CommittedWrite(write.transaction, 20)
        assert staged_write.finish(another, write.transaction) == CommittedWrite(write.transaction, 20)
        with pytest.raises(InvalidInput, match="not committed"):
            staged_write.abort(another, write.transaction)
        for unknown in ("never-was-broker-a", "never", f"{'0' * 32}-broker-a"):
            with pytest.raises(InvalidInput, match="7 days"):
                staged_write.finish(another, unknown)
    assert count_stored(services) == 20


def test_abort_by_other_process_fails_commit(services: Services, mq: Connection, admin: Admin) -> None:
    write = open_write(mq)
    parts = stage(mq, write)
    with Connection([services.name_server.address]) as another:
        staged_write.abort(another, write.transaction)
        with pytest.raises(NotStored, match="aborted"):
            staged_write.finish(another, write.transaction)
    with pytest.raises(NotStored, match="aborted"):
        write.commit(parts)
    assert count_stored(services) == 0


def test_staging_after_decision_is_refused(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover a regression: a superseded attempt staged its chunks again."""
    for end in (lambda write, parts: write.commit(parts), lambda write, _: write.abort(BROKERS)):
        write = open_write(mq)
        end(write, stage(mq, write))
        before = count_stored(services)
        for part in ("p", "late"):
            with pytest.raises(InvalidInput, match="decided"):
                stage(mq, write, part=part)
        assert count_stored(services) == before


def test_chunks_staged_after_cleanup_are_dropped(services: Services, mq: Connection, admin: Admin) -> None:
    write = open_write(mq)
    parts = stage(mq, write)
    write.commit(parts)
    for broker in services.brokers.values():
        staging = broker.core.staging
        poll_until(lambda staging=staging: staging.in_doubt.is_notified(write.transaction))
        broker.store.tables.staged.remove(write.transaction)
    stage(mq, write)  # a request that was delayed for very long
    for broker in services.brokers.values():
        poll_until(lambda store=broker.store: write.transaction not in open_transactions(store), 15)
    assert count_stored(services) == 20


def test_staging_with_wrong_coordinator_is_refused(services: Services, mq: Connection, admin: Admin) -> None:
    write = open_write(mq)
    stage(mq, write)
    (other,) = BROKERS - {write.coordinator}
    with pytest.raises(InvalidInput, match="home"):
        stage(mq, StagedWrite(mq, write.transaction, other), part="q")
    write.abort()


@pytest.mark.long
def test_brokers_drop_rows_of_expired_write(services: Services, mq: Connection, admin: Admin) -> None:
    """Let the brokers ask: the coordinator decides without notifying them."""
    write = open_write(mq)
    stage(mq, write)
    coordinator = services.brokers[write.coordinator].core.writes
    now = coordinator._clock()
    coordinator._clock = lambda: now + TRANSACTION_TIMEOUT_SECONDS + 60
    assert coordinator.sweep() == [write.transaction]
    for broker in services.brokers.values():
        poll_until(lambda store=broker.store: write.transaction not in open_transactions(store), 15)
    assert count_stored(services) == 0


def test_finish_completes_write_after_lost_answer(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = open_write(mq)
    parts = stage(mq, write)
    broker = services.brokers[write.coordinator]
    handlers = broker._server.handlers
    broker._server.handlers = {**handlers, RequestCode.DECIDE_WRITE: lambda connection, _: connection.close()}
    monkeypatch.setattr(staged_write, "retry_while_unavailable", lambda attempt: attempt())
    with pytest.raises(OutcomeUnknown) as caught:
        write.commit(parts)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.transaction, error.committed, error.retriable) == (write.transaction, False, False)
    broker._server.handlers = handlers
    monkeypatch.undo()
    assert staged_write.finish(mq, write.transaction) == CommittedWrite(write.transaction, 20)
    assert count_stored(services) == 20


def test_full_coordinator_is_not_chosen(services: Services, mq: Connection, admin: Admin) -> None:
    services.brokers["broker-a"].core.writes._most = 0
    assert {open_write(mq).coordinator for _ in range(6)} == {"broker-b"}


def test_series_number_is_written_once(services: Services, mq: Connection, admin: Admin) -> None:
    first = open_write(mq, "q/t/", 0)
    second = open_write(mq, "q/t/", 0)
    assert second.commit(stage(mq, second, "second")).rows == 20
    assert first.commit(stage(mq, first, "first")) == CommittedWrite(second.transaction, 20)
    with Connection([services.name_server.address]) as another:
        assert StagedWrite.open(another, "t", BROKERS, series="q/t/", number=0) == CommittedWrite(
            second.transaction, 20
        )
        assert open_write(another, "q/t/", 1).commit([]).rows == 0
    assert count_stored(services) == 20


def test_unavailable_coordinator_raises_outcome_unknown(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Find the coordinator by the transaction's name after other brokers forgot the write."""
    write = open_write(mq)
    write.commit(stage(mq, write))
    coordinator = services.brokers[write.coordinator].core.writes
    poll_until(
        lambda: (
            (record := coordinator.transaction_status(write.transaction).record) is not None and not record.unfinished
        )
    )
    services.crash_broker(write.coordinator)
    poll_until(lambda: write.coordinator not in mq.run(mq.routes.cluster()).masters)
    for broker in services.brokers.values():
        broker.store.tables.staged.remove(write.transaction)
    monkeypatch.setattr(staged_write, "retry_while_unavailable", lambda attempt: attempt())
    with pytest.raises(OutcomeUnknown, match=write.coordinator):
        staged_write.finish(mq, write.transaction)
    services.start_broker(write.coordinator)
    poll_until(lambda: write.coordinator in mq.run(mq.routes.cluster()).masters)
    assert staged_write.finish(mq, write.transaction) == CommittedWrite(write.transaction, 20)


def test_series_is_not_written_without_its_coordinator(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse the write, as a repeated batch would be written again."""
    write = open_write(mq, "q/t/", 5)
    write.commit(stage(mq, write))
    services.crash_broker(write.coordinator)
    poll_until(lambda: write.coordinator not in mq.run(mq.routes.cluster()).masters)
    monkeypatch.setattr(staged_write, "retry_while_unavailable", lambda attempt: attempt())
    with Connection([services.name_server.address]) as another:
        with pytest.raises(BrokerUnavailable, match=write.coordinator):
            StagedWrite.open(another, "t", BROKERS, series="q/t/", number=5)
        services.start_broker(write.coordinator)
        poll_until(lambda: write.coordinator in another.run(another.routes.cluster()).masters)
        assert StagedWrite.open(another, "t", BROKERS, series="q/t/", number=5) == CommittedWrite(write.transaction, 20)


def test_commit_wakes_waiting_polls(services: Services, mq: Connection, admin: Admin) -> None:
    write = open_write(mq)
    parts = stage(mq, write)
    queues = [MessageQueue("t", broker, 0) for broker in sorted(BROKERS)]
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as consumers:
        readers = [consumers.enter_context(PullConsumer(mq, f"g{n}")) for n in range(2)]
        polled = [
            pool.submit(reader.poll, queue, max_messages=100, timeout=20.0)
            for reader, queue in zip(readers, queues, strict=True)
        ]
        poll_until(lambda: all(len(broker.polls) for broker in services.brokers.values()))
        assert write.commit(parts).rows == 20
        assert [len(each.result(10)) for each in polled] == [10, 10]
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"after"), queue=MessageQueue("t", "broker-a", 0))
    assert count_stored(services) == 21


def test_write_of_30000_tasks_is_committed(services: Services, mq: Connection, admin: Admin) -> None:
    write = open_write(mq)
    parts = stage(mq, write)
    none = [(f"{number:032x}", write.coordinator, 0) for number in range(30_000)]
    assert write.commit([*none, *parts]) == staged_write.finish(mq, write.transaction)
    assert count_stored(services) == sum(rows for _, _, rows in parts)


def test_write_of_too_many_tasks_is_aborted(services: Services, mq: Connection, admin: Admin) -> None:
    write = open_write(mq)
    stage(mq, write)
    with pytest.raises(InvalidInput, match="coalesce"):
        write.commit((f"{number:032x}", write.coordinator, 0) for number in range(200_001))
    with pytest.raises(NotStored):
        staged_write.finish(mq, write.transaction)
    assert count_stored(services) == 0


def test_refusal_after_lost_answer_is_outcome_unknown(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover a regression: a refusal after a lost answer led to a second write.

    The coordinator has decided, then loses a replica and refuses every request.
    """
    write = open_write(mq)
    parts = stage(mq, write)
    broker, decisions = services.brokers[write.coordinator], 0
    handlers = broker._server.handlers

    async def decide(connection: ServerConnection, request: Command) -> Command | None:
        nonlocal decisions
        decisions += 1
        if decisions > 1:
            raise TooFewInSync("2 have to be in sync: [1] are")
        await handlers[RequestCode.DECIDE_WRITE](connection, request)
        connection.close()
        return None

    broker._server.handlers = {**handlers, RequestCode.DECIDE_WRITE: decide}
    with pytest.raises(OutcomeUnknown, match="do not repeat") as caught:
        write.commit(parts)
    assert (caught.value.transaction, caught.value.retriable) == (write.transaction, False)
    broker._server.handlers = handlers
    assert staged_write.finish(mq, write.transaction) == CommittedWrite(write.transaction, 20)
    assert count_stored(services) == 20


def test_close_during_commit_raises_outcome_unknown(services: Services, mq: Connection, admin: Admin) -> None:
    broker, decided = services.brokers["broker-a"], threading.Event()
    handlers = broker._server.handlers

    async def decide(connection: ServerConnection, request: Command) -> Command:
        answer = await handlers[RequestCode.DECIDE_WRITE](connection, request)
        decided.set()
        await asyncio.sleep(2.0)
        return answer

    closing = Connection([services.name_server.address])
    write = StagedWrite.open(closing, "t", {"broker-a"})
    assert isinstance(write, StagedWrite)
    parts = stage(mq, write)
    broker._server.handlers = {**handlers, RequestCode.DECIDE_WRITE: decide}
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(write.commit, parts)
        assert decided.wait(10.0)
        closing.close()
        with pytest.raises(OutcomeUnknown, match="do not repeat"):
            under_way.result(10.0)
    broker._server.handlers = handlers
    with pytest.raises(ClientClosed):
        write.commit(parts)
    assert staged_write.finish(mq, write.transaction) == CommittedWrite(write.transaction, 20)
    assert count_stored(services) == 20
