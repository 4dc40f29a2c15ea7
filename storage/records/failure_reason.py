"""The reason why a try to consume a message failed, as the property of a record that keeps it."""

from __future__ import annotations

import re
from typing import Final

#: The longest reason, in bytes of UTF-8.
MOST_REASON_BYTES: Final = 512
#: No more characters of a text are looked at, since each of them is at least one byte.
_MOST_CHARACTERS: Final = MOST_REASON_BYTES
#: Control characters (\x01 and \x02 separate properties, others forge lines of a log), and separators of lines.
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HALF_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def failure_reason(text: str) -> str:
    """Return `text` as a property may hold it: no control characters, at most 512 bytes of UTF-8.

    A control character becomes a blank and half of a surrogate pair U+FFFD; what is too long is cut between characters.
    """
    shown = _HALF_SURROGATES.sub("\ufffd", _CONTROLS.sub(" ", text[:_MOST_CHARACTERS]))
    return shown.encode()[:MOST_REASON_BYTES].decode(errors="ignore").strip()
