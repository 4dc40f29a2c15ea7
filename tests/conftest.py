"""What all tests share. Fixtures of one folder belong into its own conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Two busy cores make single examples slow: that is no failure.
settings.register_profile("raymq", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("raymq")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return REPOSITORY
