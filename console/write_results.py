"""Keep the pages that answer writes, each at an address of its own.

A form is answered by a redirect: to load the result again, or to go back, then sends nothing once more.
"""

from __future__ import annotations

import secrets
from typing import Final

from raymq.console.page_rendering import Page

#: The results that are kept; of more, the oldest are dropped.
_KEPT: Final = 100


class WriteResults:
    """The pages of the last writes, by keys that nobody can guess."""

    def __init__(self) -> None:
        self._pages: dict[str, Page] = {}

    def keep(self, page: Page) -> str:
        """Keep a page and return its key."""
        while len(self._pages) >= _KEPT:
            del self._pages[next(iter(self._pages))]
        key = secrets.token_urlsafe(16)
        self._pages[key] = page
        return key

    def get(self, key: str) -> Page | None:
        """Return the page with this key; None if it is not kept."""
        return self._pages.get(key)
