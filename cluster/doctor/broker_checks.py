"""Check a running cluster by the responses of its members."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from raymq.actors.naming import is_group
from raymq.actors.protocol import BrokerInfo
from raymq.client.results import ClusterInfo, OpenTransaction
from raymq.cluster.doctor.check_result import CheckResult, fine, note, problem

_DEFAULT_REFUSE_RATIO: Final = 0.90
_EARLY_RATIO: Final = 0.75
#: A scheduler calls the brokers twenty times a second; without it they deliver delayed messages by themselves.
_LATE_SECONDS: Final = 1.0
_STOP_MS: Final = 1_000.0
_SET_ASIDE: Final = "setAside_"
_WAITS_FOR: Final = "waitsFor_"
_TRANSACTIONS_OF: Final = "transactionsOf_"
_TRANSACTIONS_OF_OTHERS: Final = "transactionsOfOthers"
_REFUSE_RATIO: Final = "diskRefuseRatio"
_RECENT_STOP: Final = "loopLongestStopMillisRecently"
#: Causes of refusals that point to a fault, not only to a high load, with the remedies.
_REFUSAL_REMEDIES: Final = {
    "disk_full": "make room on its disk: it takes messages again by itself",
    "no_descriptors": "raise the limit of open files (ulimit -n, LimitNOFILE=)",
    "disk_failed": "check the disk and the kernel's log, then `raymq broker restart` it",
    "connections": "close clients that are not needed, or raise the limit of open files",
}
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
    yield from undecided_transactions(figures)


def check_reachable(info: ClusterInfo) -> Iterator[CheckResult]:
    """Check that every socket of the cluster answers from this machine."""
    there = 0
    ways = "check that its process runs and that no firewall blocks the connection"
    for broker in info.brokers:
        if broker.state == "unreachable" and not broker.address:
            has_others = any(each.name == broker.name and each.state != "unreachable" for each in info.brokers)
            command = f"remove {broker.name}.{broker.replica}" if has_others else f"forget {broker.name} --yes"
            remedy = f"start its machine and process again; if it is gone for good: raymq broker {command}"
            yield problem("sockets", f"{_named(broker)} is away, and its address is not known", broker.name, remedy)
        elif broker.state == "unreachable":
            yield problem("sockets", f"{_named(broker)} does not answer at {broker.address}", broker.name, ways)
        elif broker.state != "running":
            found = f"{_named(broker)} is {broker.state}"
            yield problem(
                "sockets", found, broker.name, "`raymq broker list` and its actor's log show what it waits for"
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
            remedy = "`raymq cluster start` with the same arguments creates its file again, if a majority runs"
            yield problem(
                "keepers", f"keeper {keeper.id} has no vote: its file is {keeper.state}", keeper.address, remedy
            )
        else:
            there += 1
    if not info.brokers:
        yield problem(
            "sockets", "no broker is registered", remedy="start the cluster again: this starts the missing actors"
        )
    yield fine("sockets", f"{there} brokers, name servers and keepers answer")


def check_versions(info: ClusterInfo) -> CheckResult:
    """Check that all brokers that answer run the same RayMQ version.

    A finished rolling upgrade leaves the brokers with the same version.
    """
    running: dict[str, list[str]] = defaultdict(list)
    for broker in info.brokers:
        if broker.state != "unreachable":
            running[broker.version or "of an unreported version"].append(_named(broker))
    text = "; ".join(f"RayMQ {version}: {', '.join(names)}" for version, names in sorted(running.items()))
    if len(running) < 2:
        return fine("versions", text or "no broker answers")
    remedy = "install the newest one on every machine, then `raymq broker restart --rolling` (docs/deployment.md)"
    return note("versions", f"brokers run different versions: {text}", remedy=remedy)


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
                "in sync", "the group has no master", name, f"raymq broker elect {name} shows why there is none"
            )
            continue
        behind = sorted({each.replica for each in replicas} - set(masters[0].in_sync or ()))
        if behind:
            states = {each.replica: each for each in replicas}
            text = ", ".join(f"{number} ({_lag(states[number])})" for number in behind)
            remedy = "check that it runs, and its row in `raymq broker list`; it gets in sync again by itself"
            yield problem("in sync", f"of {len(replicas)} replicas not in sync: {text}", name, remedy)
        else:
            yield fine("in sync", f"all {len(replicas)} replicas are in sync", name)


def _lag(broker: BrokerInfo) -> str:
    return broker.state if broker.lag_bytes is None else f"{broker.lag_bytes} B behind"


def _broker(broker: BrokerInfo, figures: Mapping[str, str]) -> Iterator[CheckResult]:
    where = _named(broker)
    for damage in broker.corruption:
        remedy = f"`raymq store verify {broker.store}` lists it; a replica or a backup may have what is damaged"
        found = f"{damage.file} at byte {damage.offset}: {damage.reason}"
        yield problem("corruption", found, where, remedy)
    refuse_ratio = _number(figures.get(_REFUSE_RATIO)) or _DEFAULT_REFUSE_RATIO
    if broker.disk_ratio >= refuse_ratio:
        remedy = "make room: it takes messages again by itself"
        yield problem("disk room", f"{broker.disk_ratio:.0%} of its disk is used: it refuses messages", where, remedy)
    elif broker.disk_ratio >= _EARLY_RATIO:
        remedy = f"make room before it is {refuse_ratio:.0%} (disk_refuse_ratio)"
        yield note("disk room", f"{broker.disk_ratio:.0%} of its disk is used", where, remedy)
    refused = {cause: broker.refusals.get(cause, 0) for cause in _REFUSAL_REMEDIES if broker.refusals.get(cause)}
    if refused:
        text = ", ".join(f"{cause} {count}" for cause, count in refused.items())
        remedy = "; ".join(dict.fromkeys(_REFUSAL_REMEDIES[cause] for cause in refused))
        yield note("refusals", f"messages refused since its start: {text}", where, remedy)
    yield check_quarantine(figures, where)
    stop_ms = _number(figures.get(_RECENT_STOP))
    if stop_ms > _STOP_MS:
        remedy = "check what else uses its processors and its disk: requests wait meanwhile"
        yield note("stops", f"its event loop was blocked for {stop_ms:.0f} ms lately", where, remedy)


def check_quarantine(figures: Mapping[str, str], where: str) -> CheckResult:
    """Check for messages that could not be copied and were set aside."""
    counts = {name.removeprefix(_SET_ASIDE): _number(figures[name]) for name in figures if name.startswith(_SET_ASIDE)}
    there = {duty: count for duty, count in counts.items() if count}
    if not there:
        return fine("undeliverable messages", "none was set aside", where)
    text = ", ".join(f"{duty} {count:.0f}" for duty, count in there.items())
    remedy = "`raymq store quarantined DIR` lists them with the reasons; they stay in the log until they expire"
    return note("undeliverable messages", f"set aside, by duty: {text}", where, remedy)


def scheduler(info: ClusterInfo) -> CheckResult:
    """Check that delayed messages are delivered in time."""
    if info.scheduler.pid is None:
        found = "no scheduler calls the brokers: they deliver delayed messages by themselves"
        return note("scheduler", found, remedy="start the cluster again: this starts the missing actors")
    if (info.scheduler.lateness or 0.0) > _LATE_SECONDS:
        found = f"delayed messages come {info.scheduler.lateness:.1f} s late"
        return problem("scheduler", found, remedy="check what else uses the brokers' processors and disks")
    return fine("scheduler", f"process {info.scheduler.pid} calls the brokers in time")


def missing_topics(figures: Mapping[str, Mapping[str, str]]) -> Iterator[CheckResult]:
    """Check that every topic that a consumer subscribes to exists."""
    waiting: dict[str, set[str]] = defaultdict(set)
    for table in figures.values():
        for name in table:
            if name.startswith(_WAITS_FOR):
                waiting[name.removeprefix(_WAITS_FOR)].update(table[name].split())
    for group, topics in sorted(waiting.items()):
        for topic in sorted(topics):
            found = f"group {group} waits for topic {topic}, which does not exist"
            yield note("missing topics", found, group, f"raymq topic create {topic}")
    if not waiting:
        yield fine("missing topics", "no consumer waits for a topic that does not exist")


def undecided_transactions(figures: Mapping[str, Mapping[str, str]]) -> Iterator[CheckResult]:
    """Check that every producer group with open transactions has a producer that can be asked."""
    waiting: Counter[str] = Counter()
    for table in figures.values():
        for name in table:
            if name.startswith(_TRANSACTIONS_OF):
                waiting[name.removeprefix(_TRANSACTIONS_OF)] += int(_number(table[name]))
    others = sum(int(_number(table.get(_TRANSACTIONS_OF_OTHERS))) for table in figures.values())
    remedy = "start a producer of the group with a transaction_checker, or decide: `raymq transaction list`"
    for group, count in sorted(waiting.items()):
        found = f"open transactions that no connected producer of group {group} can be asked about: {count}"
        yield note("transactions", found, group, remedy)
    if others:
        found = f"open transactions of other groups without a connected producer: {others}"
        yield note("transactions", found, remedy=remedy)
    if not waiting and not others:
        yield fine("transactions", "no open transaction waits for a producer to connect")


def given_up_transactions(transactions: Sequence[OpenTransaction]) -> Iterator[CheckResult]:
    """Check that no transaction was given up."""
    given_up = [each for each in transactions if each.state == "given up"]
    if given_up:
        groups = ", ".join(sorted({each.producer_group for each in given_up if is_group(each.producer_group)})[:5])
        found = f"transactions that were given up, since no producer of group {groups} decided: {len(given_up)}"
        remedy = "`raymq transaction list` shows them; commit, rollback or resume them there"
        yield note("transactions", found, remedy=remedy)


def _named(broker: BrokerInfo) -> str:
    return f"{broker.name}.{broker.replica}" if broker.replica else broker.name


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
