"""Read and write a request's fields: one frozen dataclass per command, one attribute per field.

An attribute's name on the wire is its own in camelCase (`queue_id` is `queueId`) unless `wire_field` sets another. All
values are text on the wire: "true" and "false" for booleans, decimal numbers for integers. A field without a default is
required. A number that RocketMQ's int or long could not hold is refused, as by RocketMQ, so code after a header sees
only numbers within their range.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Self, TypeVar

from raymq.actors.errors import ProtocolError
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Buffer, Command

_WIRE = "wire"
_SHOWN_CHARACTERS = 100
#: The type of an attribute that is a Java long; a plain `int` is a Java int.
Long = Annotated[int, "a Java long"]


_Header = TypeVar("_Header", bound="Header")


def wire_field(wire: str, **options: Any) -> Any:
    """Return a dataclass field whose name on the wire is `wire`."""
    return dataclasses.field(metadata={_WIRE: wire}, **options)


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """Base class of all request headers.

    Headers are frozen; their attributes are str, int or bool, or one of them or None for "absent".
    """

    CODE: ClassVar[RequestCode]

    @classmethod
    def read(cls, request: Command) -> Self:
        """Return the header of `request`; unknown fields are ignored.

        Raises:
            ProtocolError: a required field is missing, or a number is invalid (RocketMQ's SYSTEM_ERROR).
        """
        fields = request.fields
        values: dict[str, Any] = {}
        for attribute, wire, convert, required in _layout(cls):
            value = fields.get(wire)
            if value is None:
                if required:
                    raise ProtocolError(f"request {request.code}: the field <{wire}> is missing")
                continue
            try:
                values[attribute] = convert(value)
            except (ValueError, TypeError, OverflowError):
                shown = repr(value)[:_SHOWN_CHARACTERS]
                raise ProtocolError(f"request {request.code}: the field <{wire}> cannot be {shown}") from None
        return cls(**values)

    def fields(self) -> dict[str, Any]:
        """Return the fields by their names on the wire; None means absent."""
        return {wire: getattr(self, attribute) for attribute, wire, _, _ in _layout(type(self))}

    def command(self, body: Buffer = b"") -> Command:
        """Return a request with this header."""
        return Command(self.CODE, self.fields(), body)


@typing.dataclass_transform(frozen_default=True, field_specifiers=(wire_field, dataclasses.field))
def header(code: RequestCode) -> Callable[[type[_Header]], type[_Header]]:
    """Return a decorator that makes a class the header of the request `code`.

    The class becomes a frozen dataclass whose attributes are the request's fields.
    """

    def made(cls: type[_Header]) -> type[_Header]:
        cls.CODE = code
        return dataclasses.dataclass(frozen=True, slots=True)(cls)

    return made


def wire_names(header: type[Header]) -> list[str]:
    """Return the names of a header's fields on the wire, for documents and tests."""
    return [wire for _, wire, _, _ in _layout(header)]


def _whole(bits: int) -> Callable[[Any], int]:
    """Return a converter to integers of so many bits, as a Java field holds them."""
    end = 1 << (bits - 1)

    def convert(value: Any) -> int:
        number = int(value)
        if not -end <= number < end:
            raise ValueError(f"more than fits in {bits} bits")
        return number

    return convert


def _truth(value: str) -> bool:
    return str(value).lower() == "true"


#: (attribute, wire name, converter, required) of each field.
_Layout = tuple[tuple[str, str, Callable[[Any], Any], bool], ...]
_LAYOUTS: dict[type[Header], _Layout] = {}
_CONVERTERS: dict[Any, Callable[[Any], Any]] = {str: str, int: _whole(32), Long: _whole(64), bool: _truth}


def _layout(header: type[Header]) -> _Layout:
    """Return the fields of a header, computed once."""
    known = _LAYOUTS.get(header)
    if known is None:
        known = _LAYOUTS[header] = _worked_out(header)
    return known


def _worked_out(header: type[Header]) -> _Layout:
    hints = typing.get_type_hints(header, include_extras=True)
    rows = []
    for field in dataclasses.fields(header):
        kind = hints[field.name]
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            (kind,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
        first, *rest = field.name.split("_")
        wire = field.metadata.get(_WIRE) or first + "".join(word.capitalize() for word in rest)
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        rows.append((field.name, wire, _CONVERTERS[kind], required))
    return tuple(rows)
