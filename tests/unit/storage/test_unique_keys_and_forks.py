"""Test the prefixes of unique keys in forked processes."""

from __future__ import annotations

import socket

import pytest

from raymq.storage.records import unique_key_generator
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator


def test_failing_resolver_is_called_once_for_all_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Fault 13.29: each look-up took two seconds.
    lookups = []

    def fails(name: str) -> str:
        lookups.append(name)
        raise OSError("no resolver")

    monkeypatch.setattr(socket, "gethostbyname", fails)
    unique_key_generator._own_address.cache_clear()
    try:
        keys = UniqueKeyGenerator()
        prefixes = {keys.prefix}
        for _ in range(5):
            keys.restart()  # as in a forked child
            prefixes.add(keys.prefix)
    finally:
        unique_key_generator._own_address.cache_clear()
    assert len(lookups) == 1
    assert len(prefixes) == 6, "each has keys of its own"
