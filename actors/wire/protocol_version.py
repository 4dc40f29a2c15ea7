"""The versions of RayMQ's own protocol, and the version that two peers agree on.

RayMQ's own commands, and the stream between a master and its replicas, share one version, a whole number. A side speaks
all versions from `OLDEST` to `NEWEST`. A client sends both numbers with AGREE_VERSIONS, the first request of a
connection, and continues without waiting for the answer, which has the server's two numbers. The version of the
connection is the lower one of the two newest versions. A sender that checks the version does not use later features
there. A request that the server does not know is answered with code 3 (REQUEST_CODE_NOT_SUPPORTED), which becomes
VersionMismatch: nothing was done. If the two sides have no version in common, all of RayMQ's own requests raise
VersionMismatch.

AGREE_VERSIONS is written in RocketMQ's JSON form, so that a RocketMQ server answers it like any code that it does not
serve. RayMQ before AGREE_VERSIONS does the same: both count as version 1. RocketMQ's clients never send it.

| version | what came |
|---|---|
| 1 | the protocol of RayMQ 0.1.0, before versions were sent |
| 2 | AGREE_VERSIONS; a replica's HELLO has its store's format, and its RayMQ version |
| 3 | DELETE_GROUP, FORGET_GROUP_TOPIC, DELETE_DEAD_LETTERS, DELETED_DEAD_LETTERS |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import VersionMismatch
from raymq.actors.wire.codes import OWN_CODES_FROM, RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.response_validation import number, protocol_checked, text
from raymq.storage.version import VERSION

NEWEST: Final = 3
OLDEST: Final = 1
#: The version of a peer that does not send any.
DEFAULT_VERSION: Final = 1
#: The first version in which a HELLO has the store's format and the RayMQ version.
HELLO_FORMAT_VERSION: Final = 2
_NEWEST, _OLDEST, _RELEASE = "raymqNewest", "raymqOldest", "raymqRelease"


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions that a side speaks, `oldest` to `newest`.

    `release` is the version of its RayMQ, empty if it was not sent.
    """

    newest: int = DEFAULT_VERSION
    oldest: int = DEFAULT_VERSION
    release: str = ""


def local_versions() -> VersionRange:
    """Return the versions that this side speaks."""
    return VersionRange(NEWEST, OLDEST, VERSION)


def agree_versions_command() -> Command:
    """Return AGREE_VERSIONS with the versions that this side speaks."""
    return Command(RequestCode.AGREE_VERSIONS, _fields(local_versions()))


def agree_versions_answer(_: object, request: Command) -> Command:
    """Return the answer to AGREE_VERSIONS, with the versions that this side speaks.

    The answer is the same if the two sides have no version in common.
    """
    return request.response(ResponseCode.SUCCESS, _fields(local_versions()))


def unsupported_response(request: Command) -> Command:
    """Return the answer to a request whose code this server does not know.

    For RayMQ's own codes it has the versions that the server speaks.
    """
    fields = _fields(local_versions()) if request.code >= OWN_CODES_FROM else {}
    remark = f" request type {request.code} not supported"
    return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, fields, remark=remark)


@protocol_checked
def read_version_range(answer: Command) -> VersionRange:
    """Return the versions in an answer; without any, version 1.

    Raises:
        ProtocolError: the fields are invalid.
    """
    fields = answer.fields
    if _NEWEST not in fields:
        return VersionRange()
    return VersionRange(number(fields[_NEWEST], 1), number(fields[_OLDEST], 1), text(fields[_RELEASE]))


def negotiate(peer: str, theirs: VersionRange) -> int:
    """Return the version of a connection to a peer that speaks `theirs`.

    Raises:
        VersionMismatch: the two sides have no version in common.
    """
    version = min(NEWEST, theirs.newest)
    if version < max(OLDEST, theirs.oldest):
        raise VersionMismatch(peer, theirs.oldest, theirs.newest, OLDEST, NEWEST, theirs.release)
    return version


def check_supported(peer: str, request: Command, answer: Command) -> None:
    """Raise VersionMismatch if an older server does not know a request of RayMQ's own.

    Nothing was done in that case.
    """
    if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or request.code < OWN_CODES_FROM:
        return
    theirs = read_version_range(answer)
    if theirs.newest < NEWEST:
        required = answer.remark or ""
        error = VersionMismatch(peer, theirs.oldest, theirs.newest, OLDEST, NEWEST, theirs.release, required)
        error.code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED.name
        raise error


def _fields(spoken: VersionRange) -> dict[str, object]:
    return {_NEWEST: spoken.newest, _OLDEST: spoken.oldest, _RELEASE: spoken.release}
