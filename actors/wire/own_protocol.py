"""Which versions of RayMQ's own protocol the two sides of a connection speak; the older side counts.

Our own commands, and the stream between a master and its replicas, have one version together, a whole number. A side
speaks all versions from `OLDEST` to `NEWEST`. Who connects says its two with AGREE_VERSIONS, the first request of the
connection, and goes on without waiting for the answer, which has the server's two: the version of the connection is
the lower one of the newest ones. What came later is not used there by who looks at the version; a request that the
server does not know is answered with 3, which becomes VersionMismatch: nothing was done. So do all our requests where
the two speak no version in common.

AGREE_VERSIONS is written in RocketMQ's JSON form, so that a server of RocketMQ's answers it as any code that it does
not serve. So does RayMQ from before it could be asked: both speak version 1. RocketMQ's clients never send it.

| version | what came |
|---|---|
| 1 | what RayMQ 0.1.0 spoke before versions were told |
| 2 | AGREE_VERSIONS; a HELLO of a replica tells its store's format, and the RayMQ that it runs |
| 3 | DELETE_GROUP, FORGET_GROUP_TOPIC, DELETE_DEAD_LETTERS, DELETED_DEAD_LETTERS |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import VersionMismatch
from raymq.actors.wire.codes import OWN_CODES_FROM, RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.told import number, reader, text
from raymq.storage.version import VERSION

NEWEST: Final = 3
OLDEST: Final = 1
#: Of who does not tell any.
UNTOLD: Final = 1
#: The version in which a HELLO tells more.
HELLO_TELLS_FORMAT: Final = 2
_NEWEST, _OLDEST, _RELEASE = "raymqNewest", "raymqOldest", "raymqRelease"


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a side speaks: versions `oldest` to `newest`; `release` is the version of its RayMQ, empty: not told."""

    newest: int = UNTOLD
    oldest: int = UNTOLD
    release: str = ""


def ours() -> Spoken:
    """What this side speaks."""
    return Spoken(NEWEST, OLDEST, VERSION)


def agree_command() -> Command:
    """AGREE_VERSIONS: what this side speaks."""
    return Command(RequestCode.AGREE_VERSIONS, _fields(ours()))


def agreed_answer(_: object, request: Command) -> Command:
    """The answer to AGREE_VERSIONS; it tells what this side speaks also where the two do not meet."""
    return request.response(ResponseCode.SUCCESS, _fields(ours()))


def not_served(request: Command) -> Command:
    """The answer to a request that this server does not know; of ours it tells what the server speaks."""
    told = _fields(ours()) if request.code >= OWN_CODES_FROM else {}
    remark = f" request type {request.code} not supported"
    return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, told, remark=remark)


@reader
def read_spoken(answer: Command) -> Spoken:
    """What an answer tells of who has sent it; ProtocolError. One that tells nothing is of the first version."""
    told = answer.fields
    if _NEWEST not in told:
        return Spoken()
    return Spoken(number(told[_NEWEST], 1), number(told[_OLDEST], 1), text(told[_RELEASE]))


def agreed(peer: str, theirs: Spoken) -> int:
    """The version of a connection to a peer that speaks `theirs`; VersionMismatch: there is none that both speak."""
    version = min(NEWEST, theirs.newest)
    if version < max(OLDEST, theirs.oldest):
        raise VersionMismatch(peer, theirs.oldest, theirs.newest, OLDEST, NEWEST, theirs.release)
    return version


def check_served(peer: str, request: Command, answer: Command) -> None:
    """VersionMismatch where a server does not know a request of ours because it is older; nothing was done."""
    if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or request.code < OWN_CODES_FROM:
        return
    theirs = read_spoken(answer)
    if theirs.newest < NEWEST:
        wanted = answer.remark or ""
        error = VersionMismatch(peer, theirs.oldest, theirs.newest, OLDEST, NEWEST, theirs.release, wanted)
        error.code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED.name
        raise error


def _fields(spoken: Spoken) -> dict[str, object]:
    return {_NEWEST: spoken.newest, _OLDEST: spoken.oldest, _RELEASE: spoken.release}
