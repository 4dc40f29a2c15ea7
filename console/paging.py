"""Cut long lists into pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from raymq.client import InvalidInput

_T = TypeVar("_T")

ITEMS_PER_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class PageOf(Generic[_T]):
    """The items of one page; pages count from 1."""

    items: list[_T]
    page: int
    pages: int
    total: int

    def as_data(self) -> dict[str, Any]:
        """Return the place of the page in the list."""
        return {"page": self.page, "pages": self.pages, "total": self.total}


def page_of(items: Sequence[_T], page: str | None) -> PageOf[_T]:
    """Return a page by its number as text.

    None is the first, a number beyond the last is the last.

    Raises:
        InvalidInput: the text is no number from 1 on.
    """
    pages = max(1, -(-len(items) // ITEMS_PER_PAGE))
    number = min(page_number(page), pages)
    first = (number - 1) * ITEMS_PER_PAGE
    return PageOf(list(items[first : first + ITEMS_PER_PAGE]), number, pages, len(items))


def page_number(page: str | None) -> int:
    """Return the number of a page, from 1 on; raise InvalidInput for other text."""
    text = page or "1"
    if not text.isdecimal() or not int(text[:9]) > 0:
        raise InvalidInput("page", "a number from 1 on", text)
    return int(text[:9])
