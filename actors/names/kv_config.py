"""A name server's key-value configuration, in a file of RocketMQ's format (kvConfig.json).

The values are texts by namespace and key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raymq.actors.errors import InvalidInput, MessageNotFound
from raymq.storage.files import json_file

#: The namespace of ordered topics: topic -> "broker:queues;...".
ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
#: The most characters of all names and values, enough for 10,000 ordered topics. Each change rewrites all of them.
MAX_CHARACTERS = 1 << 20


class KVConfig:
    """The entries by namespace and key.

    Used on one event loop. A change is durable when its call returns.
    """

    def __init__(self, path: Path) -> None:
        """Load the entries; raise StoreCorrupt if the file cannot be read."""
        self._path = path
        self._table = json_file.load_as(path, _read)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Create or replace an entry; raise InvalidInput if the entries become too long."""
        if not namespace or not key:
            raise InvalidInput("namespace" if not namespace else "key", "at least 1 character", "")
        values = {**self._table.get(namespace, {}), key: value}
        others = sum(_characters(name, each) for name, each in self._table.items() if name != namespace)
        if others + _characters(namespace, values) > MAX_CHARACTERS:
            raise InvalidInput("value", f"at most {MAX_CHARACTERS} characters in all entries", len(value))
        self._save({**self._table, namespace: values})

    def replace(self, namespace: str, values: Mapping[str, str]) -> None:
        """Replace all entries of a namespace by these.

        Nothing is written if they are equal already.
        """
        if self._table.get(namespace, {}) != values:
            self._save({**self._table, namespace: dict(values)})

    def get(self, namespace: str, key: str) -> str:
        """Return the value; raise MessageNotFound if there is none."""
        try:
            return self._table[namespace][key]
        except KeyError:
            raise MessageNotFound(f"No config item, Namespace: {namespace} Key: {key}") from None

    def find(self, namespace: str, key: str) -> str | None:
        """Return the value, or None."""
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Delete an entry, if it exists."""
        if key in self._table.get(namespace, {}):
            values = {name: value for name, value in self._table[namespace].items() if name != key}
            self._save({**self._table, namespace: values})

    def entries(self, name: str) -> dict[str, str]:
        """Return all entries of a namespace, which may be empty."""
        return dict(self._table.get(name, {}))

    def namespace(self, name: str) -> dict[str, str]:
        """Return all entries of a namespace; raise MessageNotFound if there are none."""
        values = self._table.get(name)
        if not values:
            raise MessageNotFound(f"No config item, Namespace: {name}")
        return dict(values)

    def _save(self, table: dict[str, dict[str, str]]) -> None:
        json_file.save(self._path, {"configTable": table}, _read)
        self._table = table


def _characters(namespace: str, values: dict[str, str]) -> int:
    return len(namespace) + sum(len(name) + len(value) for name, value in values.items())


def _read(raw: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    table: Mapping[str, Any] = raw.get("configTable") or {}
    return {str(name): {str(key): str(value) for key, value in values.items()} for name, values in table.items()}
