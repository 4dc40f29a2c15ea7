"""The reason why consuming a message failed, as text that a record's property can hold."""

from __future__ import annotations

import re
from typing import Final

#: The longest reason, in bytes of UTF-8.
MAX_REASON_BYTES: Final = 512
#: At most this many characters of a text are read, since each takes at least one byte.
_MAX_CHARACTERS: Final = MAX_REASON_BYTES
#: Control characters (\x01 and \x02 separate properties, others can forge lines of a log) and line separators.
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HALF_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def failure_reason(text: str) -> str:
    """Return `text` as a valid property value of at most 512 bytes of UTF-8.

    Control characters become blanks, and halves of surrogate pairs become U+FFFD. A longer text is cut between
    characters.
    """
    shown = _HALF_SURROGATES.sub("\ufffd", _CONTROLS.sub(" ", text[:_MAX_CHARACTERS]))
    return shown.encode()[:MAX_REASON_BYTES].decode(errors="ignore").strip()
