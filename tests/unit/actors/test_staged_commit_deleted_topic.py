"""Test a commit to a topic deleted meanwhile: only its rows stay hidden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.errors import MessageNotFound
from raymq.storage.records.record import encode, encode_properties
from tests import staged_rows
from tests.unit.actors.bench import Bench

TIMER_QUEUE = ("t", 0)
ALL_TIME = (0, 1 << 60)


@pytest.fixture(params=[False, True], ids=["living", "restarted"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Yield a broker whose topic is deleted after three of six staged rows.

    Two messages lie before these rows.
    """
    made = Bench(tmp_path)
    made.core.topics.create("t", 1)
    send(made, b"old 0", b"old 1")
    for number in range(2):
        rows = [row(b"%d %d" % (number, each)) for each in range(3)]
        sizes = np.array([*map(len, rows)], np.int32)
        staged_rows.stage(made.core.staging, "tx", "p", number, TIMER_QUEUE, memoryview(b"".join(rows)), sizes, "home")
    assert next(iter(staged_rows.commit(made.core.staging, "tx", ["p"], 6))) == 3
    assert made.core.bounds(*TIMER_QUEUE) == (0, 2)
    made.core.topics.delete("t")
    made.is_restarted = request.param
    yield made
    made.store.close()


def row(body: bytes) -> bytes:
    properties = encode_properties({"KEYS": "k"})
    return encode("t", 0, body, properties, born_timestamp_ms=1, born_host=("10.0.0.1", 5))


def send(bench: Bench, *bodies: bytes) -> None:
    rows = [row(body) for body in bodies]
    bench.core.append("t", 0, memoryview(b"".join(rows)), np.array([*map(len, rows)], np.int32))


def places_of(bench: Bench, *begins: bytes) -> list[int]:
    return [record.physical_offset for record in bench.store.walk(0) if record.body.startswith(begins)]


def query_bodies(bench: Bench) -> set[bytes]:
    return {record.body for record in bench.store.query("t", "k", *ALL_TIME, 99)}


def restart(bench: Bench) -> None:
    if bench.is_restarted:
        bench.crash()


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_rows_of_open_commit_are_hidden(bench: Bench, *, is_made_anew: bool) -> None:
    if is_made_anew:
        bench.core.topics.create("t", 1)
        send(bench, *(b"new %d" % number for number in range(5)))
    restart(bench)
    hidden = places_of(bench, b"0", b"1")
    assert len(hidden) == 3
    for place in hidden:
        for look in (bench.store.read_at, bench.store.raw_at):
            with pytest.raises(MessageNotFound, match="under way"):
                look(place)
    for place in places_of(bench, b"old", b"new"):
        bench.store.read_at(place)
    assert not {body for body in query_bodies(bench) if not body.startswith((b"old", b"new"))}
    assert len(query_bodies(bench)) == 2 + 5 * is_made_anew
    list(staged_rows.commit(bench.core.staging, "tx", ["p"], 6))
    staged_rows.close(bench.core.staging, "tx")
    assert not bench.store.read_barrier.is_active
    for place in hidden:
        bench.store.read_at(place)


def test_recreated_topic_is_fully_visible(bench: Bench) -> None:
    bench.core.topics.create("t", 1)
    send(bench, *(b"new %d" % number for number in range(5)))
    restart(bench)
    assert bench.core.bounds(*TIMER_QUEUE) == (0, 5)
    bench.arrivals.clear()
    send(bench, b"new 5")
    assert bench.arrivals == [TIMER_QUEUE]
    assert list(staged_rows.commit(bench.core.staging, "tx", ["p"], 6)) == [0]
    assert bench.core.bounds(*TIMER_QUEUE) == (0, 6)
    assert bench.bodies("t") == [b"new %d" % number for number in range(6)]
    staged_rows.close(bench.core.staging, "tx")
    assert len(bench.bodies("t")) == 6


def test_recreated_topic_is_distinct_after_log_expiry(bench: Bench) -> None:
    bench.core.topics.create("t", 1)
    send(bench, *(b"new %d" % number for number in range(5)))
    bench.store.flush()
    bench.store._parts.deleted_topics.clear()  # as when the log before the deletion has expired
    restart(bench)
    bench.store._parts.deleted_topics.clear()
    assert bench.store.incarnation("t") == 0
    assert list(staged_rows.commit(bench.core.staging, "tx", ["p"], 6)) == [0]
    assert bench.core.bounds(*TIMER_QUEUE) == (0, 5)
    assert bench.bodies("t") == [b"new %d" % number for number in range(5)]


def test_second_commit_hides_and_reveals_only_its_rows(bench: Bench) -> None:
    bench.core.topics.create("t", 1)
    send(bench, b"new 0")
    restart(bench)
    rows = [row(b"second %d" % each) for each in range(3)]
    sizes = np.array([*map(len, rows)], np.int32)
    staged_rows.stage(bench.core.staging, "ty", "p", 0, TIMER_QUEUE, memoryview(b"".join(rows)), sizes, "home")
    assert list(staged_rows.commit(bench.core.staging, "ty", ["p"], 3)) == [3]
    assert bench.core.bounds(*TIMER_QUEUE) == (0, 1)
    [place, *_] = places_of(bench, b"0")
    staged_rows.close(bench.core.staging, "ty")
    assert bench.core.bounds(*TIMER_QUEUE) == (0, 4)
    with pytest.raises(MessageNotFound, match="under way"):
        bench.store.read_at(place)
