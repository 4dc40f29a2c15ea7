"""Unique keys of this process's messages; see `raymq.storage.unique_keys` for their shape."""

from __future__ import annotations

import os

from raymq.storage.unique_keys import UniqueKeys

_keys = UniqueKeys()
os.register_at_fork(after_in_child=_keys.restart)


def new_unique_key() -> str:
    """The next key of this process; a forked child has a prefix of its own."""
    return _keys.one()


def process_unique_keys() -> UniqueKeys:
    """The source itself, for batches."""
    return _keys
