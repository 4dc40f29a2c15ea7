"""Encode and decode the frames of RocketMQ's remoting protocol; no function here opens a socket.

    length i4 | serialization 1 B + header length 3 B | header | body

`length` counts all bytes after itself. The header is JSON (0), RocketMQ's binary form (1), or msgpack (2, RayMQ's own:
only between RayMQ's client and server, for codes above 900000). Each frame names the form of its header, so a reader
needs no prior negotiation, and an answer is written in the form of its request.

Binary header: code i2 | language 1 B | version i2 | opaque i4 | flag i4 | remark (i4 length) | ext fields (i4 length;
each key i2 + bytes, value i4 + bytes). Source: RocketMQ's RocketMQSerializable. A code has 16 bits there, so the codes
of pop (200050 and others) are truncated to numbers that no other code uses; `decode` restores them in requests.
"""

from __future__ import annotations

import enum
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgpack

from raymq.actors.errors import ProtocolError
from raymq.actors.wire.codes import OWN_CODES_FROM, RequestCode
from raymq.storage.records.message_limits import DEFAULT_MESSAGE_BYTES, MAX_MESSAGE_BYTES

#: RocketMQ's limit: a longer frame closes the connection before memory is allocated for it. `frame_bytes` computes the
#: limit of brokers and clients that allow longer messages.
MAX_FRAME_BYTES = 16 * 1024 * 1024
#: MQVersion ordinal of RocketMQ 5.3.3: clients read it to learn which features a server has.
PROTOCOL_VERSION = 479
#: The opaques that RayMQ assigns wrap around after this; a foreign client may use any i4, also negative ones.
MAX_OPAQUE = 0x7FFFFFFF
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
#: Ours, only in answers to RayMQ's client: more answers to the same request follow.
FLAG_EARLY = 4

#: The most fields of a header: each costs far more memory than its bytes, and no command has more than a few dozen.
_MAX_FIELDS = 1_000
#: Longest JSON header of a request: the longest valid one, of a message with 32,767 bytes of properties, takes 200,000
#: bytes at worst. An answer may have the ids of a whole batch, so its limit is higher.
MAX_JSON_REQUEST_BYTES = 256 * 1024
MAX_JSON_ANSWER_BYTES = 1024 * 1024
#: The most elements of one list in a msgpack header, such as the queues of a fetch.
_MAX_ELEMENTS = 65_536
#: JSON can carry half of a surrogate pair, UTF-8 cannot: it is sent as "?".
_LONE_SURROGATES = "replace"
#: Matches an escaped surrogate: a lone one, or one half of a complete pair.
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_LENGTHS = struct.Struct(">iI")
_MARK = struct.Struct(">I")
#: The length field in front of each frame.
LENGTH = struct.Struct(">i")
_BINARY_HEAD = struct.Struct(">HBhii")
_KEY_LENGTH = struct.Struct(">h")

#: The binary form encodes a language as its index in this tuple.
LANGUAGES = tuple(
    "JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST NODE_JS".split()  # noqa: SIM905 - readable
)

Buffer = bytes | bytearray | memoryview

#: RocketMQ's codes above 16 bits, by their lower 16 bits, which the binary form sends.
_FOLDED = {code & 0xFFFF: code.value for code in RequestCode if 0xFFFF < code < OWN_CODES_FROM}


def frame_bytes(max_message_bytes: int) -> int:
    """Return how long a frame may be if message bodies have at most `max_message_bytes`.

    That is RocketMQ's 16 MiB where bodies have 4 MiB or less: one body and 12 MiB. The longest frames need the 12 MiB
    for 8 MiB of other messages (an answer counts as full at that size, before the last message is added), for a header
    of 1 MiB, and for the parts of a record other than its body. For longer bodies the limit grows by as much as the
    body limit is above 4 MiB.
    """
    return MAX_FRAME_BYTES - DEFAULT_MESSAGE_BYTES + max(DEFAULT_MESSAGE_BYTES, max_message_bytes)


#: Frame limit for stored messages: a log may hold longer messages than its broker accepts today.
MESSAGE_FRAME_BYTES: Final = frame_bytes(MAX_MESSAGE_BYTES)


class Serialization(enum.IntEnum):
    """The form in which a frame's header is written."""

    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 2


