"""How a model call can fail, classified once (X1). Details are for the log and never hold a key."""

from __future__ import annotations

from app.errors import EarlybyteError


class ProviderError(EarlybyteError):
    """The model call failed.

    `code` is the provider's code, else its type, else one of ours; `transient` says whether trying again may help (X1);
    `retry_after` is the wait in seconds that the endpoint asked for, None where it asked for none; `detail` is for the
    log.
    """

    code = "provider_error"

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str | None = None,
        transient: bool = True,
        retry_after: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.transient = transient
        self.retry_after = retry_after
        self.detail = detail


class UpstreamUnavailable(ProviderError):
    """The model endpoint failed in a way that may pass."""

    code = "upstream_unavailable"


class UpstreamRejected(ProviderError):
    """The model endpoint refused the request."""

    code = "upstream_rejected"

    def __init__(self, message: str | None = None, *, code: str | None = None, detail: str = "") -> None:
        super().__init__(message, code=code, transient=False, detail=detail)


class StreamIncomplete(ProviderError):
    """The model's stream ended before the model did."""

    code = "stream_incomplete"


class ProtocolViolation(ProviderError):
    """The model's stream held something that is not its protocol; counts as a cut."""

    code = "protocol_error"


class LimitExceeded(ProviderError):
    """The model's stream grew over a limit."""

    code = "limit_exceeded"

    def __init__(self, message: str | None = None, *, detail: str = "") -> None:
        super().__init__(message, transient=False, detail=detail)
