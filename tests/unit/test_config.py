"""Settings: where they come from, and the one sentence for those that cannot be used (PROTOCOL 8)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from app.config import Settings
from app.errors import ConfigError

ROOT = Path(__file__).parents[2]


def load(tmp_path: Path, text: str = "", **environ: str) -> Settings:
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return Settings.load(str(file), environ=environ)


def refusal(tmp_path: Path, text: str = "", **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **environ)
    return caught.value.message.replace(f"{tmp_path}/", "")


def test_without_any_configuration_the_demo_is_served_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 8: the defaults need no file, no key and no network."""
    monkeypatch.chdir(tmp_path)
    settings = Settings.load(environ={})
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8000)
    assert settings.profiles["default"].provider == "demo"
    assert settings.profiles["default"].tools == ("app.demo.ledger",)
    assert settings.api_key(settings.profiles["default"], environ={}) is None


def test_limits_and_timeouts_have_the_defaults_of_the_protocol() -> None:
    """Sections 6 and 8 name each value; operators rely on them."""
    settings = Settings()
    assert settings.limits.model_dump() == {
        "turns": 200, "queued": 100, "turns_per_user": 10, "turns_per_address": 50, "viewers": 2000,
        "viewers_per_user": 30, "viewers_per_address": 100, "body_bytes": 1048576, "input_chars": 100000,
        "answer_chars": 1000000, "upstream_bytes": 67108864, "history_chars": 200000, "log_bytes": 16777216,
        "logs_bytes": 268435456,
    }  # fmt: skip
    assert settings.timeouts.model_dump() == {
        "tool": 30, "turn": 120, "request": 130, "drain": 135, "shutdown": 140, "kill": 160, "model_first_token": 30,
        "model_between_tokens": 20, "keep_alive": 15, "client_watchdog": 45, "proxy_read": 75, "lb_idle": 120,
        "server_keep_alive": 130, "viewer_write": 10, "tcp_user": 30, "reserve": 10, "approval": 600,
        "connection_age": 600, "checkpoint": 1,
    }  # fmt: skip
    assert settings.retries.model_dump() == {"attempts": 3, "after_tool": "forward"}


def test_the_environment_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    """Each value may be given as EARLYBYTE_<GROUP>__<NAME>, whatever the file says."""
    settings = load(tmp_path, "[server]\nport = 9001\nhost = '::1'\n", EARLYBYTE_SERVER__PORT="9002")
    assert (settings.server.port, settings.server.host, settings.server.role) == (9002, "::1", "all")


def test_the_command_line_wins_over_the_environment(tmp_path: Path) -> None:
    """`serve --port`: checked as the setting is, and blamed by its own name."""
    file, environ = tmp_path / "mine.toml", {"EARLYBYTE_SERVER__PORT": "many", "EARLYBYTE_SERVER__HOST": "::1"}
    file.write_text("[server]\nport = 1\n", encoding="utf-8")
    server = Settings.load(str(file), environ=environ, options={("server", "port"): "9000"}).server
    assert (server.port, server.host) == (9000, "::1")
    with pytest.raises(ConfigError, match=r'^--port: server\.port = "x" is not allowed'):
        Settings.load(str(file), environ=environ, options={("server", "port"): "x"})


