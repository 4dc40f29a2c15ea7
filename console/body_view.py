"""Present a message's body on a page.

Cut where it is long, as a hex dump where it is no text.

`raymq.client.body_display` decodes it; the body is data from a stranger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raymq.client.body_display import MAX_ROWS, NAMES, display_body, read_text

#: A longer body is not decoded, and no more characters of its text are shown.
SHOWN_BYTES: Final = 64 << 10
_SHOWN_HEX_BYTES: Final = 4 << 10
_PREVIEW_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body as text.

    Attributes:
        kind: "JSON", "msgpack", "Arrow", "text", "hex" or "empty".
        size: the bytes of the whole body.
        cut: whether `text` has only the beginning.
        note: why it is not shown as its content type says; "" if it is.
    """

    kind: str
    text: str
    size: int
    cut: bool
    note: str = ""


def view_body(body: bytes, properties: Mapping[str, str] | None = None) -> BodyView:
    """Return a body as text, by its content type and else by its bytes."""
    if not body:
        return BodyView("empty", "", 0, cut=False)
    shown = display_body(body, properties, indent=2, max_bytes=SHOWN_BYTES)
    if shown.format == "bytes":
        return BodyView(
            "hex", _hex_dump(body[:_SHOWN_HEX_BYTES]), len(body), cut=len(body) > _SHOWN_HEX_BYTES, note=shown.note
        )
    is_cut = len(shown.text) > SHOWN_BYTES or (shown.rows or 0) > MAX_ROWS
    return BodyView(
        NAMES.get(shown.format, shown.format), shown.text[:SHOWN_BYTES], len(body), cut=is_cut, note=shown.note
    )


def preview_body(body: bytes) -> str:
    """Return the beginning of a body on one line, as text or as hex."""
    is_long = len(body) > 4 * _PREVIEW_CHARACTERS
    text = read_text(body[: 4 * _PREVIEW_CHARACTERS], is_cut=is_long)
    line = body[: _PREVIEW_CHARACTERS // 3].hex(" ") if text is None else " ".join(text.split())
    is_whole = len(line) <= _PREVIEW_CHARACTERS and (text is not None or len(body) <= _PREVIEW_CHARACTERS // 3)
    return line if is_whole and not is_long else line[:_PREVIEW_CHARACTERS] + "…"


def _hex_dump(body: bytes) -> str:
    """Return lines of the position, sixteen bytes in hex and their ASCII characters."""
    lines = []
    for start in range(0, len(body), 16):
        part = body[start : start + 16]
        ascii_part = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {ascii_part}")
    return "\n".join(lines)
