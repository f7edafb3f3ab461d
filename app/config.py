"""Every setting, its default and the reason for it; and the one door to the environment.

`Settings.load` puts together, the later over the earlier: the defaults below, `earlybyte.toml`, and the environment
(`EARLYBYTE_<GROUP>__<NAME>`). What cannot be used is refused before anything starts, in one sentence that names the
place. Secrets are not settings: a setting holds the *name* of the environment variable that has the secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Annotated, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from app import config_sources as sources
from app.config_sources import without_password
from app.errors import ConfigError
from app.limits import budget
from app.limits.budget import Timeouts, number


def _origin(value: str) -> str:
    if value == "*":
        raise ValueError("'*' cannot be allowed, because browsers sign in by a cookie; name each origin")
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.netloc or f"{parts.scheme}://{parts.netloc}" != value:
        raise ValueError("an origin is written as https://host or https://host:port, without a path")
    return value


def _network(value: str) -> str:
    try:
        ip_network(value, strict=False)
    except ValueError:
        raise ValueError("a proxy is an IP address or a network such as 10.0.0.0/8") from None
    return value


def _written(pattern: str, words: str) -> AfterValidator:
    """Accepts text of this pattern; `words` tell a person what that is."""

    def check(value: str) -> str:
        if re.match(pattern, value) is None:
            raise ValueError(f"it must be {words}")
        return value

    return AfterValidator(check)


StoreUrl = Annotated[
    str, _written(r"(sqlite\+aiosqlite|postgresql\+asyncpg)://", "sqlite+aiosqlite:///… or postgresql+asyncpg://…")
]
VariableName = Annotated[str, _written(r"([A-Z][A-Z0-9_]*)?$", "the name of an environment variable, in capitals")]
HttpUrl = Annotated[str, _written(r"https?://[^/\s]+", "an address such as https://host/v1")]
# Without a password or a query, so that it can be shown: what is secret goes into headers.
CollectorUrl = Annotated[
    str, _written(r"(https?://[^/\s@?#]+[^\s@?#]*)?$", "an address such as http://localhost:4318, without password or query")
]
AgentPath = Annotated[str, _written(r"[\w.]+:\w+$", "package.module:name")]
Count = Annotated[int, BeforeValidator(number), Field(ge=1)]
Origin = Annotated[str, AfterValidator(_origin)]
Network = Annotated[str, AfterValidator(_network)]


class Group(BaseModel):
    """A table of the configuration: frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(Group):
    """`[server]`: where and as what the service listens."""

    # Without an API key or JWT only a loopback address is accepted (A1).
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    # 0 takes any free port; the line printed at the start names it.
    port: Annotated[int, BeforeValidator(number), Field(ge=0, le=65535)] = 8000
    # api: accepts and answers; stream: serves viewers; all: both, and runs turns.
    role: Literal["all", "api", "stream"] = "all"
    # Processes on this machine. More than one needs a shared turn log.
    workers: Count = 1
    # Exact origins whose pages may call the API with credentials; empty: only the service's own page.
    cors_origins: tuple[Origin, ...] = ()
    # Addresses or networks whose X-Forwarded-For is believed; empty: nobody's.
    trusted_proxies: tuple[Network, ...] = ()
    # The least important line that is still logged.
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Store(Group):
    """`[store]`: where conversations live."""

    # An SQLAlchemy URL. One file needs no server; many replicas need PostgreSQL. A relative path is one of the working
    # directory.
    url: StoreUrl = "sqlite+aiosqlite:///earlybyte.db"


class TurnLog(Group):
    """`[turn_log]`: where the events of running turns are kept for their viewers."""

    # One process needs no broker.
    url: str = "memory://"


class Retries(Group):
    """`[retries]`: how often a failed model call is made (X1)."""

    # Tries of one model call, the first included. 3 get over a restart at the other end; more only add load to a fire.
    attempts: Count = 3
    # forward: a call that has shown nothing is made again with the results of the tools; salvage: it is not.
    after_tool: Literal["forward", "salvage"] = "forward"


class Limits(Group):
    """`[limits]`: how much at once (H5), and how much of each (H1, section 8). There is no unlimited."""

    # Turns that run at once, in this process.
    turns: Count = 200
    # Turns that wait for one of those places; 0 refuses at once.
    queued: Annotated[int, BeforeValidator(number), Field(ge=0)] = 100
    # Open turns of one user, and from one address.
    turns_per_user: Count = 10
    turns_per_address: Count = 50
    # Open streams: in all, of one user, and from one address.
    viewers: Count = 2000
    viewers_per_user: Count = 30
    viewers_per_address: Count = 100
    # Bytes of a request's body.
    body_bytes: Count = 1_048_576
    # Characters of one input; about 25,000 tokens.
    input_chars: Count = 100_000
    # Characters of one answer, reasoning not counted.
    answer_chars: Count = 1_000_000
    # Bytes of one model call's response.
    upstream_bytes: Count = 67_108_864
    # Characters of the history that a model is sent; whole turns are dropped from the old end (X4).
    history_chars: Count = 200_000
    # Bytes of event log kept for one turn, and in this process (R4).
    log_bytes: Count = 16_777_216
    logs_bytes: Count = 268_435_456


