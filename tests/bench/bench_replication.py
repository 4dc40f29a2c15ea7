"""What copies cost: one copy beside replicas in sync, of ours, of Kafka and of RocketMQ, each system in turns.

Run by `make bench-replication`. Prints a table, with --json a JSON value; --quick measures less of it, without other
systems, which --only names otherwise. With --hosts namespaces each broker has a network namespace of its own, and so
have the clients; that needs Linux, and root or user namespaces.

All processes share the machine's cores, so rates say what this machine does. "CPU" is what a message costs each process
in its best round: on machines of their own the largest of these says how many there can be ("own cores"). The sides of
a system are measured in turns, another one first each time; the best round is told, and the median one. A round of
single sends counts by its median; the client and what is no master are on one core then, and the master on the other
one: only one of them works at a time. Bare sockets, which keep nothing, are the floor of a single send. Compare ratios,
not times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from rich.table import Table

from raymq.cluster.output import console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.bench.bare_relays import bare_sides
from tests.bench.foreign import fetch, reason
from tests.bench.kafka_sides import kafka_sides
from tests.bench.memory import TouchedMemory
from tests.bench.placement import apart
from tests.bench.processor_time import processor_us
from tests.bench.rocketmq_sides import rocketmq_sides
from tests.bench.sides import Places, Side, namespaces, own_sides
from tests.chaos.failover.isolation import isolated, reason_not_to

SYSTEMS = ("sockets", "raymq", "kafka", "rocketmq")
SIZES = (100, 1024)
SINGLE_SIZE = 1024
TURNS, TURN = 20, 100
MESSAGES = {100: 120_000, 1024: 40_000}
ROUNDS = 9
#: How many pieces of touched memory a round takes for each copy, and what else it takes.
PIECES = {100: 1, 1024: 2}
BROKERS = 3
_ISOLATED = "RAYMQ_BENCH_ISOLATED"

Row = dict[str, object]


@dataclass
class Measured:
    """The rounds of one side."""

    seconds: list[float] = field(default_factory=list)
    #: Of each round, the processor time of each process.
    cpu_us: list[dict[str, float]] = field(default_factory=list)

    def least_cpu_us(self, count: int) -> dict[str, float]:
        """What a message costs each process in its best round."""
        return {who: min(each[who] for each in self.cpu_us) / count for who in self.cpu_us[0]}


def run(systems: Collection[str], sizes: Sequence[int], places: Places, *, quick: bool) -> list[Row]:
    """All rows: name, value, unit, its ratio to that of one copy, and p99 or the processor time of a message."""
    rows: list[Row] = []
    for system in systems:
        try:
            with tempfile.TemporaryDirectory() as folder, _sides(system, places, Path(folder), quick=quick) as sides:
                rows += _singles(sides, 5 if quick else TURNS)
                for size in sizes:
                    rows += _many(sides, size, MESSAGES[size] // (3 if quick else 1), 3 if quick else ROUNDS)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            if system == "raymq":
                raise
            rows.append({"name": system, "value": 0, "unit": f"not available: {reason(error)}"})
    return rows


def _sides(system: str, places: Places, folder: Path, *, quick: bool) -> AbstractContextManager[list[Side]]:
    if system == "sockets":
        return bare_sides(places, folder, os.getpid())
    if system == "kafka":
        return kafka_sides(places, folder)
    if system == "rocketmq":
        return rocketmq_sides(places, folder)
    return own_sides(places, folder, os.getpid(), modes=("sync",) if quick else ("sync", "async"))


def _cpu(processes: Mapping[str, int]) -> dict[str, float]:
    return {who: processor_us(pid) for who, pid in processes.items()}


def _turns(sides: Sequence[Side], turns: int) -> Iterator[tuple[int, Side]]:
    """Each side in each turn, another one first each time."""
    for turn in range(turns):
        first = turn % len(sides)
        for side in (*sides[first:], *sides[:first]):
            yield turn, side


def _singles(sides: Sequence[Side], turns: int) -> Iterator[Row]:
    times: dict[str, list[list[float]]] = {side.name: [] for side in sides}
    cpu: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    for turn, side in _turns(sides, turns + 1):
        before = _cpu(side.processes)
        with apart(side.processes["master"], [pid for who, pid in side.processes.items() if who != "master"]):
            taken = side.singles(TURN, SINGLE_SIZE)
        after = _cpu(side.processes)
        if turn:  # the first one only warms up
            times[side.name].append(taken)
            cpu[side.name].append({who: (after[who] - before[who]) / TURN for who in before})
    one = times[sides[0].name]
    for name, turns_of in times.items():
        taken = sorted(chain(*turns_of))
        best, best_of_one = (min(map(statistics.median, each)) for each in (turns_of, one))
        row: Row = {"name": f"{name}: send, {SINGLE_SIZE} B, one at a time", "value": round(best), "unit": "us p50"}
        row |= {"ratio": round(best / best_of_one, 2), "median": round(statistics.median(taken))}
        row["ratio_of_medians"] = round(statistics.median(taken) / statistics.median(chain(*one)), 2)
        row["p99"] = round(taken[int(len(taken) * 0.99)])
        yield {**row, "cpu_us": {who: round(min(each[who] for each in cpu[name]), 1) for who in cpu[name][0]}}


def _many(sides: Sequence[Side], size: int, count: int, rounds: int) -> Iterator[Row]:
    for way in sides[0].ways:
        memory = TouchedMemory(sum((1 + side.copies) * PIECES[size] for side in sides) * (rounds + 1))
        found = {side.name: Measured() for side in sides}
        for turn, side in _turns(sides, rounds + 1):
            memory.give((1 + side.copies) * PIECES[size])
            before = _cpu(side.processes)
            seconds = side.many(way, count, size)
            after = _cpu(side.processes)
            if turn:
                found[side.name].seconds.append(seconds)
                found[side.name].cpu_us.append({who: after[who] - before[who] for who in before})
        one = found[sides[0].name]
        for name, measured in found.items():
            cpu = measured.least_cpu_us(count)
            row: Row = {"name": f"{name}: {way}, {size} B", "value": round(count / min(measured.seconds))}
            row |= {"unit": "messages/s", "median": round(count / statistics.median(measured.seconds))}
            row["ratio"] = round(min(one.seconds) / min(measured.seconds), 2)
            row["ratio_of_medians"] = round(statistics.median(one.seconds) / statistics.median(measured.seconds), 2)
            row["cpu_us"] = {who: round(spent, 2) for who, spent in cpu.items()}
            row["own_cores"] = round(1e6 / max(cpu.values()))
            row["own_cores_ratio"] = round(max(one.least_cpu_us(count).values()) / max(cpu.values()), 2)
            yield row


def _report(rows: list[Row]) -> None:
    table = Table("what", "best", "unit", "beside one copy", "median", "p99", "CPU us/message", "own cores, ratio")
    for row in rows:
        cpu = row.get("cpu_us", {})
        assert isinstance(cpu, dict)
        table.add_row(
            str(row["name"]),
            f"{row['value']:,}",
            str(row["unit"]),
            str(row.get("ratio", "")),
            f"{row.get('median', '')} ({row.get('ratio_of_medians', '')})",
            str(row.get("p99", "")),
            ", ".join(f"{who} {spent}" for who, spent in cpu.items()),
            str(row.get("own_cores_ratio", "")),
        )
    console().print(table)


def main() -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON value and nothing else")
    parser.add_argument("--quick", action="store_true", help="less of it; other systems only if named")
    parser.add_argument("--hosts", choices=("one", "namespaces"), default="one", help="where brokers are")
    parser.add_argument("--only", choices=SYSTEMS, nargs="+", help="which systems")
    parser.add_argument("--size", type=int, choices=SIZES, nargs="+", default=SIZES, help="messages of so many bytes")
    arguments = parser.parse_args()
    systems = arguments.only or (SYSTEMS[:2] if arguments.quick else SYSTEMS)
    if arguments.hosts == "namespaces" and _ISOLATED not in os.environ:
        if (obstacle := reason_not_to()) is not None:
            parser.error(f"--hosts namespaces: {obstacle}")
        fetch([name for name in systems if name not in SYSTEMS[:2]])  # in there is no network
        again = isolated([sys.executable, *sys.argv])
        return subprocess.run(again, env=os.environ | {_ISOLATED: "1"}, check=False).returncode
    where = namespaces(BROKERS) if arguments.hosts == "namespaces" else nullcontext(Places())
    with where as places:
        rows = run(systems, arguments.size, places, quick=arguments.quick)
    if arguments.json:
        print(json.dumps(rows))
    else:
        _report(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
