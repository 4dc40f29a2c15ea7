"""Run faults against a loaded cluster of hosts, and judge the result by checks.

    python -m tests.chaos.failover.run --seed 7 --faults 20

It runs in namespaces of its own, needs no Ray, leaves only its folder, and exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.chaos.failover.breaking import Breaking
from tests.chaos.failover.etcd_cluster import EtcdCluster
from tests.chaos.failover.faults import ONLY_BY_NAME, WEIGHTS
from tests.chaos.failover.final_read import note_end
from tests.chaos.failover.host_cluster import HostCluster
from tests.chaos.failover.isolation import isolated, reason_not_to
from tests.chaos.failover.nemesis import PAIR_SHARE, Nemesis
from tests.chaos.failover.recorded import Recorded
from tests.chaos.failover.replicated_cluster import ReplicatedCluster
from tests.chaos.failover.verdict import Verdict, as_json, judge

_INSIDE: Final = "RAYMQ_CHAOSINSIDE"


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed breaks the same things")
    parser.add_argument("--faults", type=int, default=10, help="how many times something is broken")
    parser.add_argument("--kills", type=int, default=0, help="break something until so many brokers were killed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no fault after so long")
    parser.add_argument("--hosts", type=int, default=3, help="with five there are five keepers, else three")
    parser.add_argument("--groups", type=int, default=1, help="broker groups, each replica on a host of its own")
    parser.add_argument("--replicas", type=int, default=2, help="copies of a group; 1: two brokers of one copy")
    parser.add_argument("--replication", choices=("sync", "async"), default="sync")
    parser.add_argument("--min-in-sync", type=int, default=1)
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    parser.add_argument("--register", choices=("keepers", "etcd"), default="keepers", help="etcd needs one in PATH")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two sends of a thread, about")
    parser.add_argument("--pairs", type=float, default=PAIR_SHARE, help="the share of faults that come two at a time")
    parser.add_argument("--drain", type=float, default=60.0, help="seconds that consumers have at the end, at most")
    parser.add_argument("--only", default="", help="parts of the names of the faults, with commas between them")
    parser.add_argument("--also", default="", help="the same, of faults that come only to who names them")
    parser.add_argument("--together", default="", help="part of the name of a fault that comes with every other one")
    parser.add_argument("--folder", type=Path, default=None, help="keep all files there; else they go if all is well")
    parser.add_argument("--json", action="store_true", help="the verdict as a line of JSON, too")
    return parser.parse_args(arguments)


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs this in namespaces of its own."""
    return isolated([sys.executable, "-m", "tests.chaos.failover.run", *arguments])


def fault_kinds(names: str) -> list[type[Breaking[Any]]]:
    """Return the kinds of faults whose names contain one of these parts."""
    parts = [part.strip() for part in names.split(",") if part.strip()]
    return [kind for kind in (*WEIGHTS, *ONLY_BY_NAME) if any(part in kind.name for part in parts)]


def run(args: argparse.Namespace, folder: Path) -> Verdict:
    """Run once. Everything it makes is in `folder`, or ends with the caller's namespaces."""
    began = time.monotonic()
    cluster = make_cluster(args, folder)
    cluster.start()
    cluster.start_load(args.seed, args.pause)
    nemesis = Nemesis(
        cluster,
        args.seed,
        kinds=(fault_kinds(args.only) or [*WEIGHTS]) + fault_kinds(args.also),
        say=say,
        pair_share=args.pairs,
        together=next(iter(fault_kinds(args.together)), None),
    )
    while _continues(args, nemesis, began):
        nemesis.turn()
    nemesis.crowding.stop()
    cluster.mend()
    cluster.stop_load(args.drain)
    note_end(nemesis, folder / "nemesis.history")
    besides = [("the end", cluster.stop())]
    recorded = Recorded.read(cluster.history, folder / "nemesis.history")
    seconds = time.monotonic() - began
    return judge(
        recorded,
        seed=args.seed,
        settings=describe_settings(args),
        seconds=seconds,
        is_sync=args.replicas == 1 or args.replication == "sync",
        waits=nemesis.waits,
        slowdowns=nemesis.slowdowns,
        stuck=nemesis.stuck,
        besides=besides,
    )


def make_cluster(args: argparse.Namespace, folder: Path) -> HostCluster:
    """Make the requested cluster."""
    if args.replicas == 1:
        return HostCluster(folder, hosts=args.hosts, groups=2)
    return (EtcdCluster if args.register == "etcd" else ReplicatedCluster)(
        folder,
        hosts=args.hosts,
        groups=args.groups,
        replicas=args.replicas,
        replication=args.replication,
        min_in_sync=args.min_in_sync,
        flush=args.flush,
    )


def describe_settings(args: argparse.Namespace) -> str:
    """Describe the requested cluster."""
    if args.replicas == 1:
        return f"2 brokers of one copy on {args.hosts} hosts"
    groups = "1 group" if args.groups == 1 else f"{args.groups} groups"
    return (
        f"{groups} of {args.replicas} replicas on {max(args.hosts, args.groups * args.replicas)} hosts, "
        f"{args.replication}, min_in_sync {args.min_in_sync}, flush {args.flush}"
        f"{', the register on etcd' if args.register == 'etcd' else ''}"
    )


def _continues(args: argparse.Namespace, nemesis: Nemesis, began: float) -> bool:
    if time.monotonic() - began > args.seconds:
        return False
    if args.kills:
        return sum("SIGKILL of a broker" in each.name for each in nemesis.faults) < args.kills
    return len(nemesis.faults) < args.faults


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    if _INSIDE not in os.environ:
        if reason := reason_not_to():
            say(reason)
            return 2
        return subprocess.run(command(sys.argv[1:]), env=os.environ | {_INSIDE: "1"}, check=False).returncode
    args = options()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="raymq-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    say(f"seed {args.seed}, files in {folder}")
    verdict = run(args, folder)
    (folder / "verdict.json").write_text(as_json(verdict), "utf-8")
    say(verdict.table())
    if args.json:
        say(as_json(verdict))
    if verdict.is_good and args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