class Auth(Group):
    """`[auth]`: JSON Web Tokens beside API keys (A1). All empty: API keys only."""

    # The name of the environment variable that has the shared secret (HS256).
    jwt_secret_env: VariableName = ""
    # Public keys: a file, or an address that they are fetched from.
    jwks_file: str = ""
    jwks_url: str = ""
    # What `iss` and `aud` must be; empty: not looked at.
    issuer: str = ""
    audience: str = ""

    @property
    def jwt(self) -> bool:
        """Whether any way to check a token is configured."""
        return bool(self.jwt_secret_env or self.jwks_file or self.jwks_url)


class Hooks(Group):
    """`[hooks]`: hooks of every profile."""

    # Modules whose `@hook` functions run, e.g. "my_company.hooks".
    modules: tuple[str, ...] = ()


class Telemetry(Group):
    """`[telemetry]`: spans of turns for an OpenTelemetry collector. Without an endpoint there are none."""

    # The collector's OTLP address; /v1/traces is added unless it ends so. Empty: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
    # OTEL_EXPORTER_OTLP_ENDPOINT, as platforms set them; without those, off.
    endpoint: CollectorUrl = ""
    # gRPC would bring a large library for nothing that is missed here; every collector speaks this one, too.
    protocol: Literal["http/protobuf"] = "http/protobuf"
    # The name of the environment variable that has headers for the collector, such as a key: "name=value,name=value".
    headers_env: VariableName = ""
    # What the spans are found under. Not set: OTEL_SERVICE_NAME, else this.
    service_name: Annotated[str, Field(min_length=1)] = "earlybyte"
    # The share of turns that are traced, 0 to 1, where the caller's `traceparent` does not decide.
    sample_ratio: Annotated[float, BeforeValidator(number), Field(ge=0, le=1)] = 1.0


@dataclass(frozen=True, kw_only=True)
class Collector:
    """Where spans are sent: the whole URL, the headers (secret) and the name of the service."""

    url: str
    headers: dict[str, str] = field(repr=False)
    service_name: str


class Profile(Group):
    """`[profiles.<name>]`: one assistant: its model or agent, its instructions and its tools."""

    provider: Literal["demo", "openai", "anthropic", "agent"] = "demo"
    # The model's name as the endpoint knows it; must be given for openai and anthropic.
    model: str = ""
    # The endpoint, with or without /v1; None: the provider's own.
    base_url: HttpUrl | None = None
    # The name of the environment variable that has the key. None: OPENAI_API_KEY or ANTHROPIC_API_KEY at the provider's
    # own endpoint, and no key at any other, so that a key never goes to a place that it was not meant for.
    api_key_env: VariableName | None = None
    # The system prompt; None: the model is sent none.
    system: str | None = None
    # Modules whose `@tool` functions are offered, or `module:name` for one of them.
    tools: tuple[str, ...] = ()
    # Model calls of one turn. A dozen is more than a sound plan needs, and stops one that goes in circles.
    max_steps: Count = 12
    # Tokens that one model call may answer with.
    max_output_tokens: Count = 4096
    # `package.module:name` of your own agent, for provider = "agent".
    agent: AgentPath | None = None
    # Whether that agent may be started again after a transient failure that has shown nothing (X1).
    restartable: bool = False
    # Hook modules of this profile, beside those of `[hooks]`.
    hooks: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.provider == "agent" and self.agent is None:
            raise ValueError('provider = "agent" needs agent = "package.module:name"')
        if self.provider != "agent" and self.agent is not None:
            raise ValueError('agent is only used with provider = "agent"')
        if self.provider in {"openai", "anthropic"} and not self.model:
            raise ValueError(f'provider = "{self.provider}" needs model')
        return self


_OWN_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_DEFAULT_PROFILES = {"default": Profile(provider="demo", tools=("app.demo.ledger",))}


