"""Homes (ours): which broker keeps what is kept on one broker only, asked of and told to all of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.told import reader, text

#: The kind of key that is the name of a staged write: whoever has rows of one knows its home.
WRITE: Final = "write"
#: The kind of key that is the name of a series of writes.
SERIES: Final = "series"


class KnownHome(NamedTuple):
    """What a broker knows of a key.

    Attributes:
        home: None: it knows of none.
        takes_new: whether it may be a new key's home itself.
        members: the brokers that it knows were ever there: all of them have to be asked.
    """

    home: str | None
    takes_new: bool
    members: list[str]


class CopiedHomes(NamedTuple):
    """What a broker knows: of other brokers, and of some keys the kind, key and home; where to go on, "" at the end."""

    members: list[str]
    homes: list[tuple[str, str, str]]
    last: str


def find_home_command(kind: str, key: str) -> Command:
    """FIND_HOME: who is the home of `key`?"""
    return Command(RequestCode.FIND_HOME, {"kind": kind, "key": key}, serialization=Serialization.MSGPACK)


@reader
def read_home(answer: Command) -> KnownHome:
    """The answer to FIND_HOME."""
    home = text(answer.fields["home"])
    members = [text(each) for each in answer.fields["members"]]
    return KnownHome(home or None, bool(answer.fields["takes_new"]), members)


def remember_home_command(kind: str, key: str, home: str, asked: Collection[str] | None = None) -> Command:
    """REMEMBER_HOME: the broker `home` is the home of `key`. May be repeated.

    Args:
        asked: it is to become that, if none is known: these brokers said so. None: it is.
    """
    fields = {"kind": kind, "key": key, "home": home}
    told = {} if asked is None else {"asked": sorted(asked)}
    return Command(RequestCode.REMEMBER_HOME, fields | told, serialization=Serialization.MSGPACK)


@reader
def read_remembered(answer: Command) -> str:
    """The answer to REMEMBER_HOME: the home that is known there, which may be another one."""
    return text(answer.fields["home"])


def copy_homes_command(broker: str, after: str) -> Command:
    """COPY_HOMES: know from now on that `broker` is there, and tell it all homes behind `after`; "": all."""
    return Command(RequestCode.COPY_HOMES, {"broker": broker, "after": after}, serialization=Serialization.MSGPACK)


@reader
def read_copied(answer: Command) -> CopiedHomes:
    """The answer to COPY_HOMES."""
    homes = [(text(kind), text(key), text(home)) for kind, key, home in answer.fields["homes"]]
    return CopiedHomes([text(each) for each in answer.fields["members"]], homes, text(answer.fields["last"]))


def forget_broker_command(broker: str) -> Command:
    """FORGET_BROKER: it is gone for good, and need not be asked for homes any more."""
    return Command(RequestCode.FORGET_BROKER, {"broker": broker}, serialization=Serialization.MSGPACK)
