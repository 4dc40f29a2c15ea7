"""A cache of values that are computed from texts, such as filter expressions.

Clients choose the texts and their length, so the cache limits the characters, and not the number of entries.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class LRUCache(Generic[_Value]):
    """Values by text, the least recently used ones evicted. Thread-safe.

    The texts have at most `most_characters` characters together.
    """

    def __init__(self, most_characters: int) -> None:
        self._most = most_characters
        self._values: OrderedDict[str, _Value] = OrderedDict()
        self._lock = threading.Lock()
        #: The number of characters of all cached texts.
        self.characters = 0

    def find(self, text: str) -> _Value | None:
        """Return the cached value of a text, or None."""
        with self._lock:
            if text in self._values:
                self._values.move_to_end(text)
            return self._values.get(text)

    def get(self, text: str, make: Callable[[str], _Value]) -> _Value:
        """Return the cached value of a text, or compute it with `make` and cache it.

        An exception of `make` is raised and not cached.
        """
        known = self.find(text)
        if known is not None:
            return known
        value = make(text)
        with self._lock:
            if text not in self._values:
                self._values[text] = value
                self.characters += len(text)
            while self.characters > self._most:
                oldest, _ = self._values.popitem(last=False)
                self.characters -= len(oldest)
        return value
