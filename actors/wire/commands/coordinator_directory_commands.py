"""Find and register coordinators, and list all brokers that ever existed (ours).

A coordinator is the one broker that keeps a key's state. A client sends its requests to all brokers, which know each
other by name. Name servers keep the names of brokers as entries of their configuration; RocketMQ's own commands, and so
its tools, read and change them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.headers.route_headers import DeleteKeyValue, GetKeyValues, PutKeyValue
from raymq.actors.wire.response_validation import protocol_checked, read_json_answer, read_list, read_number_field, text

#: The kind of keys that name staged writes: every broker with rows of a write knows its coordinator.
WRITE: Final = "write"
#: The kind of keys that name series of writes.
SERIES: Final = "series"
#: The namespace of name servers' entries; each key is a broker's name.
BROKERS_NAMESPACE: Final = "RAYMQ_BROKERS"


class CoordinatorEntry(NamedTuple):
    """A broker's answer about the coordinator of a key.

    Attributes:
        coordinator: the coordinator; None if the broker knows of none.
        takes_new: whether this broker may become the coordinator of a new key.
        members: all brokers that, to its knowledge, exist or have existed: all of them have to be queried.
    """

    coordinator: str | None
    takes_new: bool
    members: list[str]


class CoordinatorEntriesPage(NamedTuple):
    """One page of a broker's coordinator table, and the other brokers that it knows.

    `entries` has kind, key and coordinator of each; `last` is where the next page begins, "" at the end.
    """

    members: list[str]
    entries: list[tuple[str, str, str]]
    last: str


def find_coordinator_command(kind: str, key: str) -> Command:
    """Return FIND_COORDINATOR: request the coordinator of `key`."""
    return Command(RequestCode.FIND_COORDINATOR, {"kind": kind, "key": key}, serialization=Serialization.MSGPACK)


@protocol_checked
def read_coordinator(answer: Command) -> CoordinatorEntry:
    """Return the content of an answer to FIND_COORDINATOR."""
    coordinator = text(answer.fields["home"])
    members = [text(each) for each in answer.fields["members"]]
    return CoordinatorEntry(coordinator or None, bool(answer.fields["takes_new"]), members)


def register_coordinator_command(
    kind: str, key: str, coordinator: str, queried: Collection[str] | None = None
) -> Command:
    """Return REGISTER_COORDINATOR: record that `coordinator` is the coordinator of `key`. Repeatable.

    Args:
        queried: the brokers that reported that there is no coordinator; `coordinator` is recorded if none
            is. None: it already is the coordinator.
    """
    fields = {"kind": kind, "key": key, "home": coordinator}
    optional = {} if queried is None else {"asked": sorted(queried)}
    return Command(RequestCode.REGISTER_COORDINATOR, fields | optional, serialization=Serialization.MSGPACK)


@protocol_checked
def read_registered_coordinator(answer: Command) -> str:
    """Return the recorded coordinator from an answer to REGISTER_COORDINATOR.

    It may be another broker than the one in the request.
    """
    return text(answer.fields["home"])


def copy_coordinators_command(broker: str, after: str) -> Command:
    """Return COPY_COORDINATORS: record that `broker` exists, and request a page of coordinators.

    The page has the entries after `after`; with "" it is the first page.
    """
    return Command(
        RequestCode.COPY_COORDINATORS, {"broker": broker, "after": after}, serialization=Serialization.MSGPACK
    )


@protocol_checked
def read_coordinator_page(answer: Command) -> CoordinatorEntriesPage:
    """Return the page in an answer to COPY_COORDINATORS."""
    entries = [(text(kind), text(key), text(coordinator)) for kind, key, coordinator in answer.fields["homes"]]
    return CoordinatorEntriesPage(
        [text(each) for each in answer.fields["members"]], entries, text(answer.fields["last"])
    )


def forget_broker_command(broker: str) -> Command:
    """Return FORGET_BROKER: the broker was removed for good and is not queried any more."""
    return Command(RequestCode.FORGET_BROKER, {"broker": broker}, serialization=Serialization.MSGPACK)


@protocol_checked
def read_forgotten(answer: Command) -> bool:
    """Return from an answer to FORGET_BROKER whether the broker was known there."""
    return bool(answer.fields.get("wasKnown"))


def known_brokers_command() -> Command:
    """Return a request for the names of all known brokers.

    The answer is MessageNotFound if the name server knows of none.
    """
    return GetKeyValues(BROKERS_NAMESPACE).command()


@protocol_checked
def read_known_brokers(answer: Command) -> list[str]:
    """Return the broker names in an answer to `known_brokers_command`."""
    return read_list(list(read_json_answer(answer)["table"]), text)


def add_broker_command(broker: str) -> Command:
    """Return a request that adds a broker to the known ones."""
    return PutKeyValue(BROKERS_NAMESPACE, broker, "known").command()


def delete_broker_command(broker: str) -> Command:
    """Return a request that removes a broker from the known ones. Repeatable."""
    return DeleteKeyValue(BROKERS_NAMESPACE, broker).command()


def uptime_command() -> Command:
    """Return a request for the time since the name server's start."""
    return Command(RequestCode.STATUS)


@protocol_checked
def read_uptime(answer: Command) -> int | None:
    """Return the uptime in seconds from the answer to `uptime_command`.

    It is None from a name server of an earlier version.
    """
    return read_number_field(answer, "seconds") if "seconds" in answer.fields else None