@dataclass(slots=True)
class Command:
    """One request or one answer.

    Attributes:
        code: a RequestCode in a request, a ResponseCode in an answer.
        fields: RocketMQ's extFields. Strings in the first two serializations; any msgpack value in RayMQ's own.
        body: payload bytes. The body of a received command owns its memory; it may be a memoryview if it is large.
        pieces: in a command to be sent, further buffers of the body, which follow `body` on the wire unchanged, such as
            the `parts` of a store's lease. They must not be modified afterwards. The sender needs them only during the
            call of `send`: the transport copies the bytes that the socket did not accept at once, or keeps the views
            and with them the mapping. So a lease may be released as soon as its parts are in a command. In a received
            command always empty.
        opaque: matches an answer to its request, per direction of a connection.
        header_bytes: in a received command, the length of its header.
        received_at: in a received command, when its last bytes were read, by `time.monotonic`; 0.0 if not measured.
        half: in a received command, a half of a surrogate pair in its header that UTF-8 cannot encode; "" if there is
            none.
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
    pieces: Sequence[Buffer] = ()
    header_bytes: int = field(default=0, compare=False, repr=False)
    half: str = field(default="", compare=False, repr=False)
    received_at: float = field(default=0.0, compare=False, repr=False)

    @property
    def body_bytes(self) -> int:
        """Return the length of the whole body on the wire."""
        return len(self.body) + sum(map(len, self.pieces)) if self.pieces else len(self.body)

    def with_joined_body(self) -> Command:
        """Return a copy, for pickling, whose whole body is in `body` as bytes."""
        return replace(self, body=b"".join((self.body, *self.pieces)), pieces=())

    @property
    def is_response(self) -> bool:
        """Return True if this is an answer to a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_early(self) -> bool:
        """Return True if this is an answer before the last one to its request."""
        return bool(self.flag & FLAG_EARLY)

    @property
    def is_oneway(self) -> bool:
        """Return True if no answer may be sent."""
        return bool(self.flag & FLAG_ONEWAY)

    def response(
        self,
        code: int,
        fields: dict[str, Any] | None = None,
        body: Buffer = b"",
        remark: str | None = None,
        *,
        pieces: Sequence[Buffer] = (),
    ) -> Command:
        """Return an answer to this request, with its opaque and its serialization."""
        return Command(
            code,
            fields or {},
            body,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            serialization=self.serialization,
            pieces=pieces,
        )


