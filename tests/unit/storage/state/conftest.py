"""The end of a test is the death of its process: nobody is told of changes any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.storage.files.file_calls import FileCalls, replaced


@pytest.fixture(autouse=True)
def nobody_is_told_afterwards() -> Iterator[None]:
    with replaced(FileCalls()):
        yield
