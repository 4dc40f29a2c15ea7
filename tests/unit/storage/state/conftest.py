"""Stop the recording of file changes at each test's end, as a process's death would."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.storage.files.file_calls import FileCalls, replaced


@pytest.fixture(autouse=True)
def nobody_is_told_afterwards() -> Iterator[None]:
    with replaced(FileCalls()):
        yield
