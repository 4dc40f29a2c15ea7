"""A broker says "there is no home" only when nobody is left who may know one."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.actors.broker.core.coordinator_directory import CoordinatorDirectory
from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.storage.tables.coordinator_table import CoordinatorTable
from raymq.storage.tables.known_brokers import KnownBrokers


def broker(directory: Path, name: str, *, mark_discovered: bool = True) -> CoordinatorDirectory:
    made = CoordinatorDirectory(name, CoordinatorTable(directory / name), KnownBrokers(directory / name))
    if mark_discovered:
        made.mark_discovered()
    return made


def meet(newcomer: CoordinatorDirectory, name: str, known: CoordinatorDirectory, known_as: str) -> None:
    """What the duty of the broker called `name` does over the wire."""
    newcomer.add_brokers([known_as])
    known.register_peer(name)
    after = ""
    while True:
        page = known.page(after, 2)
        newcomer.merge(page.homes)
        if not page.last:
            break
        after = page.last
    newcomer.add_brokers(known.members)
    newcomer.mark_synced(known_as)


def test_who_has_just_started_does_not_say_that_there_is_none(tmp_path: Path) -> None:
    a = broker(tmp_path, "a", mark_discovered=False)
    with pytest.raises(BrokerUnavailable):
        a.find("series", "k")
    a.mark_discovered()
    assert a.find("series", "k") is None
    assert a.remember("series", "k", "a", ["a"]) == "a"
    assert broker(tmp_path, "a", mark_discovered=False).find("series", "k") == "a"


def test_who_has_not_met_all_does_not_say_that_there_is_none_over_restarts(tmp_path: Path) -> None:
    b = broker(tmp_path, "b")
    b.add_brokers(["a", "b"])
    for each in (b, broker(tmp_path, "b")):
        assert each.unsynced_brokers() == ["a"]
        with pytest.raises(BrokerUnavailable, match="a: ") as raised:
            each.find("series", "k")
        assert "forget_broker" in str(raised.value)
        with pytest.raises(BrokerUnavailable):
            each.remember("series", "k", "b", ["a", "b"])
        assert each.members == ["a", "b"]
    b.forget("a")
    assert broker(tmp_path, "b").find("series", "k") is None
    with pytest.raises(InvalidInput):
        b.forget("b")


def test_a_newcomer_knows_every_home_that_was_made_before_it_was_welcome(tmp_path: Path) -> None:
    a, b = broker(tmp_path, "a"), broker(tmp_path, "b")
    for number in range(7):
        assert a.remember("series", str(number), "a", ["a"]) == "a"
    meet(b, "b", a, "a")
    assert {b.find("series", str(number)) for number in range(7)} == {"a"}
    assert b.find("series", "7") is None
    assert a.members == b.members == ["a", "b"]


def test_no_home_is_made_by_who_has_not_asked_the_newcomer(tmp_path: Path) -> None:
    """Else two who see different brokers would both make a home: each at the first of those that it sees."""
    b, a = broker(tmp_path, "b"), broker(tmp_path, "a")
    meet(a, "a", b, "b")
    with pytest.raises(BrokerUnavailable, match="a: "):
        b.remember("series", "k", "b", ["b"])
    assert b.find("series", "k") is None
    assert a.remember("series", "k", "a", ["a", "b"]) == "a"
    assert b.remember("series", "k", "a") == "a"


def test_of_two_who_make_a_home_the_first_has_made_it(tmp_path: Path) -> None:
    a = broker(tmp_path, "a")
    a.register_peer("b")
    assert a.remember("stream", "k", "b", ["a", "b"]) == "b"
    assert a.remember("stream", "k", "a", ["a", "b"]) == "b"


def test_a_damaged_home_holds_up_nobody_elses(tmp_path: Path) -> None:
    a, b = broker(tmp_path, "a"), broker(tmp_path, "b")
    for number in range(3):
        a.remember("series", str(number), "a", ["a"])
    (tmp_path / "a" / "raymq" / "homes" / CoordinatorTable(tmp_path)._path("series", "1").name).write_bytes(b"\xc1")
    meet(b, "b", a, "a")
    assert [b.find("series", str(number)) for number in range(3)] == ["a", None, "a"]  # who asks a is told the damage
