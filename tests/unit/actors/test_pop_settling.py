"""Test the settlement of deliveries: renewed leases, started and failed calls, ended consumers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import SettleAction, Settlement, SettleOutcome
from raymq.actors.request_limits import MAX_SETTLED
from raymq.actors.wire.commands.settle_commands import read_settlements, settle_command
from raymq.storage.tables.in_flight_messages import ExpiryReason
from tests.unit.actors.pop_bench import Handle, PopBench, bodies
from tests.validation import check_invariants

ACK, RUN, HOLD, RETURN, RETRY = SettleAction
STALE, DONE, DEAD = SettleOutcome

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    with closing(PopBench(tmp_path)) as made:
        yield made


def wait(bench: PopBench, seconds: float) -> None:
    bench.clock.advance(seconds)
    bench.pop.sweep()


def reasons(bench: PopBench) -> list[str]:
    return [record.properties["RAYMQ_DLQ_REASON"] for record in bench.dead_letters()]


def pop_one(bench: PopBench, **how: object) -> Handle:
    (handle,) = bench.receive(invisible=10, ahead=True, **how)  # type: ignore[arg-type]
    return handle


def test_renewed_lease_keeps_its_handle(bench: PopBench) -> None:
    bench.send(b"a")
    handle = pop_one(bench)
    for _ in range(20):
        assert bench.settle(handle, RUN, 10) is DONE
        wait(bench, 9)
        assert bench.receive() == []
    assert bench.settle(handle, ACK) is DONE
    assert bench.settle(handle, ACK) is STALE
    wait(bench, 100)
    assert bench.receive() == []
    assert bench.committed() == 1


def test_renewal_may_be_repeated_when_its_answer_was_lost(bench: PopBench) -> None:
    bench.send(b"a")
    handle = pop_one(bench)
    assert [bench.settle(handle, RUN, 10), bench.settle(handle, RUN, 10)] == [DONE, DONE]
    wait(bench, 9.999)
    assert bench.settle(handle, RUN, 10) is DONE


def test_ended_lease_cannot_be_renewed(bench: PopBench) -> None:
    bench.send(b"a")
    handle = pop_one(bench)
    wait(bench, 10)
    assert [bench.settle(handle, action) for action in SettleAction] == [STALE] * 5


def test_prefetched_delivery_counts_only_after_call_starts(bench: PopBench) -> None:
    bench.send(b"a")
    for _ in range(5):
        handle = pop_one(bench, maximum=1)
        assert handle.reconsume_times == 0
        bench.settle(handle, HOLD, 10)
        wait(bench, 10)
    bench.settle(pop_one(bench, maximum=1), RUN, 10)
    bench.kill()
    wait(bench, 10)
    assert pop_one(bench, maximum=1).reconsume_times == 1
    assert bench.dead_letters() == []


def test_returned_message_is_redelivered_at_once_uncounted(bench: PopBench) -> None:
    bench.send(b"a")
    first = pop_one(bench)
    assert bench.settle(first, RETURN) is DONE
    again = pop_one(bench)
    assert again.reconsume_times == 0
    assert bench.settle(first, ACK) is STALE
    assert bench.settle(again, ACK) is DONE


def test_call_that_did_not_start_does_not_count(bench: PopBench) -> None:
    bench.send(b"a")
    handle = pop_one(bench)
    bench.settle(handle, RUN, 10)
    bench.settle(handle, HOLD, 10)
    wait(bench, 10)
    assert pop_one(bench).reconsume_times == 0


def test_failed_message_waits_by_retry_ladder(bench: PopBench) -> None:
    bench.send(b"a")
    for times, seconds in enumerate((10, 30, 60)):
        handle = pop_one(bench)
        assert handle.reconsume_times == times
        bench.settle(handle, RUN, 1000)
        assert bench.settle(handle, RETRY, 0, "ValueError: no") is DONE
        assert bench.delay_ms == seconds * 1000
        assert bench.settle(handle, ACK) is STALE
        wait(bench, seconds - 0.001)
        assert bench.receive() == []
        wait(bench, 0.001)
    assert pop_one(bench).reconsume_times == 3


def test_failed_message_waits_requested_delay_level(bench: PopBench) -> None:
    bench.send(b"a")
    assert bench.settle(pop_one(bench), RETRY, 1) is DONE
    wait(bench, 1)
    assert pop_one(bench).reconsume_times == 1


def test_last_failure_makes_dead_letter_with_reason(bench: PopBench) -> None:
    bench.send(b"a", b"b")
    first = pop_one(bench, count=1, maximum=0)
    assert bench.settle(first, RETRY, 0, "ValueError: no") is DEAD
    assert bench.settle(first, RETRY, 0, "ValueError: no") is STALE
    bench.kill()
    bench.pop.sweep()
    assert bench.settle(pop_one(bench, maximum=7), RETRY, -1) is DEAD
    bench.pop.sweep()
    assert reasons(bench) == ["ValueError: no", "the listener asked for it"]
    assert [(record.body, record.reconsume_times) for record in bench.dead_letters()] == [(b"a", 1), (b"b", 1)]


def test_dead_letter_reason_counts_ended_consumers(bench: PopBench) -> None:
    bench.send(b"a")
    for _ in range(3):
        bench.settle(pop_one(bench, maximum=2), RUN, 10)
        bench.kill()
        wait(bench, 10)
    assert reasons(bench) == ["its consumer ended without an answer 3 times"]
    assert bench.dead_letters()[0].reconsume_times == 3


def test_only_unanswered_deliveries_count_as_ended_consumers(bench: PopBench) -> None:
    bench.send(b"a")
    bench.settle(pop_one(bench, maximum=2), RUN, 10)
    wait(bench, 10)
    failed = pop_one(bench, maximum=2)
    bench.settle(failed, RUN, 10)
    bench.settle(failed, RETRY, 1, "ValueError: no")
    wait(bench, 1)
    bench.settle(pop_one(bench, maximum=2), RUN, 10)
    wait(bench, 10)
    assert reasons(bench) == ["its consumer ended without an answer 2 times"]


def test_last_try_after_unanswered_delivery_is_suspect(bench: PopBench) -> None:
    bench.send(b"a", b"b")
    for handle in bench.receive(invisible=10, ahead=True, maximum=1):
        action = RUN if handle.body == b"a" else RETRY
        bench.settle(handle, action, 10 if action is RUN else 1)
    assert bench.suspects == []
    wait(bench, 10)
    assert bodies(bench.receive(ahead=True, maximum=1)) == [b"a", b"b"]
    assert bench.suspects == [0]


def test_message_unanswered_twice_is_suspect(bench: PopBench) -> None:
    bench.send(b"a")
    for _ in range(2):
        bench.settle(pop_one(bench), RUN, 10)
        assert bench.suspects == []
        wait(bench, 10)
    pop_one(bench)
    assert bench.suspects == [0]


def test_expired_delivery_of_started_call_is_unanswered(bench: PopBench) -> None:
    bench.send(b"a")
    for _ in range(2):
        bench.receive(invisible=10, ending=ExpiryReason.UNANSWERED, maximum=1)
        wait(bench, 10)
    assert reasons(bench) == ["its consumer ended without an answer 2 times"]


def test_reset_makes_leases_stale(bench: PopBench) -> None:
    bench.send(b"a")
    handle = pop_one(bench)
    bench.pop.forget("g", "t", 0)
    assert bench.settle(handle, RUN, 10) is STALE


def test_request_settles_deliveries_of_many_queues(tmp_path: Path) -> None:
    with closing(PopBench(tmp_path, queues=3)) as bench:
        for queue_id in range(3):
            bench.send(b"a", b"b", queue_id=queue_id)
        handles = sorted(bench.receive(ahead=True), key=lambda each: (each.queue_id, each.offset))
        actions = [ACK, RUN, ACK, ACK, RETRY, RETURN]
        wanted = [
            Settlement("t", each.queue_id, each.offset, each.pop_time_ms, action, 1)
            for each, action in zip(handles, actions, strict=True)
        ]
        none = Settlement("other", 0, 0, 1, ACK)
        settled = bench.pop.settle("g", [*wanted, wanted[0], none])
        assert [each.outcome for each in settled] == [*[DONE] * 6, STALE, STALE]
        check_invariants(bench.pop)
        assert [bench.committed(queue_id) for queue_id in range(3)] == [1, 2, 0]


@pytest.mark.parametrize(
    "told",
    [None, {}, [1], [[]], [["t", 0, 0, 0, 9, 0, ""]], [["t", 0, 0, "0", 0, 0, ""]], [[1, 0, 0, 0, 0, 0, ""]],
     [["t", True, 0, 0, 0, 0, ""]], [["t", 0, 1 << 63, 0, 0, 0, ""]], [["t", 0, 0, 0, 0, 0, None]],
     [["t", 0, 0, 0, 0, 0, ""]] * (MAX_SETTLED + 1)],
)  # fmt: skip
def test_malformed_settle_request_raises_invalid_input(told: object) -> None:
    command = settle_command("g", [])
    command.fields["deliveries"] = told
    with pytest.raises(InvalidInput):
        read_settlements(command)
    each = Settlement("t", 1, 2, 3, RETRY, -1, "no")
    assert read_settlements(settle_command("g", [each])) == [each]
