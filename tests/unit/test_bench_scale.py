"""Test the calculations of the scale bench: costs on many hosts, and topics per machine."""

from __future__ import annotations

import pytest

from tests.bench.scale.extrapolation import Assumed, Line, extrapolated
from tests.bench.scale.rows import Row
from tests.bench.scale.size import Size


@pytest.mark.parametrize(
    ("points", "at_10"),
    [
        ({1: 5.0}, 5.0),
        ({1: 3.0, 2: 5.0, 4: 9.0}, 21.0),
        ({1: 4.0, 2: 4.0, 4: 4.0}, 4.0),
        ({1: 6.0, 2: 4.0}, 5.0),  # a falling line is noise, so the mean is used
    ],
)
def test_line_fits_the_measured_points(points: dict[int, float], at_10: float) -> None:
    assert Line.through(points).at(10) == pytest.approx(at_10)


@pytest.mark.parametrize(
    ("files", "mappings", "topics"),
    [
        (1_048_576, 1_048_576, 10_000),
        (1_048_576, 65_530, 7_941),  # (65,530 - 2,000) / 8
        (20_000, 65_530, 1_625),  # (20,000 - 5,000 - 2,000) / 8
        (5_000, 65_530, 1),
    ],
)
def test_topics_are_limited_by_open_files_and_mappings(files: int, mappings: int, topics: int) -> None:
    assert Size().with_a_file_for_each_queue(files, mappings).topics == topics


@pytest.mark.parametrize(("topics", "messages", "batch"), [(10_000, 50_000_000, 157), (10, 1, 1), (10, 640, 2)])
def test_messages_are_spread_evenly_over_queues(topics: int, messages: int, batch: int) -> None:
    size = Size(topics=topics, messages=messages)
    assert size.batch == batch
    assert size.sent == batch * size.rounds * topics * size.queues >= messages


def measured_rows() -> list[Row]:
    rows = [
        Row("clusters", "scheduler", f"{n} broker{'s' * (n > 1)}", "CPU, no messages", 5.0 * n, "ms/s")
        for n in (1, 2, 4)
    ]
    rows += [
        Row("clusters", "brokers", f"{n} broker{'s' * (n > 1)}", "CPU, no messages", 20.0 * n, "ms/s")
        for n in (1, 2, 4)
    ]
    rows += [
        Row("clusters", "consumers", f"{n} broker{'s' * (n > 1)}", "CPU, no messages", 2.0 + 2 * n, "ms/s")
        for n in (1, 2, 4)
    ]
    for actor in ("coordinator", "keepers"):
        rows.append(Row("clusters", actor, "1 group of 2", "CPU, no messages", 3.0, "ms/s"))
        rows.append(Row("clusters", actor, "2 groups of 2", "CPU, no messages", 6.0, "ms/s"))
    for topics in (100, 1_000, 10_000):
        stage = f"{topics:,} topics"
        rows.append(Row("control", "name server", stage, "CPU of a registration", topics / 100, "ms"))
        rows.append(Row("control", "name server", stage, "memory of a topic of a broker", 128.0, "bytes"))
        rows.append(Row("control", "name server", stage, "CPU of a heartbeat", 100.0, "us"))
    for width in (1, 10, 100):
        rows.append(Row("control", "name server", f"a topic on {width}", "CPU of a route", 200.0 + width, "us"))
    for members in (10, 100, 1_000):
        stage = f"{members:,} members"
        rows.append(Row("control", "broker", stage, "CPU of a member's heartbeat", 100.0, "us"))
        rows.append(Row("control", "broker", stage, "CPU of a list of members", 90.0 + members / 2, "us"))
    return rows


def test_costs_are_extrapolated_to_100_hosts() -> None:
    assumed = Assumed(clients_per_host=10, topics=1_000, topics_of_a_client=3, members=20)
    found = {(row.subject, row.name): row.value for row in extrapolated(measured_rows(), assumed, 100)}

    assert found == pytest.approx(
        {
            ("name server", "heartbeats of brokers"): 10.0,  # 100 a second, 100 us each
            ("name server", "routes for clients"): 30.0,  # 1,000 clients ask for 3 in 30 s, 300 us each
            ("name server", "to learn all anew after its start"): 1.0,  # 100 registrations of 10 ms
            ("name server", "memory of all routes"): 100 * 1_000 * 128 / 2**20,
            ("scheduler", "asking what is due"): 500.0,
            ("coordinator", "groups with two replicas"): 300.0,
            ("keepers", "groups with two replicas"): 300.0,
            ("a broker", "what it does of itself"): 20.0,
            ("a broker", "heartbeats of all consumers"): 10.0,  # 1,000 in 10 s, 100 us each
            ("a broker", "lists of members for them"): 5.0,  # 1,000 in 20 s, 100 us each
            ("a broker", "connections"): 1_000.0,
            ("a consumer", "what it does of itself"): 101.0,
        }
    )


def test_missing_measurement_raises_key_error() -> None:
    without = [row for row in measured_rows() if row.subject != "scheduler"]
    with pytest.raises(KeyError):
        list(extrapolated(without, Assumed(), 10))
