"""The frame of RocketMQ's remoting protocol: the codec, and nothing that opens a socket.

    length i4 | serialisation 1 B + header length 3 B | header | body

`length` counts all that follows it. The header is JSON (0), RocketMQ's binary form (1), or msgpack (2, ours: only
between RayMQ's own client and server, for codes above 900000). Each frame names its own form, so a reader needs to
know nothing in advance, and an answer is written in its request's form.

Binary header: code i2 | language 1 B | version i2 | opaque i4 | flag i4 | remark (i4 length) | ext fields (i4 length;
each key i2 + bytes, value i4 + bytes). Source: RocketMQ's RocketMQSerializable.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgpack

from raymq.actors.errors import ProtocolError

#: A frame above this is refused by closing the connection, before memory is taken for it.
MAX_FRAME_BYTES = 16 * 1024 * 1024
#: MQVersion ordinal of RocketMQ 5.3.3: what clients read to learn what a server can do.
PROTOCOL_VERSION = 479
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

_LENGTHS = struct.Struct(">iI")
_LENGTH = struct.Struct(">i")
_BINARY_HEAD = struct.Struct(">hBhii")
_KEY_LENGTH = struct.Struct(">h")

#: The binary form writes a language's place in this list.
LANGUAGES = tuple(
    "JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST NODE_JS".split()  # noqa: SIM905 - readable
)

Buffer = bytes | bytearray | memoryview


class Serialization(enum.IntEnum):
    """How a frame's header is written."""

    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 2


@dataclass(slots=True)
class Command:
    """One request or answer.

    Attributes:
        code: a RequestCode in a request, a ResponseCode in an answer.
        fields: RocketMQ's extFields. Strings in the first two serialisations; any msgpack value in ours.
        body: payload bytes. A memoryview is valid as long as what it views; the codec copies nothing.
        opaque: matches an answer to its request, per direction of a connection.
    """

    code: int
    fields: dict[str, Any] = field(default_factory=dict)
    body: Buffer = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str = "PYTHON"
    version: int = PROTOCOL_VERSION
    serialization: Serialization = Serialization.JSON

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether no answer may be sent."""
        return bool(self.flag & FLAG_ONEWAY)

    def response(
        self, code: int, fields: dict[str, Any] | None = None, body: Buffer = b"", remark: str | None = None
    ) -> Command:
        """An answer to this request: its opaque, its serialisation."""
        return Command(
            code,
            fields or {},
            body,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            serialization=self.serialization,
        )


def encode(command: Command) -> bytes:
    """The frame up to its body; write it and then `command.body`.

    Raises:
        ProtocolError: header and body are longer than a frame may be.
    """
    header = _ENCODERS[command.serialization](command)
    length = _LENGTH.size + len(header) + len(command.body)
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"a frame of {length} bytes is above the limit of {MAX_FRAME_BYTES}", remedy="send smaller batches"
        )
    return _LENGTHS.pack(length, (command.serialization << 24) | len(header)) + header


def decode(frame: memoryview) -> Command:
    """The command in `frame` (what follows the length field). Its body is copied out of the frame.

    Raises:
        ProtocolError: the header cannot be read; the connection has to be closed.
    """
    if len(frame) < _LENGTH.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes is too short")
    mark = int.from_bytes(frame[: _LENGTH.size], "big")
    form, header_bytes = mark >> 24, mark & 0xFFFFFF
    end = _LENGTH.size + header_bytes
    if end > len(frame):
        raise ProtocolError(f"header of {header_bytes} bytes in a frame of {len(frame)}")
    try:
        decoder = _DECODERS[Serialization(form)]
        command = decoder(frame[_LENGTH.size : end])
    except ProtocolError:
        raise
    except Exception as error:  # any garbage: whatever a parser raises, the peer gets one answer
        raise ProtocolError(f"header not readable: {error}") from error
    command.body = bytes(frame[end:])
    return command


class FrameReader:
    """Cuts a byte stream into commands. Feed it what arrives; it never holds more than one frame and one read."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    @property
    def inside_a_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: Buffer) -> Iterator[Command]:
        """Yield the commands that `data` completes.

        Raises:
            ProtocolError: a frame is too long or unreadable; the reader cannot go on.
        """
        self._buffer += data
        position = 0
        buffer = self._buffer
        try:
            while len(buffer) - position >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, position)
                if not 0 < length <= self._max_frame_bytes:
                    raise ProtocolError(f"a frame of {length} bytes is outside 1..{self._max_frame_bytes}")
                end = position + _LENGTH.size + length
                if end > len(buffer):
                    break
                with memoryview(buffer) as view, view[position + _LENGTH.size : end] as frame:
                    command = decode(frame)
                position = end
                yield command
        except ProtocolError:
            self._buffer, position = bytearray(), 0  # the error's traceback still views the old one
            raise
        finally:
            del self._buffer[:position]


