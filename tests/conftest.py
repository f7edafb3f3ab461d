"""What holds for every test."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A shared machine is slow at times; that is no failure. A found example is printed so that it can be replayed anywhere.
settings.register_profile("house", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


@pytest.fixture
def anyio_backend() -> str:
    """The service runs on asyncio, so its tests do."""
    return "asyncio"
