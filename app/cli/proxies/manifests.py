"""What in Kubernetes manifests and compose files cuts streams or kills the service too early (`earlybyte check`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from app.cli.proxies.finding import Finding, note, ok, seconds, wrong
from app.config import Settings
from app.errors import ConfigError
from app.limits.budget import Timeouts, show

_PREFIX = "nginx.ingress.kubernetes.io/"


def check_kubernetes(path: str, settings: Settings) -> list[Finding]:
    """What was found in the Deployments, StatefulSets and Ingresses of the file.

    Raises:
        ConfigError: the file is not there, or is not YAML.
    """
    findings: list[Finding] = []
    for document in _documents(path, "--kubernetes"):
        kind, name = document.get("kind"), _at(document, "metadata", "name")
        if kind in ("Deployment", "StatefulSet", "Pod"):
            findings += _workload(f"{kind} {name}", document, settings)
        elif kind == "Ingress":
            findings += _ingress(f"Ingress {name}", _at(document, "metadata", "annotations") or {}, settings.timeouts)
    return findings or [note(path, "no Deployment and no Ingress in it", "Give the file that has them.")]


def check_compose(path: str, settings: Settings) -> list[Finding]:
    """What was found in the services that run Earlybyte.

    Raises:
        ConfigError: the file is not there, or is not YAML.
    """
    findings: list[Finding] = []
    for document in _documents(path, "--compose"):
        for name, service in (document.get("services") or {}).items():
            if isinstance(service, dict) and _is_ours(name, service):
                findings += _service(f"service {name}", service, settings)
    return findings or [note(path, "no service in it runs Earlybyte", "Give the file that has it.")]


def _documents(path: str, option: str) -> list[dict[str, Any]]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {path}: it cannot be read ({error.strerror}).") from None
    try:
        return [document for document in yaml.safe_load_all(text) if isinstance(document, dict)]
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        raise ConfigError(f"{option} {path}: it is not YAML{'' if line is None else f' (line {line + 1})'}.") from None


def _at(value: Any, *keys: str | int) -> Any:
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


# -- Kubernetes


def _workload(where: str, document: dict[str, Any], settings: Settings) -> Iterator[Finding]:
    pod = document["spec"] if document.get("kind") == "Pod" else _at(document, "spec", "template", "spec")
    if not isinstance(pod, dict):
        yield wrong(where, "it has no pod template", "Give spec.template.spec.")
        return
    containers = [c for c in pod.get("containers") or [] if isinstance(c, dict)]
    ours = next((c for c in containers if _is_ours(str(c.get("name")), c)), containers[0] if containers else {})
    before = _sleep(_at(ours, "lifecycle", "preStop"))
    grace = pod.get("terminationGracePeriodSeconds", 30)
    yield _grace(
        where,
        "terminationGracePeriodSeconds",
        float(grace) if isinstance(grace, int | float) else None,
        settings.timeouts,
        before=before,
        stated="terminationGracePeriodSeconds" in pod,
    )
    if before == 0:
        yield note(where, "no preStop", "A preStop sleep of 5 lets load balancers forget the pod before it drains.")
    yield from _probes(where, ours)
    replicas = _at(document, "spec", "replicas")
    if isinstance(replicas, int):
        yield from _replicas(where, "spec.replicas", replicas, _role(ours, settings), settings)
    if document.get("kind") == "Deployment":
        yield from _surge(where, document["spec"], _role(ours, settings), settings)
    yield from _workers(where, ours)


def _sleep(hook: Any) -> float:
    """Seconds that a preStop hook takes of the grace."""
    direct = _at(hook, "sleep", "seconds")
    if isinstance(direct, int | float):
        return float(direct)
    words = " ".join(str(word) for word in _at(hook, "exec", "command") or []).split()
    for word, following in pairwise(words):
        if word.endswith("sleep"):
            return seconds(following) or 0.0
    return 0.0


def _probes(where: str, container: dict[str, Any]) -> Iterator[Finding]:
    ready = _at(container, "readinessProbe", "httpGet", "path")
    alive = _at(container, "livenessProbe", "httpGet", "path")
    if ready == "/readyz":
        yield ok(where, "readinessProbe asks /readyz")
    else:
        yield wrong(
            where,
            f"readinessProbe {'asks ' + str(ready) if ready else 'is missing'}: a draining pod goes on getting requests",
            "readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 2}",
        )
    if alive == "/readyz":
        yield wrong(
            where,
            "livenessProbe asks /readyz: a pod that drains, or whose store is away, is killed",
            "Ask /livez there.",
        )


def _ingress(where: str, annotations: dict[str, Any], timeouts: Timeouts) -> Iterator[Finding]:
    def stated(name: str) -> str | None:
        value = annotations.get(_PREFIX + name)
        return None if value is None else str(value)

    read = seconds(stated("proxy-read-timeout") or "60")
    mend = f'{_PREFIX}proxy-read-timeout: "{show(timeouts.proxy_read)}"'
    name = "proxy-read-timeout" if stated("proxy-read-timeout") else "proxy-read-timeout (its default)"
    if read is None or read <= timeouts.client_watchdog:
        shown = "no number" if read is None else f"{show(read)} s"
        rung = f"timeouts.client_watchdog = {show(timeouts.client_watchdog)}"
        yield wrong(where, f"{name} is {shown}, not longer than {rung}: streams are cut", mend)
    elif read >= timeouts.lb_idle:
        yield wrong(where, f"{name} = {show(read)} s is not shorter than timeouts.lb_idle = {show(timeouts.lb_idle)}", mend)
    elif read < timeouts.proxy_read:
        yield note(where, f"{name} = {show(read)} s; the ladder says {show(timeouts.proxy_read)}", mend)
    else:
        yield ok(where, f"{name} = {show(read)} s")
    if stated("proxy-buffering") == "on":
        yield wrong(where, "proxy-buffering is on: events come in lumps", f'{_PREFIX}proxy-buffering: "off"')
    if "non_idempotent" in (stated("proxy-next-upstream") or ""):
        yield wrong(where, "proxy-next-upstream has non_idempotent: a POST is repeated", "Take non_idempotent out.")
    snippet = "\n".join(filter(None, (stated("configuration-snippet"), stated("server-snippet"))))
    if "gzip on" in snippet and "event-stream" in snippet:
        yield wrong(where, "a snippet compresses event streams", "Take text/event-stream out of gzip_types.")
    if "proxy_buffering on" in snippet:
        yield wrong(where, "a snippet turns proxy_buffering on", "Take it out.")


# -- compose


def _service(where: str, service: dict[str, Any], settings: Settings) -> Iterator[Finding]:
    stated = service.get("stop_grace_period")
    grace = 10.0 if stated is None else seconds(str(stated))
    yield _grace(where, "stop_grace_period", grace, settings.timeouts, before=0.0, stated=stated is not None)
    for name, value in (("scale", service.get("scale")), ("deploy.replicas", _at(service, "deploy", "replicas"))):
        if isinstance(value, int):
            yield from _replicas(where, name, value, _role(service, settings), settings)
    if service.get("stop_signal") in ("SIGKILL", "KILL", 9):
        yield wrong(where, "stop_signal is SIGKILL: every stream is cut", "Take it out; SIGTERM drains.")
    yield from _workers(where, service)


def _is_ours(name: str, service: dict[str, Any]) -> bool:
    environment = service.get("environment") or service.get("env") or []
    names = environment if isinstance(environment, dict) else [str(_at(e, "name") or e) for e in environment]
    words = " ".join(str(service.get(key) or "") for key in ("image", "command", "entrypoint", "args"))
    return "earlybyte" in f"{name} {words}".lower() or "app.main" in words or any(n.startswith("EARLYBYTE_") for n in names)


# -- both


def _grace(where: str, name: str, grace: float | None, timeouts: Timeouts, *, before: float, stated: bool) -> Finding:
    mend = f"{name}: {show(timeouts.kill + before)}{'s' if name.startswith('stop') else ''}"
    if grace is None:
        return wrong(where, f"{name} is no duration", mend)
    shown = f"{name}{'' if stated else ' (its default)'} = {show(grace)} s"
    left = f" after a preStop of {show(before)} s" if before else ""
    if grace - before <= timeouts.shutdown:
        return wrong(
            where,
            f"{shown}{left} is not longer than timeouts.shutdown = {show(timeouts.shutdown)}: running turns are killed",
            mend,
        )
    return ok(where, f"{shown}{left}")


def _role(container: dict[str, Any], settings: Settings) -> str:
    """The `server.role` that it is started with."""
    environment = container.get("environment") or container.get("env") or []
    if isinstance(environment, dict):
        stated = environment.get("EARLYBYTE_SERVER__ROLE")
    else:
        # Kubernetes writes {name, value}, compose NAME=value.
        entries = [f"{e.get('name')}={e.get('value')}" if isinstance(e, dict) else str(e) for e in environment]
        stated = dict(entry.partition("=")[::2] for entry in entries).get("EARLYBYTE_SERVER__ROLE")
    return str(stated or settings.server.role)


def _surge(where: str, spec: dict[str, Any], role: str, settings: Settings) -> Iterator[Finding]:
    strategy = spec.get("strategy") or {}
    surge = _at(strategy, "rollingUpdate", "maxSurge")
    if role == "api" or not settings.turn_log.url.startswith("memory:"):
        return
    if _at(strategy, "type") != "Recreate" and surge not in (0, "0", "0%"):
        yield note(
            where,
            "a rolling update starts the new pod beside the old one, and with memory:// only one process can run turns",
            "strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}",
        )


def _replicas(where: str, name: str, count: int, role: str, settings: Settings) -> Iterator[Finding]:
    if count > 1 and settings.turn_log.url.startswith("memory:") and role != "api":
        yield wrong(
            where,
            f"{name} = {count} with turn_log.url = memory://: a viewer may reach a process that does not run its turn",
            f"{name}: 1, until the turn log is shared.",
        )


def _workers(where: str, service: dict[str, Any]) -> Iterator[Finding]:
    command = service.get("command") or []
    words = command.split() if isinstance(command, str) else [str(word) for word in command]
    words += [str(word) for word in service.get("args") or []]
    for word, following in pairwise([*words, ""]):
        count = following if word in ("--workers", "-w") else word.removeprefix("--workers=") if "--workers=" in word else ""
        if count.isdigit() and int(count) > 1:
            yield wrong(where, f"it starts {count} workers, which share no turn log", "Start one worker.")