def _encode_json(command: Command) -> bytes:
    header = {
        "code": int(command.code),
        "flag": command.flag,
        "language": command.language,
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    if command.fields:
        header["extFields"] = {key: _text(value) for key, value in command.fields.items() if value is not None}
    return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _decode_json(header: memoryview) -> Command:
    data = json.loads(bytes(header))
    if not isinstance(data, dict):
        raise ProtocolError("the header is no JSON object")
    fields = data.get("extFields") or {}
    if not isinstance(fields, dict):
        raise ProtocolError("extFields is no JSON object")
    return Command(
        int(data["code"]),
        {key: _text(value) for key, value in fields.items() if value is not None},
        opaque=int(data.get("opaque") or 0),
        flag=int(data.get("flag") or 0),
        remark=data.get("remark"),
        language=str(data.get("language") or "OTHER"),
        version=int(data.get("version") or 0),
        serialization=Serialization.JSON,
    )


def _encode_binary(command: Command) -> bytes:
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else LANGUAGES.index("OTHER")
    remark = (command.remark or "").encode()
    ext = bytearray()
    for key, value in command.fields.items():
        if value is not None:
            key_bytes, value_bytes = key.encode(), _text(value).encode()
            ext += _KEY_LENGTH.pack(len(key_bytes)) + key_bytes + _LENGTH.pack(len(value_bytes)) + value_bytes
    code = (int(command.code) & 0xFFFF) - (0x10000 if int(command.code) & 0x8000 else 0)
    head = _BINARY_HEAD.pack(code, language, command.version, command.opaque, command.flag)
    return head + _LENGTH.pack(len(remark)) + remark + _LENGTH.pack(len(ext)) + ext


def _decode_binary(header: memoryview) -> Command:
    code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header)
    remark, position = _counted(header, _BINARY_HEAD.size)
    ext, position = _counted(header, position)
    if position != len(header):
        raise ProtocolError("bytes behind the header's last field")
    fields: dict[str, Any] = {}
    at = 0
    while at < len(ext):
        (key_bytes,) = _KEY_LENGTH.unpack_from(ext, at)
        at += _KEY_LENGTH.size
        if key_bytes < 0 or at + key_bytes > len(ext):
            raise ProtocolError("a field's name runs past the header")
        key = str(ext[at : at + key_bytes], "utf-8")
        value, at = _counted(ext, at + key_bytes)
        fields[key] = str(value, "utf-8")
    return Command(
        code & 0xFFFF,
        fields,
        opaque=opaque,
        flag=flag,
        remark=str(remark, "utf-8") if len(remark) else None,
        language=LANGUAGES[language] if language < len(LANGUAGES) else "OTHER",
        version=version,
        serialization=Serialization.ROCKETMQ,
    )


def _counted(buffer: memoryview, position: int) -> tuple[memoryview, int]:
    """The bytes behind an i4 count at `position`, and the place behind them."""
    (count,) = _LENGTH.unpack_from(buffer, position)
    start = position + _LENGTH.size
    if count < 0 or start + count > len(buffer):
        raise ProtocolError(f"{count} bytes declared where {len(buffer) - start} are left")
    return buffer[start : start + count], start + count


def _encode_msgpack(command: Command) -> bytes:
    header = [int(command.code), command.opaque, command.flag, command.remark, command.fields]
    return msgpack.packb(header, use_bin_type=True)  # type: ignore[no-any-return]


def _decode_msgpack(header: memoryview) -> Command:
    code, opaque, flag, remark, fields = msgpack.unpackb(header, raw=False, strict_map_key=True)
    if not isinstance(fields, dict):
        raise ProtocolError("the header's fields are no map")
    return Command(
        int(code), fields, opaque=int(opaque), flag=int(flag), remark=remark, serialization=Serialization.MSGPACK
    )


_ENCODERS = {
    Serialization.JSON: _encode_json,
    Serialization.ROCKETMQ: _encode_binary,
    Serialization.MSGPACK: _encode_msgpack,
}
_DECODERS = {
    Serialization.JSON: _decode_json,
    Serialization.ROCKETMQ: _decode_binary,
    Serialization.MSGPACK: _decode_msgpack,
}
