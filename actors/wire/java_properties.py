"""Settings in RocketMQ's form: lines of `name=value`, in the format of java.util.Properties."""

from __future__ import annotations

import re
from collections.abc import Mapping

from raymq.actors.errors import InvalidInput
from raymq.actors.wire.frame import Buffer

_LINE = re.compile(r"(?P<name>(?:[^\\=:\s]|\\.)+)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


#: The longest body with settings, in bytes.
MAX_BYTES = 64 * 1024


def write(settings: Mapping[str, str]) -> bytes:
    """Return one line per setting, sorted by name.

    The lines are ASCII, because Java's reader decodes bytes as ISO-8859-1.
    """
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in sorted(settings.items())).encode("ascii")


def read(body: Buffer) -> dict[str, str]:
    """Return the settings in a body; comments and continued lines are supported.

    Raises:
        InvalidInput: the body is not UTF-8, or too long.
    """
    if len(body) > MAX_BYTES:
        raise InvalidInput("body", f"at most {MAX_BYTES} bytes", len(body))
    try:
        text = bytes(body).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("body", "lines of name=value in UTF-8", str(error)) from error
    settings = {}
    for line in re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", text).splitlines():
        stripped = line.lstrip(" \t\f")
        match = _LINE.fullmatch(stripped)
        if match is not None and not stripped.startswith(("#", "!")):
            settings[_plain(match["name"])] = _plain(match["value"])
    return settings


def _escaped(text: str) -> str:
    units = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}" for code in codes)


def _plain(text: str) -> str:
    plain = _ESCAPE.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else _CONTROLS.get(m[1], m[1]), text)
    return plain.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")  # joins surrogate pairs
