"""Test bench_scale in its smallest form: it measures every documented figure and leaves no files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.polling import poll_until

BENCH = Path(__file__).resolve().parents[1] / "bench" / "bench_scale.py"
SMALLEST = [
    *("--topics", "3", "--messages", "96", "--timers", "20", "--connections", "12"),
    *("--samples", "20", "--seconds", "0.2", "--quick", "--json"),
]


def bench_command(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(BENCH), *SMALLEST, "--directory", str(directory), *arguments]


def run_bench(directory: Path, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(bench_command(directory, *arguments), check=True, capture_output=True, text=True, timeout=540)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_broker_bench_measures_every_stage(tmp_path: Path) -> None:
    found = {(row["stage"], row["name"]): row["value"] for row in run_bench(tmp_path, "--only", "broker")}

    stages = list(dict.fromkeys(stage for stage, _ in found))
    assert stages == [
        "empty",
        "3 topics of 8 queues",
        "+ 20 timers",
        "+ 96 messages",
        "+ 12 connections",
        "after a clean stop",
        "after SIGKILL",
    ]
    for stage in (stages[0], stages[1], *stages[-2:]):
        assert found[stage, "start"] > 0
    for stage in stages:
        assert found[stage, "memory of its own"] > 10
    for stage in stages[:5]:
        assert found[stage, "send, p99"] >= found[stage, "send, p50"] > 0
        assert found[stage, "CPU of a fetch of 32"] > 0
    held = found["+ 12 connections", "descriptors"] - found["+ 96 messages", "descriptors"]
    assert held >= 12
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.timeout(600)
def test_cluster_bench_extrapolates_to_many_hosts(tmp_path: Path) -> None:
    found = run_bench(tmp_path, "--only", "clusters", "control", "--brokers", "1")

    by_part: dict[str, dict[tuple[str, str, str], float]] = {}
    for row in found:
        by_part.setdefault(row["part"], {})[row["subject"], row["stage"], row["name"]] = row["value"]
    assert list(by_part) == ["clusters", "control", "extrapolated"]
    assert by_part["clusters"]["all of RayMQ", "1 broker", "messages a second"] > 0
    for role in ("brokers", "name server", "scheduler", "GCS", "raylet"):
        assert by_part["clusters"][role, "1 broker", "CPU, no messages"] >= 0
    for role in ("coordinator", "keepers"):
        assert by_part["clusters"][role, "1 group of 2", "CPU, no messages"] > 0
    assert by_part["control"]["name server", "10,000 topics", "CPU of a registration"] > 0
    at_10, at_100 = (
        {(who, name): value for (who, stage, name), value in by_part["extrapolated"].items() if stage == f"{n} hosts"}
        for n in (10, 100)
    )
    assert at_10.keys() == at_100.keys()
    assert at_100["a broker", "connections"] == 10 * at_10["a broker", "connections"]
    assert at_100["name server", "heartbeats of brokers"] > 5 * at_10["name server", "heartbeats of brokers"] > 0
    assert list(tmp_path.iterdir()) == []


def test_interrupted_bench_deletes_its_files(tmp_path: Path) -> None:
    process = subprocess.Popen(
        bench_command(tmp_path, "--only", "broker"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        poll_until(lambda: list(tmp_path.glob("*/broker-a/raymq/broker.json")), 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == []
