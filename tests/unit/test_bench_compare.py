"""Test how `make bench-compare` compares the printed bench results of two trees."""

from __future__ import annotations

from typing import Any

from tests.bench.compare import compared


def rows(rate: float, time: float) -> list[dict[str, Any]]:
    return [
        {"name": "batches", "value": rate, "unit": "messages/s"},
        {"name": "a send", "value": time, "unit": "us p50"},
        {"name": "beside Kafka", "value": 2.0, "unit": "x, goal 2"},
        {"name": "Redis", "value": 0, "unit": "not available: it is not there"},
    ]


def test_higher_rate_and_lower_time_compare_as_better() -> None:
    batches, send = compared([rows(100, 50), rows(80, 70), rows(90, 60)], [rows(50, 100), rows(90, 40), rows(40, 90)])
    assert batches.told() == {
        "name": "batches",
        "unit": "messages/s",
        "best": (100.0, 90.0),
        "best_ratio": 0.9,
        "median": (90.0, 50.0),
        "median_ratio": 0.556,
        "rounds": [3, 3],
    }
    assert (send.told()["best"], send.told()["best_ratio"]) == ((50.0, 40.0), 1.25)
    assert (send.told()["median"], send.told()["median_ratio"]) == ((60.0, 90.0), 0.667)


def test_row_missing_on_one_side_is_left_out() -> None:
    one, other = rows(1, 1), [{"name": "new", "value": 1, "unit": "messages/s"}, *rows(1, 1)]
    assert [each.name for each in compared([one], [other])] == ["batches", "a send"]
    assert [each.name for each in compared([other], [one])] == ["batches", "a send"]


def test_processor_time_of_all_processes_is_compared() -> None:
    by_process = [{"name": "sync", "value": 5, "unit": "messages/s", "cpu_us": {"master": 2.0, "replica": 1.0}}]
    in_order = [{"name": "sync", "value": 5, "unit": "messages/s", "cpu_us": [4.0, 2.0]}]
    _, cpu = compared([in_order], [by_process])
    assert (cpu.told()["name"], cpu.told()["best"], cpu.told()["best_ratio"]) == ("sync: CPU", (6.0, 3.0), 2.0)
