"""Check the brokers' directories on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from raymq.actors.errors import FormatTooNew
from raymq.actors.protocol import BrokerInfo
from raymq.cluster.doctor.check_result import CheckResult, fine, note, problem


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The state of a store directory.

    Attributes:
        holder: the process that holds its lock; 0: a process that is not visible from here; None: no process.
        holder_title: the title of that process.
        is_orphan: whether that process is an actor whose Ray node has ended.
        was_closed: whether the store was closed properly, if no process has it open.
        is_restoring: whether a restore was begun there and not finished.
        foreign: some files and folders in it whose owner is not the owner of the directory.
        address: the address of its broker, "" if unknown.
        address_is_taken: whether a process listens there, if no process has the directory open.
        too_new: the reason why this RayMQ must not open it; None: it may.
    """

    directory: str
    holder: int | None
    holder_title: str = ""
    is_orphan: bool = False
    was_closed: bool = True
    is_restoring: bool = False
    foreign: tuple[str, ...] = field(default=())
    address: str = ""
    address_is_taken: bool = False
    too_new: FormatTooNew | None = None


def check_store(seen: StoreInfo, brokers: Sequence[BrokerInfo] | None, host: str) -> Iterator[CheckResult]:
    """Run all checks of a store directory.

    Args:
        brokers: those of the running cluster; a broker that does not answer is identified by its address. None: no
            cluster was found.
    """
    where = f"{host}:{seen.directory}"
    if seen.is_restoring:
        remedy = "run the same `raymq store restore` again: it starts over"
        yield problem("directories", "the restore of a backup into this directory is not complete", where, remedy)
    if seen.too_new is not None:
        yield problem("formats", Exception.__str__(seen.too_new), where, seen.too_new.remedy)
    if seen.foreign:
        found = f"{seen.foreign[0]} and perhaps others belong to another user than the directory"
        remedy = f"chown -R the directory to the user of the brokers: {seen.directory}"
        yield problem("owners", found, where, remedy)
    broker = next((each for each in brokers or () if seen.directory == each.store), None)
    if broker is None and seen.address:
        broker = next((each for each in brokers or () if seen.address == each.address and not each.store), None)
    yield _held(seen, broker, brokers is not None, where)
    if seen.holder is None and seen.address_is_taken:
        remedy = "end the process that has the port, or delete raymq/broker.json in the directory"
        yield problem("ports", f"another process listens at its broker's address {seen.address}", where, remedy)


def _held(seen: StoreInfo, broker: BrokerInfo | None, has_cluster: bool, where: str) -> CheckResult:
    holder = (
        f"process {seen.holder} ({seen.holder_title or 'without a name'})"
        if seen.holder
        else "a process not visible here"
    )
    if seen.holder is None:
        if broker is not None:
            found = f"the cluster has {broker.name} here, but no process has the directory open"
            remedy = "see the log of its actor (`ray logs`): Ray starts it again if its machine is part of the cluster"
            return problem("locks", found, where, remedy)
        if not seen.was_closed:
            return note("locks", "no process has it open; it was not closed cleanly, and a start recovers it", where)
        return fine("locks", "no process has it open, and it was closed cleanly", where)
    if seen.is_orphan:
        remedy = f"kill {seen.holder}: its Ray node is gone, and no other broker can have the directory until it ends"
        return problem("locks", f"{holder} has it open, and its Ray node is gone", where, remedy)
    if broker is not None and broker.pid == seen.holder:
        return fine("locks", f"{broker.name}, process {seen.holder}, has it open", where)
    if broker is not None and broker.state != "unreachable" and seen.holder:
        found = f"{holder} has it open, but {broker.name} reports process {broker.pid}"
        return problem("locks", found, where, f"kill {seen.holder}, unless you started it there")
    if broker is not None and seen.holder:
        found = f"{holder} has it open, but {broker.name} does not answer: the process may be stopped"
        remedy = f"kill -CONT {seen.holder} resumes it; else kill {seen.holder}, and Ray starts it again"
        return problem("locks", found, where, remedy)
    if has_cluster and seen.holder:
        found = f"{holder} has it open, and is no broker of the running cluster"
        return problem(
            "locks", found, where, f"kill {seen.holder}, unless another cluster or tool of yours works there"
        )
    return note("locks", f"{holder} has it open", where)
