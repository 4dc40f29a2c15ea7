"""Generate the unique keys of this process's messages.

See `raymq.storage.records.unique_key_generator` for their format.
"""

from __future__ import annotations

import os
from typing import Final

from raymq.storage.records import property_names as properties
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator

_keys: Final = UniqueKeyGenerator()
os.register_at_fork(after_in_child=_keys.restart)

reserve = _keys.reserve
text = _keys.text
texts = _keys.texts


def process_unique_keys() -> UniqueKeyGenerator:
    """Return the process's generator; in a forked child it has another prefix."""
    return _keys


def pair(key: str) -> bytes:
    """Return the encoded property of a unique key, with its separators."""
    return f"{properties.UNIQ_KEY}\x01{key}\x02".encode()
