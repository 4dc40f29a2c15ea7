"""Run RocketMQ's own tests, all or some of their classes, against a RayMQ cluster or another one.

    make test-rocketmq [ARGS="--list"] [ARGS="pop OffsetResetIT"] [ARGS="--name-servers 10.0.0.1:9876"]

A class with unexpected results runs once more, alone: its time-outs are meant for a machine of its own. Exits with
0 if all results are as expected, 1 if not, 2 if nothing could run.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator

from raymq import cluster
from tests.interop.conftest import CONFIG
from tests.interop.rocketmq import suite
from tests.interop.rocketmq.expectations import expected_failures
from tests.ray_cluster import own_ray


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="test-rocketmq", description="RocketMQ's own tests against a cluster.")
    parser.add_argument("classes", nargs="*", help="only classes whose names hold one of these")
    parser.add_argument("--list", action="store_true", help="the classes, and what is known not to pass; runs nothing")
    parser.add_argument("--name-servers", help="an outside cluster, host:port[;host:port]; else one is started")
    options = parser.parse_args(arguments)
    try:
        names = suite.chosen(options.classes)
        if options.list:
            for name in names:
                print(name, *(f"(not {method})" for method in sorted(expected_failures(name))))
            return 0
        suite.build()
    except (ValueError, suite.CannotBuild) as error:
        print(error, file=sys.stderr)
        return 2
    with _cluster(options.name_servers) as name_servers:
        wrong = [name for name in names if not _run(name, name_servers)]
        wrong = [name for name in wrong if not _run(name, name_servers)]
    print(f"{len(names) - len(wrong)} classes do as expected, {len(wrong)} do not")
    return 1 if wrong else 0


@contextlib.contextmanager
def _cluster(name_servers: str | None) -> Iterator[str]:
    if name_servers is not None:
        yield name_servers
        return
    with (
        tempfile.TemporaryDirectory(prefix="raymq-test-rocketmq-") as root,
        own_ray(),
        cluster.start(brokers=2, root=root, namespace="test_rocketmq", config=CONFIG) as started,
    ):
        yield ";".join(started.name_servers)


def _run(name: str, name_servers: str) -> bool:
    """Run one class and print its results; return whether they were expected."""
    begun = time.monotonic()
    outcome = suite.run(name, name_servers)
    counts = [f"{outcome.run} run"]
    if known := len(outcome.failed) - len(outcome.unexpected):
        counts.append(f"{known} known not to pass")
    print(
        "PASS" if outcome.is_as_expected else "FAIL", name, f"({', '.join(counts)}, {time.monotonic() - begun:.0f} s)"
    )
    for method, why in outcome.unexpected.items():
        print(f"    {method}: {why}")
    for method in outcome.surprises:
        print(f"    {method} passes and must leave expectations.py")
    if outcome.broke_off:
        print(f"    {outcome.broke_off}")
    sys.stdout.flush()
    return outcome.is_as_expected


if __name__ == "__main__":
    sys.exit(main())
