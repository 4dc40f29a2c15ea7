"""How far one broker goes, and what more brokers cost: memory, starts, latency, processor time.

    python bench_scale.py [--quick] [--json] [--only PART ...] [--messages N] [--topics N] [--timers N] ...

Run by `make bench-scale`. Three parts:

    broker    one broker with 10,000 topics of 8 queues, 1 M timers, 50 M messages of 100 B, 5,000 connections: what it
              holds and how a call goes at each stage, its start after a clean stop and after SIGKILL; and RocketMQ's
              broker beside it, where Java and its jars can be had
    clusters  the same load on 1, 2 and 4 brokers: processor time of each process for a message, and of idle ones
    control   what name servers, groups' members, scheduler, coordinator and keepers cost, and what follows from all
              that for 10 and 100 hosts

All figures are of this machine, on which everything runs at once: compare ratios. --quick takes 1,000 topics, 1 M
messages, 50,000 timers and 500 connections, and no RocketMQ. What is written lies below --directory, and is deleted at
the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.bench.foreign import reason
from tests.bench.scale import clusters, control_costs, extrapolation, stages
from tests.bench.scale.brokers import own_broker
from tests.bench.scale.rocketmq_broker import rocketmq_broker
from tests.bench.scale.rows import Row, RowCollector, report
from tests.bench.scale.size import QUICK, Size

SYSTEMS = ("raymq", "rocketmq")


def one_broker(size: Size, systems: list[str], folder: Path, collector: RowCollector) -> None:
    """The first part. Each system has the disk for itself: what the one before wrote is gone."""
    for system in systems:
        with tempfile.TemporaryDirectory(dir=folder, prefix="raymq-scale-") as below:
            if system == "raymq":
                with own_broker(Path(below), size) as own:
                    stages.Stages(own, collector).run()
                continue
            try:
                with rocketmq_broker(Path(below), size) as other:
                    stages.Stages(other, collector).run()
            except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
                told = reason(error)
                collector.add([Row(stages.PART, "RocketMQ", "not measured", told, 0.0, "")])


def more_brokers(size: Size, _: list[str], folder: Path, collector: RowCollector) -> None:
    """The second part."""
    clusters.run(size.brokers, size.idle_seconds, folder, collector)


def control(size: Size, _: list[str], folder: Path, collector: RowCollector) -> None:
    """The third part; what follows from it is told where the second one was measured, too."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="raymq-scale-") as below:
        control_costs.run(size.samples, Path(below), collector)
    if any(row.part == clusters.PART for row in collector.rows):
        for hosts in extrapolation.HOSTS:
            collector.add(extrapolation.extrapolated(collector.rows, extrapolation.Assumed(), hosts))


def _stopped(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON value and nothing else on standard output")
    parser.add_argument(
        "--quick", action="store_true", help="a small broker, without RocketMQ unless --system names it"
    )
    parser.add_argument("--only", choices=tuple(PARTS), nargs="+", default=list(PARTS), help="which parts")
    parser.add_argument("--system", choices=SYSTEMS, nargs="+", help="whose brokers")
    for name in ("topics", "messages", "timers", "connections", "samples"):
        parser.add_argument(f"--{name}", type=int, help="in the place of what is usual")
    parser.add_argument("--brokers", type=int, nargs="+", choices=(1, 2, 4), help="of the clusters")
    parser.add_argument("--seconds", type=float, help="for how long what is idle, or under load, is watched")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where it writes")
    asked = parser.parse_args()
    given = {name: getattr(asked, name) for name in ("topics", "messages", "timers", "connections", "samples")}
    given["idle_seconds"] = asked.seconds
    changes = {name: value for name, value in given.items() if value is not None}
    if any(value <= 0 for value in changes.values()):
        parser.error("numbers are above 0")
    if asked.brokers:
        changes["brokers"] = tuple(sorted(set(asked.brokers)))
    size = replace(QUICK if asked.quick else Size(), **changes)
    free = shutil.disk_usage(asked.directory).free
    if "broker" in asked.only and size.disk_bytes > free:
        parser.error(f"{size.disk_bytes >> 30} GiB are needed in {asked.directory}, {free >> 30} are free: --messages")
    systems = asked.system or list(SYSTEMS[:1] if asked.quick else SYSTEMS)
    signal.signal(signal.SIGTERM, _stopped)  # so that what was written is deleted then, too
    with RowCollector() as collector:
        for part in [part for part in PARTS if part in asked.only]:
            PARTS[part](size, systems, asked.directory, collector)
    if asked.json:
        print(json.dumps(collector.as_json()))
    else:
        report(collector.rows)
    return 0


PARTS: Mapping[str, Callable[[Size, list[str], Path, RowCollector], None]] = {
    "broker": one_broker,
    "clusters": more_brokers,
    "control": control,
}

if __name__ == "__main__":
    sys.exit(main())
