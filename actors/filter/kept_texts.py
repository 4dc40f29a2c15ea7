"""What was made of texts that come again and again, such as filter expressions: kept, as much as a bound allows.

Others choose the texts, and how long they are, so it is their characters that are bounded and not how many there are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class KeptTexts(Generic[_Value]):
    """Values by text; of more than `most_characters` those go that were asked for longest ago. Thread-safe."""

    def __init__(self, most_characters: int) -> None:
        self._most = most_characters
        self._values: OrderedDict[str, _Value] = OrderedDict()
        self._lock = threading.Lock()
        #: Of all that is kept.
        self.characters = 0

    def find(self, text: str) -> _Value | None:
        """What is kept of a text."""
        with self._lock:
            if text in self._values:
                self._values.move_to_end(text)
            return self._values.get(text)

    def get(self, text: str, make: Callable[[str], _Value]) -> _Value:
        """What `make` makes of a text, or made of it before; what it raises is not kept."""
        known = self.find(text)
        if known is not None:
            return known
        value = make(text)
        with self._lock:
            if text not in self._values:
                self._values[text] = value
                self.characters += len(text)
            while self.characters > self._most:
                gone, _ = self._values.popitem(last=False)
                self.characters -= len(gone)
        return value