def test_the_file_in_the_working_directory_is_read_and_a_named_one_instead_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--config` comes before EARLYBYTE_CONFIG, and that before earlybyte.toml."""
    monkeypatch.chdir(tmp_path)
    for name, port in (("earlybyte.toml", 1), ("by-env.toml", 2), ("by-option.toml", 3)):
        Path(name).write_text(f"[server]\nport = {port}\n", encoding="utf-8")
    environ = {"EARLYBYTE_CONFIG": "by-env.toml"}
    assert Settings.load(environ={}).server.port == 1
    assert Settings.load(environ=environ).server.port == 2
    assert Settings.load("by-option.toml", environ=environ).server.port == 3


def test_profiles_and_texts_can_be_set_from_the_environment(tmp_path: Path) -> None:
    """A name of the user's own is matched to the file's spelling: a variable's name has neither case nor hyphen."""
    text = "[profiles.default]\n[profiles.Big-One]\nmodel = 'a'\n"
    settings = load(tmp_path, text, EARLYBYTE_PROFILES__BIG_ONE__MODEL="b", EARLYBYTE_TEXTS__INTERNAL="Oh dear.")
    assert settings.profiles["Big-One"].model == "b"
    assert settings.texts == {"internal": "Oh dear."}


def test_a_variable_changes_the_default_profile_and_keeps_its_tools(tmp_path: Path) -> None:
    """Trying another model on the demo's tools takes one variable, not a whole profile."""
    settings = load(tmp_path, EARLYBYTE_PROFILES__DEFAULT__MODEL="m")
    assert settings.profiles["default"].model == "m"
    assert settings.profiles["default"].tools == ("app.demo.ledger",)


@pytest.mark.parametrize("text", ['["https://a.example", "http://b.example:81"]', "https://a.example, http://b.example:81"])
def test_a_list_in_the_environment_is_json_or_comma_separated(tmp_path: Path, text: str) -> None:
    """Both ways give the same list."""
    settings = load(tmp_path, EARLYBYTE_SERVER__CORS_ORIGINS=text)
    assert settings.server.cors_origins == ("https://a.example", "http://b.example:81")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[timeouts]\nno_such_rung = 1", ("mine.toml", "timeouts.no_such_rung", "allowed are tool, turn")),
        ("[timeouts]\nturm = 1", ("timeouts.turm", "did you mean turn?")),
        ("[sever]\nport = 1", ("sever", "did you mean server?")),
        ("[profiles.default]\nmodell = 'x'", ("profiles.default.modell", "did you mean model?")),
        ("[server]\nport = 'abc'", ("server.port", '"abc"', "integer")),
        ("[server]\nport = 70000", ("server.port", "70000", "65535")),
        ("[server]\nrole = 'boss'", ("server.role", '"boss"', "'all', 'api' or 'stream'")),
        ("[server]\ncors_origins = ['*']", ("server.cors_origins", '"*"', "name each origin")),
        ("[server]\ncors_origins = ['https://a.example/']", ("server.cors_origins", "without a path")),
        ("[server]\ntrusted_proxies = ['proxy']", ("server.trusted_proxies", '"proxy"', "10.0.0.0/8")),
        ("[server]\nworkers = 2", ("mine.toml: server.workers = 2", "memory://", "must be 1")),
        ("[turn_log]\nurl = 'redis://h'", ("mine.toml: turn_log.url", "not built yet", "memory://")),
        ("[timeouts]\ntool = 121", ("mine.toml: timeouts.tool = 121 must be shorter than timeouts.turn = 120",)),
        ("[turn_log]\nurl = 'kafka://h'", ("turn_log.url = kafka://h", "memory://")),
        ("[store]\nurl = 'mysql://h'", ("store.url", "mysql://h", "postgresql+asyncpg://")),
        ("[timeouts]\ntool = true", ("timeouts.tool", "true", "number")),
        ("[timeouts]\ntool = 0", ("timeouts.tool", "0", "greater than 0")),
        ("[timeouts]\ntool = inf", ("timeouts.tool", "finite")),
        ("[limits]\nturns = 0", ("limits.turns", "greater than or equal to 1")),
        ("[profiles.default]\nprovider = 'openai'", ("profiles.default", 'provider = "openai" needs model')),
        ("[profiles.default]\nprovider = 'agent'", ("profiles.default", 'needs agent = "package.module:name"')),
        ("[profiles.other]\n", ("mine.toml: [profiles] has no profile named default", "other")),
        ("[telemetry]\nendpont = 'x'", ("telemetry.endpont", "did you mean endpoint?")),
        ("[telemetry]\nprotocol = 'grpc'", ("telemetry.protocol", '"grpc"', "'http/protobuf'")),
        ("[telemetry]\nsample_ratio = 1.5", ("telemetry.sample_ratio", "1.5", "less than or equal to 1")),
        ("[telemetry]\nendpoint = 'localhost:4318'", ("telemetry.endpoint", "http://localhost:4318")),
        ("server = 3", ("server = 3", "must be a table")),
        ("port = = 3", ("mine.toml", "not valid TOML", "line 1")),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    """Section 8: unknown keys are refused by name; each refusal names the key, the value and what is allowed."""
    message = refusal(tmp_path, text)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    assert message.startswith("mine.toml")
    for words in named:
        assert words in message


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("EARLYBYTE_FOO", "<GROUP>__<NAME>"),
        ("EARLYBYTE_TIMEOUT__TOOL", "did you mean EARLYBYTE_TIMEOUTS__TOOL?"),
        ("EARLYBYTE_SERVER__PRT", "did you mean EARLYBYTE_SERVER__PORT?"),
        ("EARLYBYTE_PROFILES__DEFAULT__MODL", "did you mean EARLYBYTE_PROFILES__DEFAULT__MODEL?"),
        ("EARLYBYTE_SERVER", "EARLYBYTE_SERVER__"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused_by_name(tmp_path: Path, variable: str, named: str) -> None:
    """A misspelt variable must not be taken for one that works."""
    message = refusal(tmp_path, **{variable: "1"})
    assert variable in message
    assert named in message


def test_a_bad_value_from_the_environment_is_blamed_on_its_variable(tmp_path: Path) -> None:
    """Nobody looks for the mistake in the file then."""
    message = refusal(tmp_path, "[server]\nport = 1", EARLYBYTE_SERVER__PORT="x")
    assert message.startswith("EARLYBYTE_SERVER__PORT: server.port")


def test_names_that_are_no_settings_pass(tmp_path: Path) -> None:
    """EARLYBYTE_CONFIG and EARLYBYTE_REQUIRE_ALL are not settings (section 8), nor is EARLYBYTE_KEY, a client's secret."""
    environ = {"EARLYBYTE_REQUIRE_ALL": "1", "EARLYBYTE_CONFIG": "other.toml", "EARLYBYTE_KEY": "eb_1"}
    assert load(tmp_path, **environ) == Settings()


def test_each_place_that_a_rule_joins_is_named(tmp_path: Path) -> None:
    """A rung from the file and one from the environment: both may be the wrong one."""
    message = refusal(tmp_path, "[timeouts]\ntool = 50", EARLYBYTE_TIMEOUTS__TURN="40")
    assert message.startswith("mine.toml and EARLYBYTE_TIMEOUTS__TURN: timeouts.tool = 50 must be shorter")
    assert refusal(tmp_path, EARLYBYTE_TIMEOUTS__TURN="20").startswith("EARLYBYTE_TIMEOUTS__TURN: timeouts.tool = 30")


def test_a_missing_file_is_named() -> None:
    """A file that was asked for and is not there is no reason to go on with the defaults."""
    with pytest.raises(ConfigError, match=r"nowhere\.toml does not exist"):
        Settings.load("nowhere.toml", environ={})


def test_passwords_are_neither_in_refusals_nor_in_what_is_shown(tmp_path: Path) -> None:
    """Secrets never reach an error or a log (A4); a key put in the place of its variable's name is not repeated."""
    assert "hunter2" not in refusal(tmp_path, "[store]\nurl = 'mysql://u:hunter2@h/d'")
    assert "hunter2" not in refusal(tmp_path, "[turn_log]\nurl = 'redis://u:hunter2@h'")
    assert "sk-abc" not in refusal(tmp_path, "[profiles.default]\napi_key_env = 'sk-abcdef'")
    assert "hunter2" not in refusal(tmp_path, "[telemetry]\nendpoint = 'http://u:hunter2@h'")
    assert "hunter2" not in refusal(tmp_path, "[telemetry]\nendpoint = 'http://h/?key=hunter2'")
    settings = load(tmp_path, "[store]\nurl = 'postgresql+asyncpg://u:hunter2@h:5/d'")
    assert settings.redacted()["store"] == {"url": "postgresql+asyncpg://u:***@h:5/d"}
    assert settings.store.url.count("hunter2") == 1


def test_a_key_comes_from_the_variable_that_the_profile_names(tmp_path: Path) -> None:
    """The setting holds a name; the environment holds the secret."""
    settings = load(tmp_path, "[profiles.default]\nprovider = 'openai'\nmodel = 'm'\napi_key_env = 'MINE'")
    assert settings.api_key(settings.profiles["default"], environ={"MINE": "k"}) == "k"


def test_the_providers_own_key_never_goes_to_another_address(tmp_path: Path) -> None:
    """Without api_key_env the usual variable counts at the provider's own endpoint only."""
    plain = load(tmp_path, "[profiles.default]\nprovider = 'openai'\nmodel = 'm'")
    local = load(tmp_path, "[profiles.default]\nprovider = 'openai'\nmodel = 'm'\nbase_url = 'http://127.0.0.1:1/v1'")
    environ = {"OPENAI_API_KEY": "k"}
    assert plain.api_key(plain.profiles["default"], environ=environ) == "k"
    assert local.api_key(local.profiles["default"], environ=environ) is None


def test_a_missing_key_is_refused_only_where_one_is_needed(tmp_path: Path) -> None:
    """Local servers need none; the provider's own endpoint does, and the sentence names variable and profile."""
    text = "[profiles.default]\nprovider = 'anthropic'\nmodel = 'm'\napi_key_env = 'MINE'\n"
    own = load(tmp_path, text)
    with pytest.raises(ConfigError, match=r"MINE is not set; profiles\.default"):
        own.api_key(own.profiles["default"], environ={})
    local = load(tmp_path, text + "base_url = 'http://127.0.0.1:1'")
    assert local.api_key(local.profiles["default"], environ={}) is None


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("https://h/otlp/", "https://h/otlp/v1/traces"),
        ("https://h/otlp/v1/traces", "https://h/otlp/v1/traces"),
    ],
)
def test_spans_go_to_the_path_for_traces(tmp_path: Path, endpoint: str, url: str) -> None:
    """The address may be written with or without it."""
    collector = load(tmp_path, EARLYBYTE_TELEMETRY__ENDPOINT=endpoint).collector(environ={})
    assert collector is not None
    assert (collector.url, collector.headers, collector.service_name) == (url, {}, "earlybyte")


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318/"}, "http://h:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}, "http://t/x"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_TRACES_EXPORTER": "none"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_the_standard_variables_name_a_collector_where_none_is_set(environ: dict[str, str], url: str | None) -> None:
    """Platforms set them for every service; what cannot be used of them is no reason not to start."""
    collector = Settings().collector(environ=environ)
    assert (collector and collector.url) == url


def test_what_is_set_for_tracing_wins_over_the_standard_variables(tmp_path: Path) -> None:
    """The endpoint and the name; a name that is not set comes from the platform."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://platform", "OTEL_SERVICE_NAME": "platform"}
    mine = load(tmp_path, "[telemetry]\nendpoint = 'http://mine'\nservice_name = 'earlybyte'").collector(environ=environ)
    theirs = load(tmp_path).collector(environ=environ)
    assert mine is not None
    assert theirs is not None
    assert (mine.url, mine.service_name) == ("http://mine/v1/traces", "earlybyte")
    assert (theirs.url, theirs.service_name) == ("http://platform/v1/traces", "platform")


def test_the_collectors_headers_come_from_the_variable_that_is_named(tmp_path: Path) -> None:
    """As in OTEL_EXPORTER_OTLP_HEADERS; what is wrong with them is said without them."""
    settings = load(tmp_path, "[telemetry]\nendpoint = 'http://h'\nheaders_env = 'MINE'")
    collector = settings.collector(environ={"MINE": "Authorization=Bearer%20hunter2, x-tenant = a=b ,"})
    assert collector is not None
    assert collector.headers == {"authorization": "Bearer hunter2", "x-tenant": "a=b"}
    assert "hunter2" not in repr(collector)
    with pytest.raises(ConfigError, match="MINE is not set"):
        settings.collector(environ={})
    for bad in ("hunter2", "=hunter2", "a b=hunter2", "x=hunter2%0d%0a", "x="):
        with pytest.raises(ConfigError, match="name=value") as caught:
            settings.collector(environ={"MINE": bad})
        assert "hunter2" not in caught.value.message


def test_the_environment_is_read_in_one_place_only() -> None:
    """`os.environ` and its kin occur in app/config.py only, so that every setting passes one door.

    The reaper is excepted: it is a process of its own that hands its environment on and reads no setting from it.
    """
    doors = {ROOT / "app" / "config.py", ROOT / "app" / "tools" / "reaper.py"}
    readers = {"environ", "environb", "getenv", "getenvb"}
    for file in sorted((ROOT / "app").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found = [
            node
            for node in ast.walk(tree)
            if (isinstance(node, ast.Attribute) and node.attr in readers and ast.unparse(node.value) == "os")
            or (isinstance(node, ast.ImportFrom) and node.module == "os" and readers & {name.name for name in node.names})
        ]
        assert bool(found) == (file in doors), file


def test_the_example_shows_every_setting_with_its_default(tmp_path: Path) -> None:
    """earlybyte.example.toml is documentation: taken as it is, it changes nothing."""
    lines = (ROOT / "earlybyte.example.toml").read_text(encoding="utf-8").splitlines()
    text = "\n".join(lines)
    settings = load(tmp_path, text)
    assert settings == Settings()
    for group, field in Settings.model_fields.items():
        if group not in {"texts", "profiles"}:
            for name in type(field.get_default()).model_fields:
                assert f"\n{name} = " in text, f"{group}.{name} is missing"
