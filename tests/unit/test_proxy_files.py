"""`earlybyte check` names what is wrong in the files of proxies and orchestrators, and finds nothing in the shipped ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.proxies.finding import Finding, seconds
from app.cli.proxies.manifests import check_compose, check_kubernetes
from app.cli.proxies.nginx import check_nginx
from app.config import Limits, Settings
from app.errors import ConfigError
from app.limits.budget import Timeouts

PROJECT = Path(__file__).parent.parent.parent
GOOD = """
http {
  log_format plain '$remote_addr $uri';
  upstream early { server 127.0.0.1:8000; keepalive 16; keepalive_timeout 60s; }
  server {
    access_log /dev/null plain;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_read_timeout 75s;
    proxy_buffering off;
    location / { proxy_pass http://early; }
    location = /metrics { return 404; }
  }
}
"""
# What is changed in the good file, and a word that the one new finding must have.
BAD_NGINX = {
    "buffering on": (("proxy_buffering off;", "proxy_buffering on;"), "proxy_buffering"),
    "buffering left at its default": (("proxy_buffering off;", ""), "proxy_buffering"),
    "read timeout under the watchdog": (("75s", "30s"), "proxy_read_timeout"),
    "read timeout over the balancer's": (("75s", "1h"), "proxy_read_timeout"),
    "events compressed": (("proxy_buffering off;", "proxy_buffering off; gzip on; gzip_types *;"), "gzip"),
    "posts repeated": (
        ("proxy_buffering off;", "proxy_buffering off; proxy_next_upstream error non_idempotent;"),
        "idempotent",
    ),
    "connections closed": (('proxy_set_header Connection "";', ""), "keepalive"),
    "old protocol": (("proxy_http_version 1.1;", ""), "proxy_http_version"),
    "idle too long": (("keepalive_timeout 60s", "keepalive_timeout 10m"), "keepalive_timeout"),
    "tickets in the log": (("/dev/null plain", "/dev/null combined"), "query"),
    "figures for all": (("location = /metrics { return 404; }", ""), "/metrics"),
    "cached": (("proxy_buffering off;", "proxy_buffering off; proxy_cache zone;"), "proxy_cache"),
    "cursor taken away": (
        ("proxy_buffering off;", 'proxy_buffering off; proxy_set_header Last-Event-ID "";'),
        "Last-Event-ID",
    ),
    "requests mirrored": (("proxy_buffering off;", "proxy_buffering off; mirror /copy;"), "mirror"),
    "events searched": (
        ("proxy_buffering off;", "proxy_buffering off; sub_filter a b; sub_filter_types *;"),
        "sub_filter",
    ),
    "rate limited": (("proxy_buffering off;", "proxy_buffering off; proxy_limit_rate 1k;"), "proxy_limit_rate"),
    "not in chunks": (("proxy_buffering off;", "proxy_buffering off; chunked_transfer_encoding off;"), "chunked"),
    "bytes held back": (("proxy_buffering off;", "proxy_buffering off; tcp_nodelay off;"), "tcp_nodelay"),
    "body too small": (("proxy_buffering off;", "proxy_buffering off; client_max_body_size 64k;"), "client_max_body_size"),
}
DEPLOYMENT = """
kind: Deployment
metadata: {name: earlybyte}
spec:
  replicas: 1
  template:
    spec:
      terminationGracePeriodSeconds: 170
      containers:
        - name: earlybyte
          image: earlybyte
          lifecycle: {preStop: {sleep: {seconds: 5}}}
          readinessProbe: {httpGet: {path: /readyz, port: 8000}}
          livenessProbe: {httpGet: {path: /livez, port: 8000}}
---
kind: Ingress
metadata:
  name: earlybyte
  annotations: {nginx.ingress.kubernetes.io/proxy-read-timeout: "75"}
"""
BAD_KUBERNETES = {
    "grace at its default": (("      terminationGracePeriodSeconds: 170\n", ""), "terminationGracePeriodSeconds"),
    "grace eaten by preStop": (("seconds: 5", "seconds: 60"), "terminationGracePeriodSeconds"),
    "no readiness": (("readinessProbe: {httpGet: {path: /readyz, port: 8000}}", ""), "readinessProbe"),
    "liveness asks readiness": (("path: /livez", "path: /readyz"), "livenessProbe"),
    "two replicas without a shared log": (("replicas: 1", "replicas: 2"), "replicas"),
    "ingress cuts": (('"75"', '"30"'), "proxy-read-timeout"),
    "ingress outlives the balancer": (('"75"', '"3600"'), "proxy-read-timeout"),
    "ingress buffers": (('"75"', '"75", nginx.ingress.kubernetes.io/proxy-buffering: "on"'), "proxy-buffering"),
}
COMPOSE = "services: {web: {image: earlybyte, stop_grace_period: 2m40s}, db: {image: postgres}}"
BAD_COMPOSE = {
    "grace at its default": ((", stop_grace_period: 2m40s", ""), "stop_grace_period"),
    "grace too short": (("2m40s", "60s"), "stop_grace_period"),
    "scaled": (("2m40s", "2m40s, deploy: {replicas: 3}"), "replicas"),
    "workers": (("2m40s", "2m40s, command: uvicorn app.main:app --workers 4"), "workers"),
    "killed": (("2m40s", "2m40s, stop_signal: SIGKILL"), "stop_signal"),
}


def wrong(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.verdict == "WRONG"]


def check_text(kind: str, text: str, folder: Path) -> list[Finding]:
    path = folder / kind
    path.write_text(text)
    if kind == "nginx":
        return check_nginx(str(path), Timeouts(), Limits())
    return (check_kubernetes if kind == "kubernetes" else check_compose)(str(path), Settings())


def test_the_shipped_files_are_right() -> None:
    """What we ship holds the ladder of the default configuration (B1)."""
    nginx = check_nginx(str(PROJECT / "deploy/nginx/earlybyte.conf"), Timeouts(), Limits())
    compose = check_compose(str(PROJECT / "docker-compose.yml"), Settings())
    kubernetes = check_kubernetes(str(PROJECT / "deploy/kubernetes/earlybyte.yaml"), Settings())
    assert not wrong(nginx + compose + kubernetes)
    assert any("proxy_read_timeout" in finding.what for finding in nginx)


def test_what_an_eventsource_cannot_bear_is_noted(tmp_path: Path) -> None:
    """No fallback for nginx's own errors works until the first restart: a note, not a fault."""
    noted = [one for one in check_text("nginx", GOOD, tmp_path) if one.verdict == "note"]
    assert any("502, 503, 504" in one.what for one in noted)
    shipped = check_nginx(str(PROJECT / "deploy/nginx/earlybyte.conf"), Timeouts(), Limits())
    assert not [one for one in shipped if one.verdict == "note"]


@pytest.mark.parametrize(("kind", "old", "new"), [
    ("nginx", "proxy_read_timeout 75s;", ""),
    ("nginx", "proxy_read_timeout 75s;", "proxy_read_timeout 60s;"),
    ("kubernetes", '"75"', '"60"'),
    ("kubernetes", '{nginx.ingress.kubernetes.io/proxy-read-timeout: "75"}', "{}"),
])  # fmt: skip
def test_a_read_timeout_that_holds_and_is_not_the_ladders_is_noted(kind: str, old: str, new: str, tmp_path: Path) -> None:
    """60 s, the default, is longer than the watchdog and shorter than the ladder's 75: a note, not a fault (B1)."""
    good = GOOD if kind == "nginx" else DEPLOYMENT
    assert old in good
    assert not [one for one in check_text(kind, good, tmp_path) if "the ladder says" in one.what]
    found = [one for one in check_text(kind, good.replace(old, new), tmp_path) if "the ladder says 75" in one.what]
    assert {one.verdict for one in found} == {"note"}
    assert all("75" in one.mend for one in found)


def test_the_role_that_a_manifest_gives_counts(tmp_path: Path) -> None:
    """Any number of `api` processes is right; a rolling update that begins with a second process that runs turns is not."""
    role = "replicas: 3\n  template:", "image: earlybyte\n          env: [{name: EARLYBYTE_SERVER__ROLE, value: api}]"
    three = DEPLOYMENT.replace("replicas: 1\n  template:", role[0]).replace("image: earlybyte", role[1])
    assert not wrong(check_text("kubernetes", three, tmp_path))
    assert not [one for one in check_text("kubernetes", three, tmp_path) if "rolling update" in one.what]
    assert [one for one in check_text("kubernetes", DEPLOYMENT, tmp_path) if "rolling update" in one.what]
    scaled = COMPOSE.replace("2m40s", "2m40s, scale: 3, environment: [EARLYBYTE_SERVER__ROLE=%s]")
    assert not wrong(check_text("compose", scaled % "api", tmp_path))
    assert wrong(check_text("compose", scaled % "stream", tmp_path))


@pytest.mark.parametrize("name", BAD_NGINX)
def test_a_fault_in_nginx_is_named(name: str, tmp_path: Path) -> None:
    """One fault put into a good file is named, with its mend, and nothing else is."""
    (old, new), word = BAD_NGINX[name]
    assert not wrong(check_text("nginx", GOOD, tmp_path))
    assert old in GOOD
    found = wrong(check_text("nginx", GOOD.replace(old, new), tmp_path))
    assert found
    assert all(word in f"{finding.where} {finding.what}" for finding in found), [str(finding) for finding in found]
    assert all(finding.mend for finding in found)


@pytest.mark.parametrize("name", BAD_KUBERNETES)
def test_a_fault_in_a_manifest_is_named(name: str, tmp_path: Path) -> None:
    """The same for a Deployment and an Ingress."""
    (old, new), word = BAD_KUBERNETES[name]
    assert not wrong(check_text("kubernetes", DEPLOYMENT, tmp_path))
    assert old in DEPLOYMENT
    found = wrong(check_text("kubernetes", DEPLOYMENT.replace(old, new), tmp_path))
    assert [word in finding.what for finding in found] == [True], [str(finding) for finding in found]


@pytest.mark.parametrize("name", BAD_COMPOSE)
def test_a_fault_in_a_compose_file_is_named(name: str, tmp_path: Path) -> None:
    """The same for a compose file; other services are left alone."""
    (old, new), word = BAD_COMPOSE[name]
    assert not wrong(check_text("compose", COMPOSE, tmp_path))
    found = wrong(check_text("compose", COMPOSE.replace(old, new), tmp_path))
    assert [word in finding.what for finding in found] == [True], [str(finding) for finding in found]


def test_unknown_directives_and_broken_lines_crash_nothing(tmp_path: Path) -> None:
    """A file with directives of other modules, missing includes and a broken end is read as far as it goes."""
    text = GOOD.replace("http {", "http { some_module_thing on { x y; } include nowhere/*.conf; lua_code 'a;b';", 1)
    assert not wrong(check_text("nginx", text, tmp_path))
    check_text("nginx", text.rstrip()[:-1], tmp_path)


def test_a_snippet_of_a_server_alone_is_read(tmp_path: Path) -> None:
    """A file that is meant to be included inside `http` is held to the same rules (as in Debian's conf.d)."""
    inside = GOOD.strip().removeprefix("http {").removesuffix("}")
    assert not wrong(check_text("nginx", inside, tmp_path))
    assert wrong(check_text("nginx", inside.replace("75s", "20s"), tmp_path))


def test_a_more_specific_location_wins(tmp_path: Path) -> None:
    """The location that nginx would choose for an events path is the one that is judged."""
    text = GOOD.replace(
        "location / {", "location ~ /events$ { proxy_pass http://early; proxy_read_timeout 10s; }\n    location / {"
    )
    found = wrong(check_text("nginx", text, tmp_path))
    assert [finding.where for finding in found] == ["location ~ /events$ (the events of a turn)"]


@pytest.mark.parametrize("kind", ["nginx", "kubernetes", "compose"])
def test_a_missing_file_is_one_sentence(kind: str, tmp_path: Path) -> None:
    """A file that is not there is named."""
    check = {"nginx": lambda p: check_nginx(p, Timeouts(), Limits())}.get(kind) or (
        lambda p: (check_kubernetes if kind == "kubernetes" else check_compose)(p, Settings())
    )
    with pytest.raises(ConfigError, match="nothing-here"):
        check(str(tmp_path / "nothing-here"))


def test_a_file_that_is_not_yaml_is_one_sentence(tmp_path: Path) -> None:
    """Broken YAML gives the line."""
    with pytest.raises(ConfigError, match=r"not YAML \(line"):
        check_text("compose", "services: [unclosed", tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [("75s", 75), ("2m40s", 160), ("60", 60), ("1h 30m", 5400), ("500ms", 0.5), ("soon", None), ("", None)],
)
def test_durations_are_read(text: str, value: float | None) -> None:
    """Durations in the spelling of nginx and compose."""
    assert seconds(text) == value
