"""Test that invented brokers neither fill a name server nor displace real brokers."""

from __future__ import annotations

import random

import pytest

from raymq.actors.errors import InvalidInput, ServerBusy
from raymq.actors.names import route_table as name_server
from raymq.actors.names.route_table import EXPIRY_SECONDS, LEARNING_SECONDS, RouteTable
from raymq.actors.protocol import QueueData
from raymq.storage.files.json_file import DataVersion
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants

ONE, TWO = DataVersion(1, 1), DataVersion(2, 2)


@pytest.fixture
def table(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> RouteTable:
    monkeypatch.setattr(name_server, "MAX_PER_CONNECTION", 4)
    monkeypatch.setattr(name_server, "MAX_REGISTRATIONS", 10)
    monkeypatch.setattr(name_server, "MAX_TOPICS", 100)
    made = RouteTable(clock)
    clock.advance(LEARNING_SECONDS)
    return made


def topics(broker: str, count: int, first: int = 0) -> dict[str, QueueData]:
    return {f"t{n}": QueueData(broker, 1, 1) for n in range(first, first + count)}


def register(table: RouteTable, broker: str, connection: str, count: int = 1, replica: int = 0) -> None:
    table.register("c", broker, replica, f"h:{replica + 1}", topics(broker, count), ONE, connection)
    check_invariants(table)


@pytest.mark.parametrize("replica", [-1, -(1 << 63)])
def test_negative_broker_id_is_refused(table: RouteTable, replica: int) -> None:
    """Refuse negative ids: the lowest id is the master's and gets all messages."""
    register(table, "a", "c1")
    with pytest.raises(InvalidInput, match="brokerId"):
        register(table, "a", "c2", replica=replica)
    assert set(table.route("t0").addresses.values()) == {"h:1"}
    register(table, "a", "c2", replica=1)


def test_brokers_per_connection_are_bounded(table: RouteTable) -> None:
    for number in range(4):
        register(table, "made-up", "c1", replica=number)
    with pytest.raises(InvalidInput, match="4 brokers of one connection"):
        register(table, "another", "c1")
    register(table, "made-up", "c1", replica=2)
    register(table, "real", "c2")
    assert set(table.route("t0").addresses) == {"made-up", "real"}


def test_registration_limit_keeps_known_brokers(table: RouteTable, clock: FakeClock) -> None:
    register(table, "real", "own", count=5)
    for number in range(9):
        register(table, f"made-up-{number}", f"c{number}")
    with pytest.raises(ServerBusy, match="10 brokers"):
        register(table, "one-more", "c")
    clock.advance(EXPIRY_SECONDS)
    assert table.heartbeat("real", 0, "h:1", ONE, "own")
    register(table, "real", "own again", count=5)
    assert table.amend("real", 0, ONE, TWO, topics("real", 1, first=5), ["t0"])
    clock.advance(0.1)
    table.expire()
    check_invariants(table)
    assert list(table.view().brokers) == ["real"]
    register(table, "one-more", "c")


def test_total_topics_are_bounded(table: RouteTable) -> None:
    register(table, "real", "own", count=40)
    register(table, "made-up", "c1", count=60)
    with pytest.raises(ServerBusy, match="100 topics"):
        register(table, "another", "c2")
    with pytest.raises(ServerBusy, match="100"):
        table.amend("made-up", 0, ONE, TWO, topics("made-up", 2, first=60), ["t0"])
    check_invariants(table)
    register(table, "real", "own", count=40)
    assert table.amend("made-up", 0, ONE, TWO, topics("made-up", 2, first=60), ["t0", "t1"])
    table.delete_topic("t5")
    check_invariants(table)
    table.unregister("made-up", 0)
    table.unregister("nobody", 0)
    register(table, "another", "c2", count=60)


def test_name_lengths_are_bounded(table: RouteTable) -> None:
    for identity in (("c" * 256, "b", "h:1"), ("c", "b" * 256, "h:1"), ("c", "b", "h" * 256)):
        cluster, broker, address = identity
        with pytest.raises(InvalidInput, match="255 characters"):
            table.register(cluster, broker, 0, address, {})
    assert not table.view().brokers
    check_invariants(table)


def test_counts_match_table_under_random_operations(table: RouteTable, clock: FakeClock) -> None:
    rng = random.Random(5)
    for _ in range(3_000):
        broker, replica = f"b{rng.randrange(6)}", rng.randrange(3)
        try:
            match rng.randrange(5):
                case 0:
                    register(table, broker, f"c{rng.randrange(5)}", count=rng.randrange(30), replica=replica)
                case 1:
                    changed = topics(broker, rng.randrange(8), first=rng.randrange(30))
                    table.amend(broker, replica, ONE, ONE, changed, [f"t{rng.randrange(40)}" for _ in range(5)])
                case 2:
                    table.unregister(broker, replica)
                case 3:
                    table.delete_topic(f"t{rng.randrange(40)}")
                case 4:
                    clock.advance(rng.random())
                    table.expire()
        except (ServerBusy, InvalidInput):
            pass
        check_invariants(table)
