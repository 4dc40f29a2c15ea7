"""Encode an error into an answer, and decode it into the same error.

An answer to RayMQ's own client has the error's class name and its fields as JSON in the ext field `raymqError`; a
foreign client uses the code and the remark and ignores that field. Nothing is unpickled: a class name that is not in
the table below becomes a ProtocolError, and only plain values are set on the error.
"""

from __future__ import annotations

import json
from typing import Any

from raymq.actors import errors
from raymq.actors.errors import ProtocolError, RayMQError
from raymq.actors.wire.codes import ResponseCode, response_name
from raymq.actors.wire.frame import Command

FIELD = "raymqError"
#: Clients up to this version (5.1.4, an MQVersion ordinal) treat GO_AWAY as an error for which they try no other
#: broker.
_LAST_WITHOUT_GO_AWAY = 441

_CLASSES: dict[str, type[RayMQError]] = {
    name: value
    for name in errors.__all__
    if isinstance(value := getattr(errors, name), type) and issubclass(value, RayMQError)
}
#: The error class for an answer without `raymqError`, by its code.
_BY_CODE: dict[int, type[RayMQError]] = {
    ResponseCode.SYSTEM_BUSY: errors.ServerBusy,
    ResponseCode.NO_MESSAGE: errors.StaleHandle,
    ResponseCode.POLLING_FULL: errors.ServerBusy,
    ResponseCode.POLLING_TIMEOUT: errors.NothingToPop,
    ResponseCode.NO_PERMISSION: errors.PermissionDenied,
    ResponseCode.TOPIC_NOT_EXIST: errors.TopicNotFound,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: errors.GroupNotFound,
    ResponseCode.QUERY_NOT_FOUND: errors.MessageNotFound,
}


def error_response(request: Command, error: BaseException) -> Command:
    """Return the answer that carries `error`.

    An error that is not a RayMQError is sent as SYSTEM_ERROR with its text only.
    """
    if not isinstance(error, RayMQError):
        return request.response(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
    state = {key: value for key, value in error.__dict__.items() if isinstance(value, str | int | float | None)}
    packed = json.dumps([type(error).__name__, Exception.__str__(error), state])
    return request.response(ResponseCode[error.wire_code], {FIELD: packed}, remark=str(error))


def shutdown_response(request: Command) -> Command:
    """Return the answer of a stopping server to any request: use another server."""
    knows = request.version > _LAST_WITHOUT_GO_AWAY
    code = ResponseCode.GO_AWAY if knows else ResponseCode.SERVICE_NOT_AVAILABLE
    return request.response(code, remark="the server is stopping")


def error_from_response(response: Command) -> RayMQError:
    """Return the error in an answer whose code is not SUCCESS.

    The error's `.code` is the name of the answer's code.
    """
    code = response_name(response.code)
    packed = response.fields.get(FIELD)
    if packed is None:
        cls = _BY_CODE.get(response.code, ProtocolError)
        return cls(response.remark or code, code=code)
    name, message, state = _read(packed)
    cls = _CLASSES.get(name, ProtocolError)
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    error.code = code
    return error


def raise_for_error(answer: Command, address: str) -> None:
    """Raise the error in an answer of the server at `address`, unless it is SUCCESS.

    Raise BrokerUnavailable if the server is stopping, and NotMaster if it is a replica: then nothing was done, and
    another server may carry out the request.
    """
    if answer.code == ResponseCode.GO_AWAY:
        raise errors.BrokerUnavailable(address, answer.remark or "the server is stopping")
    if answer.code != ResponseCode.SUCCESS:
        error = error_from_response(answer)
        if isinstance(error, errors.StoreFollows):
            raise errors.NotMaster(address, str(error.args[0])) from error
        raise error


def _read(packed: Any) -> tuple[str, str, dict[str, Any]]:
    try:
        name, message, state = json.loads(packed)
        return str(name), str(message), dict(state)
    except (TypeError, ValueError, RecursionError):
        return "", str(packed), {}