def encode(command: Command, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return the frame up to its body; write it, then `command.body`, then `command.pieces`.

    Raises:
        ProtocolError: header and body are longer than `max_bytes`.
    """
    header = _ENCODERS[command.serialization](command)
    length = LENGTH.size + len(header) + command.body_bytes
    if length > max_bytes:
        raise ProtocolError(
            f"a frame of {length} bytes is above the limit of {max_bytes}", remedy="send smaller batches"
        )
    return _LENGTHS.pack(length, (command.serialization << 24) | len(header)) + header


def decode(
    frame: bytes | memoryview, max_header_bytes: int = MAX_FRAME_BYTES, max_json_bytes: int = MAX_JSON_ANSWER_BYTES
) -> Command:
    """Return the command in `frame`, the bytes after the length field.

    Its body is a view if `frame` is a memoryview; everything else is copied.

    Raises:
        ProtocolError: the header cannot be read, or is too long; the connection has to be closed.
    """
    if len(frame) < LENGTH.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes is too short")
    (mark,) = _MARK.unpack_from(frame)
    form, header_bytes = mark >> 24, mark & 0xFFFFFF
    end = LENGTH.size + header_bytes
    if end > len(frame):
        raise ProtocolError(f"header of {header_bytes} bytes in a frame of {len(frame)}")
    if header_bytes > max_header_bytes:
        raise ProtocolError(f"a header of {header_bytes} bytes is above the limit of {max_header_bytes}")
    if form == Serialization.JSON and header_bytes > max_json_bytes:
        raise ProtocolError(f"a JSON header of {header_bytes} bytes is above the limit of {max_json_bytes}")
    header = frame[LENGTH.size : end]
    try:
        command = _DECODERS[form](header)
    except ProtocolError:
        raise
    except Exception as error:  # whatever a parser raises for garbage, the peer gets one error
        raise ProtocolError(f"header not readable: {error}") from error
    finally:
        # Released explicitly: CPython 3.11.2 sometimes leaks the reference to an argument, and a buffer with a live
        # memoryview can neither grow nor shrink.
        if isinstance(header, memoryview):
            header.release()
    command.body = frame[end:]
    command.header_bytes = header_bytes
    return command


def may_have_surrogates(text: Buffer) -> bool:
    """Return True if a JSON text in UTF-8 may contain half of a surrogate pair.

    Such a half can only be written as an escape.
    """
    return _HALF.search(text) is not None


def find_lone_surrogate(value: Any) -> str:
    """Return the first unpaired surrogate in a JSON value, "" if there is none."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(error.object[error.start]):04x}"
    return ""


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
    return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode(errors=_LONE_SURROGATES)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _decode_json(header: bytes | memoryview) -> Command:
    data = json.loads(str(header, "utf-8"))
    if not isinstance(data, dict):
        raise ProtocolError("the header is not a JSON object")
    fields = data.get("extFields") or {}
    if not isinstance(fields, dict) or len(fields) > _MAX_FIELDS:
        raise ProtocolError(f"extFields is not a JSON object of at most {_MAX_FIELDS} fields")
    return Command(
        int(data["code"]),
        {key: _text(value) for key, value in fields.items() if value is not None},
        opaque=int(data.get("opaque") or 0),
        flag=int(data.get("flag") or 0),
        remark=None if data.get("remark") is None else _text(data["remark"]),
        language=str(data.get("language") or "OTHER"),
        version=int(data.get("version") or 0),
        serialization=Serialization.JSON,
        half=find_lone_surrogate(data) if may_have_surrogates(header) else "",
    )


def _encode_binary(command: Command) -> bytes:
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else LANGUAGES.index("OTHER")
    remark = (command.remark or "").encode(errors=_LONE_SURROGATES)
    ext = bytearray()
    for key, value in command.fields.items():
        if value is not None:
            key_bytes = key.encode(errors=_LONE_SURROGATES)
            value_bytes = _text(value).encode(errors=_LONE_SURROGATES)
            ext += _KEY_LENGTH.pack(len(key_bytes)) + key_bytes + LENGTH.pack(len(value_bytes)) + value_bytes
    head = _BINARY_HEAD.pack(command.code & 0xFFFF, language, command.version, command.opaque, command.flag)
    return head + LENGTH.pack(len(remark)) + remark + LENGTH.pack(len(ext)) + ext


def _decode_binary(header: bytes | memoryview) -> Command:
    code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header)
    remark, position = _counted(header, _BINARY_HEAD.size)
    ext, position = _counted(header, position)
    if position != len(header):
        raise ProtocolError("bytes after the header's last field")
    fields: dict[str, Any] = {}
    at = 0
    count = 0
    while at < len(ext):
        count += 1
        if count > _MAX_FIELDS:
            raise ProtocolError(f"more than {_MAX_FIELDS} fields")
        (key_bytes,) = _KEY_LENGTH.unpack_from(ext, at)
        at += _KEY_LENGTH.size
        if key_bytes < 0 or at + key_bytes > len(ext):
            raise ProtocolError("a field's name runs past the header")
        key = str(ext[at : at + key_bytes], "utf-8")
        value, at = _counted(ext, at + key_bytes)
        fields[key] = str(value, "utf-8")
    return Command(
        code if flag & FLAG_RESPONSE else _FOLDED.get(code, code),
        fields,
        opaque=opaque,
        flag=flag,
        remark=str(remark, "utf-8") if len(remark) else None,
        language=LANGUAGES[language] if language < len(LANGUAGES) else "OTHER",
        version=version,
        serialization=Serialization.ROCKETMQ,
    )


def _counted(buffer: bytes | memoryview, position: int) -> tuple[bytes | memoryview, int]:
    """Return the bytes that follow an i4 count at `position`, and the position after them."""
    (count,) = LENGTH.unpack_from(buffer, position)
    start = position + LENGTH.size
    if count < 0 or start + count > len(buffer):
        raise ProtocolError(f"{count} bytes declared, but {len(buffer) - start} bytes are left")
    return buffer[start : start + count], start + count


def _encode_msgpack(command: Command) -> bytes:
    header = [int(command.code), command.opaque, command.flag, command.remark, command.fields]
    return msgpack.packb(header, use_bin_type=True, unicode_errors=_LONE_SURROGATES)  # type: ignore[no-any-return]


def _decode_msgpack(header: bytes | memoryview) -> Command:
    code, opaque, flag, remark, fields = msgpack.unpackb(
        header, raw=False, strict_map_key=True, max_array_len=_MAX_ELEMENTS, max_map_len=_MAX_FIELDS
    )
    if not isinstance(fields, dict):
        raise ProtocolError("the header's fields are not a map")
    return Command(
        int(code),
        fields,
        opaque=int(opaque),
        flag=int(flag),
        remark=None if remark is None else _text(remark),
        serialization=Serialization.MSGPACK,
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
