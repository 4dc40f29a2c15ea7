"""The frame of RocketMQ's remoting protocol: the codec, and nothing that opens a socket.

    length i4 | serialisation 1 B + header length 3 B | header | body

`length` counts all that follows it. The header is JSON (0), RocketMQ's binary form (1), or msgpack (2, ours: only
between RayMQ's own client and server, for codes above 900000). Each frame names its own form, so a reader needs to
know nothing in advance, and an answer is written in its request's form.

Binary header: code i2 | language 1 B | version i2 | opaque i4 | flag i4 | remark (i4 length) | ext fields (i4 length;
each key i2 + bytes, value i4 + bytes). Source: RocketMQ's RocketMQSerializable. Its 16 bits fold the codes of pop
(200050 and others) into numbers that nothing else has: a request's are folded back here.
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
from raymq.storage.records.limits import DEFAULT_MESSAGE_BYTES, MOST_MESSAGE_BYTES

#: A frame above this is refused by closing the connection, before memory is taken for it: RocketMQ's limit. What may
#: be longer, because messages may, is said by `frame_bytes`.
MAX_FRAME_BYTES = 16 * 1024 * 1024
#: MQVersion ordinal of RocketMQ 5.3.3: what clients read to learn what a server can do.
PROTOCOL_VERSION = 479
#: Opaques that we give begin again behind this; a client's may be any i4, negative ones too.
MAX_OPAQUE = 0x7FFFFFFF
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
#: Ours, in answers to our own client: more answers to the same request follow.
FLAG_EARLY = 4

#: What a header may hold. Each field costs far more than its bytes; no command has more than a few dozen.
_MAX_FIELDS = 1_000
#: A request's JSON header is shorter: the longest, of a message of 32,767 bytes of properties, takes 200,000 bytes at
#: worst. An answer's has the ids of a whole batch.
MAX_JSON_REQUEST_BYTES = 256 * 1024
MAX_JSON_ANSWER_BYTES = 1024 * 1024
#: Elements of one list in a header of ours: queues of a fetch.
_MAX_ELEMENTS = 65_536
#: JSON can carry half of a surrogate pair, UTF-8 cannot: it is sent as "?".
_LONE_SURROGATES = "replace"
#: What may be one, or half of a whole pair.
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_LENGTHS = struct.Struct(">iI")
_MARK = struct.Struct(">I")
#: The field in front of each frame.
LENGTH = struct.Struct(">i")
_BINARY_HEAD = struct.Struct(">HBhii")
_KEY_LENGTH = struct.Struct(">h")

#: The binary form writes a language's place in this list.
LANGUAGES = tuple(
    "JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST NODE_JS".split()  # noqa: SIM905 - readable
)

Buffer = bytes | bytearray | memoryview

#: RocketMQ's codes that do not fit the binary form, by what is left of them there.
_FOLDED = {code & 0xFFFF: code.value for code in RequestCode if 0xFFFF < code < OWN_CODES_FROM}


def frame_bytes(max_message_bytes: int) -> int:
    """How long a frame may be where a message's body has at most so many bytes.

    RocketMQ's 16 MiB where that are 4 MiB or less: a body and 12 MiB. The longest frames need these for 8 MiB of other
    messages, of which an answer is full before the last one comes, for a header of 1 MiB, and for what a record has
    beside its body. For longer bodies it is as much more as they are longer.
    """
    return MAX_FRAME_BYTES - DEFAULT_MESSAGE_BYTES + max(DEFAULT_MESSAGE_BYTES, max_message_bytes)


#: Of frames that carry stored messages: a log may hold longer ones than its broker takes today.
MOST_FRAME_BYTES: Final = frame_bytes(MOST_MESSAGE_BYTES)


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
        body: payload bytes. One that was received owns its memory; it may be a memoryview if it is large.
        pieces: in a command to be sent, more of the body: buffers that follow `body` on the wire as they lie, such as
            the `parts` of a store's lease. They must not change any more. Whoever sends needs them no longer than the
            call of `send`: the transport copies what the socket did not take at once, or keeps the views and with them
            the mapping. So a lease may be released as soon as its parts are in a command. Received: always empty.
        opaque: matches an answer to its request, per direction of a connection.
        header_bytes: how long its header was, of one that was received.
        half: of one that was received, the half of a surrogate pair in its header that no UTF-8 can say, "" if none is.
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

    @property
    def body_bytes(self) -> int:
        """The length of the whole body on the wire."""
        return len(self.body) + sum(map(len, self.pieces)) if self.pieces else len(self.body)

    def in_one_piece(self) -> Command:
        """The same command with all of its body in `body`, as bytes: for who pickles it."""
        return replace(self, body=b"".join((self.body, *self.pieces)), pieces=())

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_early(self) -> bool:
        """Whether this is an answer that is not the last one to its request."""
        return bool(self.flag & FLAG_EARLY)

    @property
    def is_oneway(self) -> bool:
        """Whether no answer may be sent."""
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
        """An answer to this request: its opaque, its serialisation."""
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
    """The frame up to its body; write it, then `command.body`, then `command.pieces`.

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
    """The command in `frame` (what follows the length field). Its body is a view if the frame is one, all else a copy.

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
    except Exception as error:  # any garbage: whatever a parser raises, the peer gets one answer
        raise ProtocolError(f"header not readable: {error}") from error
    finally:
        # Said, not left to the last reference: CPython 3.11.2 now and then forgets to drop that of an argument, and a
        # buffer that somebody has a view of can neither grow nor shrink.
        if isinstance(header, memoryview):
            header.release()
    command.body = frame[end:]
    command.header_bytes = header_bytes
    return command


def may_say_halves(text: Buffer) -> bool:
    """Whether JSON, which is UTF-8, may say half of a surrogate pair: it takes an escape for one."""
    return _HALF.search(text) is not None


def half_of_a_pair(value: Any) -> str:
    """The first half of a surrogate pair without its other half in what was read from JSON; "" if there is none."""
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
        raise ProtocolError("the header is no JSON object")
    fields = data.get("extFields") or {}
    if not isinstance(fields, dict) or len(fields) > _MAX_FIELDS:
        raise ProtocolError(f"extFields is no JSON object of at most {_MAX_FIELDS} fields")
    return Command(
        int(data["code"]),
        {key: _text(value) for key, value in fields.items() if value is not None},
        opaque=int(data.get("opaque") or 0),
        flag=int(data.get("flag") or 0),
        remark=None if data.get("remark") is None else _text(data["remark"]),
        language=str(data.get("language") or "OTHER"),
        version=int(data.get("version") or 0),
        serialization=Serialization.JSON,
        half=half_of_a_pair(data) if may_say_halves(header) else "",
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
        raise ProtocolError("bytes behind the header's last field")
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
    """The bytes behind an i4 count at `position`, and the place behind them."""
    (count,) = LENGTH.unpack_from(buffer, position)
    start = position + LENGTH.size
    if count < 0 or start + count > len(buffer):
        raise ProtocolError(f"{count} bytes declared where {len(buffer) - start} are left")
    return buffer[start : start + count], start + count


def _encode_msgpack(command: Command) -> bytes:
    header = [int(command.code), command.opaque, command.flag, command.remark, command.fields]
    return msgpack.packb(header, use_bin_type=True, unicode_errors=_LONE_SURROGATES)  # type: ignore[no-any-return]


def _decode_msgpack(header: bytes | memoryview) -> Command:
    code, opaque, flag, remark, fields = msgpack.unpackb(
        header, raw=False, strict_map_key=True, max_array_len=_MAX_ELEMENTS, max_map_len=_MAX_FIELDS
    )
    if not isinstance(fields, dict):
        raise ProtocolError("the header's fields are no map")
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
