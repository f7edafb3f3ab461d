"""Where a dialect's endpoint is, from the `base_url` that a person wrote (PROTOCOL 8: it may end in /v1 or not)."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_VERSION = re.compile(r"v[0-9]+[a-z0-9]*", re.IGNORECASE)


def server(url: str) -> tuple[str, int]:
    """The host and port of a URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def endpoint(base_url: str, path: str) -> str:
    """The URL of `path` (such as `chat/completions`) under `base_url`.

    `/v1` is added unless a segment of the base is a version already (`/api/v1`, `/v1beta/openai`). A base that names
    the endpoint itself is taken as it is. A query is kept.
    """
    parts = urlsplit(base_url.strip())
    base = parts.path.rstrip("/")
    if base.endswith("/" + path):
        whole = base
    elif any(_VERSION.fullmatch(segment) or segment == "deployments" for segment in base.split("/")):
        whole = f"{base}/{path}"
    else:
        whole = f"{base}/v1/{path}"
    return urlunsplit((parts.scheme, parts.netloc, whole, parts.query, ""))
