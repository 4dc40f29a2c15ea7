"""Check a running cluster by the responses of its members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from raymq.actors.protocol import BrokerInfo
from raymq.client.results import ClusterInfo
from raymq.cluster.doctor.check_result import CheckResult, fine, note, problem

_REFUSED_RATIO: Final = 0.90
_EARLY_RATIO: Final = 0.75
#: A scheduler calls the brokers twenty times a second; without it they deliver delayed messages by themselves.
_LATE_SECONDS: Final = 1.0
_STOP_MS: Final = 1_000.0
_SET_ASIDE: Final = "setAside_"
_WAITS_FOR: Final = "waitsFor_"
_RECENT_STOP: Final = "loopLongestStopMillisRecently"
#: Causes of refusals that point to a fault, not only to a high load.
_BAD_REFUSALS: Final = ("disk_full", "no_descriptors", "disk_failed", "connections")
#: States in which a keeper votes.
_LIVE_STATES: Final = ("running", "quiet")


def check_cluster(info: ClusterInfo, figures: Mapping[str, Mapping[str, str]]) -> Iterator[CheckResult]:
    """Run all checks of a cluster.

    `figures` are the runtime figures of the brokers that responded, by address.
    """
    yield from check_reachable(info)
    yield from in_sync(info)
    yield check_versions(info)
    for broker in info.brokers:
        if broker.state != "unreachable":
            yield from _broker(broker, figures.get(broker.address, {}))
    yield scheduler(info)
    yield from missing_topics(figures)


def check_reachable(info: ClusterInfo) -> Iterator[CheckResult]:
    """Check that every socket of the cluster answers from this machine."""
    there = 0
    ways = "see whether its process lives, and whether a firewall stands between"
    for broker in info.brokers:
        if broker.state == "unreachable":
            yield problem("sockets", f"{_named(broker)} does not answer at {broker.address}", broker.name, ways)
        elif broker.state != "running":
            found = f"{_named(broker)} is {broker.state}"
            yield problem(
                "sockets", found, broker.name, "`raymq broker list` and its actor's log say what it waits for"
            )
        else:
            there += 1
    for server in info.name_servers:
        if server.pid is None:
            yield problem("sockets", f"the name server at {server.address} does not answer", server.address, ways)
        else:
            there += 1
    for keeper in info.keepers:
        if keeper.state == "unreachable":
            yield problem("sockets", f"keeper {keeper.id} does not answer at {keeper.address}", keeper.address, ways)
        elif keeper.state not in _LIVE_STATES:
            remedy = "`raymq cluster start` with the arguments of before gives it a file again, if a majority lives"
            yield problem(
                "keepers", f"keeper {keeper.id} has no voice: its file is {keeper.state}", keeper.address, remedy
            )
        else:
            there += 1
    if not info.brokers:
        yield problem("sockets", "no broker is registered", remedy="start the cluster again: what is missing is made")
    yield fine("sockets", f"{there} brokers, name servers and keepers answer from here")


def check_versions(info: ClusterInfo) -> CheckResult:
    """Check that all brokers that answer run the same RayMQ version.

    A finished rolling upgrade leaves the brokers with the same version.
    """
    running: dict[str, list[str]] = defaultdict(list)
    for broker in info.brokers:
        if broker.state != "unreachable":
            running[broker.version or "from before versions were told"].append(_named(broker))
    told = "; ".join(f"RayMQ {version}: {', '.join(names)}" for version, names in sorted(running.items()))
    if len(running) < 2:
        return fine("versions", told or "no broker answers")
    remedy = "install the newest one on every machine, then `raymq broker restart --rolling` (docs/deployment.md)"
    return note("versions", f"brokers run different versions: {told}", remedy=remedy)


def in_sync(info: ClusterInfo) -> Iterator[CheckResult]:
    """Check that each group has a master, and that all replicas are in sync."""
    groups: dict[str, list[BrokerInfo]] = defaultdict(list)
    for broker in info.brokers:
        groups[broker.name].append(broker)
    for name, replicas in groups.items():
        masters = [each for each in replicas if each.role == "master" and each.state == "running"]
        if len(replicas) == 1 and replicas[0].in_sync is None:
            continue
        if not masters:
            yield problem(
                "in sync", "the group has no master", name, f"raymq broker elect {name} says why there is none"
            )
            continue
        behind = sorted({each.replica for each in replicas} - set(masters[0].in_sync or ()))
        if behind:
            lags = {each.replica: each.lag_bytes for each in replicas}
            told = ", ".join(f"{number} ({lags[number] or 0} B behind)" for number in behind)
            remedy = "see whether it runs, and what `raymq broker list` says of it; it comes in again by itself"
            yield problem("in sync", f"of {len(replicas)} replicas not in sync: {told}", name, remedy)
        else:
            yield fine("in sync", f"all {len(replicas)} replicas are in sync", name)


def _broker(broker: BrokerInfo, figures: Mapping[str, str]) -> Iterator[CheckResult]:
    where = _named(broker)
    for damage in broker.corruption:
        remedy = f"`raymq store verify {broker.store}` lists it; a replica or a backup may have what is damaged"
        found = f"{damage.file} at byte {damage.offset}: {damage.reason}"
        yield problem("corruption", found, where, remedy)
    if broker.disk_ratio >= _REFUSED_RATIO:
        remedy = "make room: it takes messages again by itself"
        yield problem("disk room", f"{broker.disk_ratio:.0%} of its disk is used: it refuses messages", where, remedy)
    elif broker.disk_ratio >= _EARLY_RATIO:
        yield note("disk room", f"{broker.disk_ratio:.0%} of its disk is used", where, "make room before it is 90 %")
    refused = {cause: broker.refusals.get(cause, 0) for cause in _BAD_REFUSALS if broker.refusals.get(cause)}
    if refused:
        told = ", ".join(f"{cause} {count}" for cause, count in refused.items())
        yield note(
            "refusals", f"since its start it has refused: {told}", where, "see docs/producing.md, a broker's side"
        )
    yield check_quarantine(figures, where)
    stop_ms = _number(figures.get(_RECENT_STOP))
    if stop_ms > _STOP_MS:
        remedy = "look what else uses its processors and its disk: nobody is served meanwhile"
        yield note("stops", f"lately its loop has stood still for {stop_ms:.0f} ms", where, remedy)


def check_quarantine(figures: Mapping[str, str], where: str) -> CheckResult:
    """Check for messages that could not be copied and were set aside."""
    counts = {name.removeprefix(_SET_ASIDE): _number(figures[name]) for name in figures if name.startswith(_SET_ASIDE)}
    there = {duty: count for duty, count in counts.items() if count}
    if not there:
        return fine("undeliverable messages", "none was set aside", where)
    told = ", ".join(f"{duty} {count:.0f}" for duty, count in there.items())
    remedy = "raymq/set_aside.jsonl in its directory says which and why; they stay in the log until they expire"
    return note("undeliverable messages", f"set aside, by duty: {told}", where, remedy)


def scheduler(info: ClusterInfo) -> CheckResult:
    """Check that delayed messages are delivered in time."""
    if info.scheduler.pid is None:
        found = "no scheduler has asked the brokers: they deliver delayed messages by themselves"
        return note("scheduler", found, remedy="start the cluster again: what is missing is made")
    if (info.scheduler.lateness or 0.0) > _LATE_SECONDS:
        found = f"delayed messages come {info.scheduler.lateness:.1f} s late"
        return problem("scheduler", found, remedy="look what else uses the brokers' processors and disks")
    return fine("scheduler", f"process {info.scheduler.pid} asks the brokers in time")


def missing_topics(figures: Mapping[str, Mapping[str, str]]) -> Iterator[CheckResult]:
    """Check that every topic that a consumer subscribes to exists."""
    waiting: dict[str, set[str]] = defaultdict(set)
    for told in figures.values():
        for name in told:
            if name.startswith(_WAITS_FOR):
                waiting[name.removeprefix(_WAITS_FOR)].update(told[name].split())
    for group, topics in sorted(waiting.items()):
        for topic in sorted(topics):
            found = f"group {group} waits for topic {topic}, which does not exist"
            yield note("missing topics", found, group, f"raymq topic create {topic}")
    if not waiting:
        yield fine("missing topics", "no consumer waits for a topic that does not exist")


def _named(broker: BrokerInfo) -> str:
    return f"{broker.name}.{broker.replica}" if broker.replica else broker.name


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
