"""Test that brokers remove reserved properties of clients, and start in spite of stored ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.appending import producer_state_journal
from raymq.actors.broker.core.appending.idempotence import ProducerStateTable
from raymq.actors.errors import MessageIllegal
from raymq.storage.records import property_names as names
from raymq.storage.records.record import encode, encode_properties
from tests.unit.actors.foreign_intake import BORN_HOST, Intake, member
from tests.validation import check_invariants

RESERVED = sorted({*names.OF_BROKERS, *(name for name in names.SYSTEM_PROPERTIES if name.startswith("RAYMQ_"))})


@pytest.fixture
def intake(tmp_path: Path) -> Iterator[Intake]:
    made = Intake(tmp_path)
    yield made
    made.store.close()


def test_reserved_properties_of_clients_are_removed(intake: Intake) -> None:
    """Cover fault 13.3, and POP_CK of a popped and forwarded message (fault 14.16)."""
    told = dict.fromkeys([*RESERVED, "RAYMQ_ANYTHING"], "x")
    intake.accept(queue_id=0, properties={**told, "mine": "stays"})
    intake.accept_batch(member(b"m", {**told, "mine": "stays"}), queue_id=0, properties=dict(told))
    for record in intake.records():
        assert not {name for name in record.properties if names.is_reserved(name)}
        assert record.properties["mine"] == "stays"


@pytest.mark.parametrize(("told", "stored"), [(-5, 0), (-(2**31), 0), (7, 7), (2**31 - 1, 1 << 30)])
def test_reconsume_times_of_clients_are_clamped(intake: Intake, told: int, stored: int) -> None:
    """Cover fault 13.5."""
    intake.accept(queue_id=0, reconsume_times=told)
    assert intake.records()[0].reconsume_times == stored


@pytest.mark.parametrize(
    "forged",
    [
        {"RAYMQ_SEQUENCE": "x", "REAL_QID": "abc"},
        {"RAYMQ_SEQUENCE": "0" * 48, "REAL_QID": "abc"},
        {"RAYMQ_SEQUENCE": "f" * 48},
        {"RAYMQ_SEQUENCE": "0" * 16 + "+fffffff" + "f" * 16 + "00000001"},
        {"RAYMQ_DELIVERED_FROM": "1:0", "REAL_QID": "9" * 5_000},
    ],
)
def test_startup_ignores_stored_forgeries(intake: Intake, tmp_path: Path, forged: dict[str, str]) -> None:
    """Cover fault 13.3: int('abc') failed at every start."""
    record = encode("t", 0, b"x", encode_properties(forged), born_timestamp_ms=1, born_host=BORN_HOST)
    intake.store.append(record, np.array([len(record)], np.int32))
    table = ProducerStateTable(intake.clock)
    producer_state_journal.replay(table, intake.store, 0)
    check_invariants(table)


def test_delayed_message_with_too_large_properties_is_refused(intake: Intake) -> None:
    """Cover fault 13.1: an accepted message that could not be delivered stopped all later ones."""
    before = intake.state()
    with pytest.raises(MessageIllegal, match="31743 bytes"):
        intake.accept(properties={"DELAY": "1", "p": "y" * 31_743})
    assert intake.state() == before
    intake.accept(queue_id=0, properties={"DELAY": "1", "p": "y" * 31_000})
    intake.clock.advance(2)
    assert intake.core.deliver_due().delivered == 1
