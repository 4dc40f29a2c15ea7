"""Find and register coordinators ("homes", ours): the one broker that keeps a key's state.

A client sends these requests to all brokers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.response_validation import protocol_checked, text

#: The kind of keys that name staged writes: every broker with rows of a write knows its coordinator.
WRITE: Final = "write"
#: The kind of keys that name series of writes.
SERIES: Final = "series"


class CoordinatorEntry(NamedTuple):
    """A broker's answer about the coordinator of a key.

    Attributes:
        home: the coordinator; None if the broker knows of none.
        takes_new: whether this broker may become the coordinator of a new key.
        members: all brokers that, to its knowledge, exist or have existed: all of them have to be queried.
    """

    home: str | None
    takes_new: bool
    members: list[str]


class CoordinatorEntriesPage(NamedTuple):
    """One page of a broker's coordinator table, and the other brokers that it knows.

    `homes` has kind, key and coordinator of each entry; `last` is where the next page begins, "" at the end.
    """

    members: list[str]
    homes: list[tuple[str, str, str]]
    last: str


def find_coordinator_command(kind: str, key: str) -> Command:
    """Return FIND_HOME: request the coordinator of `key`."""
    return Command(RequestCode.FIND_HOME, {"kind": kind, "key": key}, serialization=Serialization.MSGPACK)


@protocol_checked
def read_coordinator(answer: Command) -> CoordinatorEntry:
    """Return the content of an answer to FIND_HOME."""
    coordinator = text(answer.fields["home"])
    members = [text(each) for each in answer.fields["members"]]
    return CoordinatorEntry(coordinator or None, bool(answer.fields["takes_new"]), members)


def register_coordinator_command(
    kind: str, key: str, coordinator: str, queried: Collection[str] | None = None
) -> Command:
    """Return REMEMBER_HOME: record that `coordinator` is the coordinator of `key`. Repeatable.

    Args:
        queried: the brokers that reported that there is no coordinator; `coordinator` is recorded if none
            is. None: it already is the coordinator.
    """
    fields = {"kind": kind, "key": key, "home": coordinator}
    optional = {} if queried is None else {"asked": sorted(queried)}
    return Command(RequestCode.REMEMBER_HOME, fields | optional, serialization=Serialization.MSGPACK)


@protocol_checked
def read_registered_coordinator(answer: Command) -> str:
    """Return the recorded coordinator from an answer to REMEMBER_HOME.

    It may be another broker than the one in the request.
    """
    return text(answer.fields["home"])


def copy_coordinators_command(broker: str, after: str) -> Command:
    """Return COPY_HOMES: record that `broker` exists, and request a page of coordinators.

    The page has the entries after `after`; with "" it is the first page.
    """
    return Command(RequestCode.COPY_HOMES, {"broker": broker, "after": after}, serialization=Serialization.MSGPACK)


@protocol_checked
def read_coordinator_page(answer: Command) -> CoordinatorEntriesPage:
    """Return the page in an answer to COPY_HOMES."""
    entries = [(text(kind), text(key), text(coordinator)) for kind, key, coordinator in answer.fields["homes"]]
    return CoordinatorEntriesPage(
        [text(each) for each in answer.fields["members"]], entries, text(answer.fields["last"])
    )


def forget_broker_command(broker: str) -> Command:
    """Return FORGET_BROKER: the broker was removed for good and is not queried any more."""
    return Command(RequestCode.FORGET_BROKER, {"broker": broker}, serialization=Serialization.MSGPACK)
