"""Where a process's unique keys begin."""

from __future__ import annotations

import socket

import pytest

from raymq.storage.records import unique_key_generator
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator


def test_a_resolver_that_fails_is_asked_once_and_not_after_every_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 13.29: each look-up took two seconds."""
    asked = []

    def fails(name: str) -> str:
        asked.append(name)
        raise OSError("no resolver")

    monkeypatch.setattr(socket, "gethostbyname", fails)
    unique_key_generator._own_address.cache_clear()
    try:
        keys = UniqueKeyGenerator()
        prefixes = {keys.prefix}
        for _ in range(5):
            keys.restart()  # what a forked child does
            prefixes.add(keys.prefix)
    finally:
        unique_key_generator._own_address.cache_clear()
    assert len(asked) == 1
    assert len(prefixes) == 6, "each has keys of its own"