class Settings(Group):
    """The whole configuration. What `load` gives has a sound ladder; settings that are made by hand may have none."""

    server: Server = Server()
    store: Store = Store()
    turn_log: TurnLog = TurnLog()
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    limits: Limits = Limits()
    auth: Auth = Auth()
    hooks: Hooks = Hooks()
    telemetry: Telemetry = Telemetry()
    # Your words for the service's own sentences: an error `code` (section 3) to the apology that is shown for it.
    texts: dict[str, str] = {}
    # Without any, the demo assistant, which needs no key and no network.
    profiles: Annotated[dict[str, Profile], Field(min_length=1)] = _DEFAULT_PROFILES

    @classmethod
    def load(
        cls,
        path: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        options: Mapping[sources.Place, str] | None = None,
    ) -> Self:
        """The settings from `path` (else `EARLYBYTE_CONFIG`, else `earlybyte.toml`, if there) and the environment.

        `options` win over both: what the command line says, by place, as `("server", "port")` for `--port`.

        Raises:
            ConfigError: one sentence that names the file or variable, the key, what is wrong and what is allowed.
        """
        environ = os.environ if environ is None else environ
        found = sources.read(path or environ.get("EARLYBYTE_CONFIG"), environ, cls, options or {})
        try:
            settings = cls.model_validate(found.values)
        except ValidationError as error:
            raise ConfigError(found.sentence(error, cls)) from None
        try:
            settings._agree()  # noqa: SLF001 - its own
            budget.check(settings.timeouts)
        except ConfigError as error:
            raise ConfigError(found.located(error.message)) from None
        return settings

    def _agree(self) -> None:
        """Refuse what each group allows by itself, but not together."""
        match urlsplit(self.turn_log.url).scheme:
            case "memory":
                pass
            case "redis" | "rediss":
                raise ConfigError("turn_log.url = redis://… is not built yet; use memory://, which serves one process.")
            case _:
                raise ConfigError(f"turn_log.url = {without_password(self.turn_log.url)} is unknown; use memory://.")
        if self.server.workers > 1:
            raise ConfigError(
                f"server.workers = {self.server.workers} needs a turn log that processes share; "
                "with turn_log.url = memory:// it must be 1."
            )
        if "default" not in self.profiles:
            names = ", ".join(self.profiles)
            raise ConfigError(f"[profiles] has no profile named default, only {names}; a turn that names none needs it.")

    def api_key(self, profile: Profile, *, environ: Mapping[str, str] | None = None) -> str | None:
        """The key of the profile's endpoint; None where none is needed.

        Local servers need none, so behind a `base_url` of your own a missing variable is no error.

        Raises:
            ConfigError: the provider's own endpoint is used, and the environment has no key for it.
        """
        own_endpoint = profile.base_url is None
        name = profile.api_key_env or (_OWN_KEYS.get(profile.provider) if own_endpoint else None)
        key = secret(name, environ=environ) if name else None
        if key is None and own_endpoint and profile.provider in _OWN_KEYS:
            raise ConfigError(
                f"The environment variable {name} is not set; profiles.{self._name_of(profile)} (provider = "
                f'"{profile.provider}") needs its key. Set it, name another in api_key_env, or use provider = "demo".'
            )
        return key

    def collector(self, *, environ: Mapping[str, str] | None = None) -> Collector | None:
        """Where spans are sent; None while tracing is off.

        Raises:
            ConfigError: the variable that `telemetry.headers_env` names is not set, or holds no headers.
        """
        environ = os.environ if environ is None else environ
        given = self.telemetry
        url = _for_traces(given.endpoint) if given.endpoint else _standard_collector(environ)
        if url is None:
            return None
        headers: dict[str, str] = {}
        if given.headers_env:
            headers = _headers(given.headers_env, secret(given.headers_env, environ=environ))
        # What is set here wins over the standard variable, and that over the default.
        name = None if "service_name" in given.model_fields_set else environ.get("OTEL_SERVICE_NAME")
        return Collector(url=url, headers=headers, service_name=name or given.service_name)

    def _name_of(self, profile: Profile) -> str:
        return next((name for name, known in self.profiles.items() if known is profile), "?")

    def redacted(self) -> dict[str, object]:
        """The settings as plain values that can be shown: passwords in URLs are replaced by `***`."""
        return _shown(self.model_dump(mode="json"))


# The key of a client (`chat`, `probe`), for whoever wants it neither on a command line nor in a file. Not a setting.
KEY_VARIABLE = "EARLYBYTE_KEY"


def secret(name: str, *, environ: Mapping[str, str] | None = None) -> str | None:
    """The secret in the environment variable `name`; None where it is missing or empty."""
    return (os.environ if environ is None else environ).get(name) or None


def _standard_collector(environ: Mapping[str, str]) -> str | None:
    """The collector that the standard variables name, where they do, and in the protocol that is spoken here."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    prefix = "OTEL_EXPORTER_OTLP"
    protocol = environ.get(f"{prefix}_TRACES_PROTOCOL") or environ.get(f"{prefix}_PROTOCOL") or "http/protobuf"
    if protocol != "http/protobuf":
        return None
    base = environ.get(f"{prefix}_ENDPOINT")
    return environ.get(f"{prefix}_TRACES_ENDPOINT") or (_for_traces(base) if base else None)


def _for_traces(endpoint: str) -> str:
    base = endpoint.rstrip("/")
    return base if base.endswith("/v1/traces") else f"{base}/v1/traces"


def _headers(variable: str, text: str | None) -> dict[str, str]:
    """The headers in `text`, as in OTEL_EXPORTER_OTLP_HEADERS; no sentence repeats them, since they are secret."""
    if text is None:
        raise ConfigError(f"The environment variable {variable} is not set; telemetry.headers_env names it.")
    headers = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        name, value = name.strip().lower(), unquote(value.strip())
        if re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) is None or re.fullmatch(r"[ -~]+", value) is None:
            raise ConfigError(f"The environment variable {variable} must hold headers as name=value,name=value.")
        headers[name] = value
    return headers


def _shown(values: dict[str, object]) -> dict[str, object]:
    shown: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            shown[key] = _shown(value)
        elif isinstance(value, str) and "url" in key:
            shown[key] = without_password(value)
        else:
            shown[key] = value
    return shown
