"""What a test needs from outside: a browser, a database, a proxy.

Without it the test is skipped with one line that says how to get it. Where `EARLYBYTE_REQUIRE_ALL=1` is set, as in the
full check, the test fails instead, so that a missing part is never taken for a passing test.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

T = TypeVar("T")


def require(name: str, found: T | None, how: str) -> T:
    """`found` itself, when it is there; else the test ends here.

    `name` is what is missing ("Chromium"), `found` a path, a URL or any value that is falsy when it is missing, `how` the
    words that tell how to get it ("apt install chromium").

    Raises:
        pytest.skip.Exception: it is missing.
        pytest.fail.Exception: it is missing and `EARLYBYTE_REQUIRE_ALL=1` is set.
    """
    if found:
        return found
    line = f"needs {name}: {how}"
    if os.environ.get("EARLYBYTE_REQUIRE_ALL") == "1":
        pytest.fail(line, pytrace=False)
    pytest.skip(line)
