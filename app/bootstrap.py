"""Builds each part once, and owns the order of opening and closing.

Opening: tools, hooks and agents (imports), the store, what a dead process left behind; only then requests. Closing: the
drain lets turns and viewers end while the listener is still open; then the supervisor, the store, the models.
"""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import structlog

from app.agents.own_agent import load_agent
from app.api.auth import Gate
from app.api.service import Service
from app.api.tickets import Tickets
from app.api.viewers import Viewer, Viewers
from app.clock import monotonic
from app.config import Profile, Settings
from app.demo import ledger
from app.demo.model import DemoModel
from app.errors import ConfigError
from app.hooks.chain import HookChain
from app.ids import new_id
from app.limits import budget
from app.limits.threads import WorkerThreads
from app.observability import metrics
from app.providers.anthropic_messages import AnthropicMessages
from app.providers.http import UpstreamLimits
from app.providers.openai_chat import OpenAIChat
from app.providers.provider import Provider
from app.store.engine import Store
from app.store.lease import Lease
from app.tools import process
from app.tools.registry import load_tools
from app.turn_log.log import TurnLogs
from app.turns.assistant import Assistant
from app.turns.parts import Parts
from app.turns.recovery import keep_recovering, recover
from app.turns.supervisor import Supervisor
from app.turns.unsaved import Unsaved
from app.turns.words import APOLOGIES

if TYPE_CHECKING:
    from app.observability.otlp import Sender

log = structlog.get_logger(__name__)
# Threads for tools: several calls of one turn run at once.
_TOOL_THREADS_PER_TURN = 2
# Over how long a drain spreads the viewers that it sends away.
_SPREAD_SECONDS = 5.0
# A viewer that was sent away and has taken nothing for so long does not hold up the rest.
_STUCK_SECONDS = 5.0
# A full collection over hundreds of thousands of long-lived objects stops the loop for long; see docs/performance.md.
_GC_THRESHOLDS = (50_000, 20, 20)


def preflight(settings: Settings) -> dict[str, Assistant]:
    """The assistants, when everything that needs no store can be loaded and fits together.

    Raises:
        ConfigError: one sentence about what does not.
    """
    budget.check(settings.timeouts)
    _refuse(settings)
    return load_assistants(settings)


def _refuse(settings: Settings) -> None:
    unknown = sorted(set(settings.texts) - set(APOLOGIES))
    if unknown:
        raise ConfigError(f"[texts] has {unknown[0]}, which is no error code; known are {', '.join(APOLOGIES)}.")
    settings.collector()  # refuses headers that are not there
    if settings.auth.jwt:
        raise ConfigError("[auth] is set, but JSON Web Tokens are not built yet; leave it out and use API keys.")


def load_assistants(settings: Settings) -> dict[str, Assistant]:
    """Every profile made ready.

    Raises:
        ConfigError: a module, tool, hook, agent or key that a profile names cannot be used.
    """
    threads = WorkerThreads(max(16, settings.limits.turns // 4))
    assistants = {}
    for name, profile in settings.profiles.items():
        tools = load_tools(profile.tools)
        budget.check_tools([(tool.name, tool.timeout) for tool in tools.values()], settings.timeouts)
        hooks = HookChain.load([*settings.hooks.modules, *profile.hooks], threads=threads)
        own = load_agent(profile.agent) if profile.agent is not None else None
        provider = None if own is not None else _provider(name, profile, settings)
        assistants[name] = Assistant(name=name, profile=profile, hooks=hooks, tools=tools, provider=provider, agent=own)
    return assistants


def _provider(name: str, profile: Profile, settings: Settings) -> Provider:
    timeouts = settings.timeouts
    # The token timeouts are watched from the loop; this one only keeps a thread from blocking for ever.
    read_timeout = max(timeouts.model_first_token, timeouts.model_between_tokens) + 5.0
    upstream = UpstreamLimits(
        read_timeout=read_timeout,
        upstream_bytes=settings.limits.upstream_bytes,
        # Less than the silence that is an error while the model has not finished.
        after_finish_timeout=min(6.0, 0.75 * timeouts.model_between_tokens),
    )
    match profile.provider:
        case "demo":
            return DemoModel()
        case "openai":
            return OpenAIChat(
                base_url=profile.base_url or "https://api.openai.com/v1",
                api_key=settings.api_key(profile),
                limits=upstream,
            )
        case "anthropic":
            return AnthropicMessages(
                base_url=profile.base_url or "https://api.anthropic.com",
                api_key=settings.api_key(profile),
                limits=upstream,
            )
    raise ConfigError(f"profiles.{name}: the provider {profile.provider!r} is unknown.")


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """The running service; leaving it closes every part in its order.

    Raises:
        ConfigError: it cannot run with these settings; one sentence says why.
    """
    budget.check(settings.timeouts)
    _refuse(settings)
    assistants = load_assistants(settings)
    store = await Store.open(settings.store.url)
    owner = new_id("proc")
    lease: Lease | None = None
    sender: Sender | None = None
    try:
        sender = _start_tracing(settings, owner)
        if settings.server.role != "api":
            lease = await Lease.take(settings.store.url, owner)
        keyless = await Gate.decide(store, host=settings.server.host)
        async with anyio.create_task_group() as group:
            service = _build(settings, assistants, store, lease, owner=owner, keyless=keyless)
            group.start_soon(service.viewers.run)
            async with service.supervisor.run(group):
                if lease is not None:
                    await recover(service.parts, service.supervisor, lease)
                    group.start_soon(keep_recovering, service.parts, service.supervisor, lease)
                _settle_collector()
                yield service
            process.kill_all()
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            if sender is not None:
                await sender.close()
            for assistant in assistants.values():
                if assistant.provider is not None:
                    assistant.provider.close()
            await store.close()
            if lease is not None:
                await lease.close()


def _start_tracing(settings: Settings, instance: str) -> Sender | None:
    """Spans from now on, if there is a collector for them."""
    collector = settings.collector()
    if collector is None:
        return None
    from app.observability import otlp  # the SDK is loaded only where it is used

    return otlp.Sender(collector, sample_ratio=settings.telemetry.sample_ratio, instance=instance)


def _build(
    settings: Settings, assistants: dict[str, Assistant], store: Store, lease: Lease | None, *, owner: str, keyless: bool
) -> Service:
    limits = settings.limits
    ledger.bind(store)
    supervisor: Supervisor
    parts = Parts(
        settings=settings,
        store=store,
        logs=TurnLogs(log_bytes=limits.log_bytes, logs_bytes=limits.logs_bytes),
        assistants=assistants,
        threads=WorkerThreads(limits.turns),
        tool_threads=WorkerThreads(limits.turns * _TOOL_THREADS_PER_TURN),
        unsaved=Unsaved(store),
        background=lambda work: supervisor.background(work),  # noqa: PLW0108 - the supervisor comes after its parts
        owner=owner,
    )
    supervisor = Supervisor(parts)
    viewers = Viewers(limits, settings.timeouts)
    metrics.watch(
        viewers=lambda: len(viewers),
        behind=lambda: max((viewer.subscription.behind for viewer in viewers), default=0),
        turns={
            "queued": lambda: supervisor.waiting,
            "running": lambda: supervisor.running - supervisor.asking,
            "waiting": lambda: supervisor.asking,
        },
        busy=lambda: parts.threads.busy + parts.tool_threads.busy,
        abandoned=lambda: parts.threads.abandoned + parts.tool_threads.abandoned,
        unsaved=lambda: len(parts.unsaved),
        log_bytes=lambda: parts.logs.size,
    )
    gate = Gate(
        store,
        keyless=keyless,
        cors_origins=settings.server.cors_origins,
        trusted_proxies=settings.server.trusted_proxies,
    )
    return Service(
        parts=parts,
        supervisor=supervisor,
        gate=gate,
        tickets=Tickets(store, supervisor.background),
        viewers=viewers,
        lease=lease,
    )


async def drain(service: Service) -> None:
    """Let the service end without cutting anybody off: turns finish or are handed on, viewers get `stream_end`."""
    if service.draining:
        return
    log.info("draining", turns=service.supervisor.running, viewers=len(service.viewers))
    service.supervisor.draining = True
    if service.lease is not None:
        await service.lease.hand_over()
    async with anyio.create_task_group() as group:
        group.start_soon(service.supervisor.drain, service.parts.settings.timeouts.drain)
        group.start_soon(_send_viewers_away, service)
    process.kill_all()
    # A request whose end has not come will get no more time.
    for scope in list(service.reading):
        scope.cancel()
    log.info("drained")


async def _send_viewers_away(service: Service) -> None:
    """Viewers of turns that run here stay to their end; the others go first.

    They leave a hundred a second, or over five seconds, so that they do not all come back in the same moment.
    """
    give_up_at = anyio.current_time() + service.parts.settings.timeouts.drain
    leaves_at: dict[Viewer, float] = {}
    while len(service.viewers):
        now = anyio.current_time()
        leaving = [viewer for viewer in service.viewers if now > give_up_at or not _runs_here(service, viewer)]
        spread = min(_SPREAD_SECONDS, len(leaving) / 100)
        for viewer in leaving:
            if leaves_at.setdefault(viewer, now + random.uniform(0, spread)) <= now and not viewer.subscription.log.ended:  # noqa: S311
                viewer.end("draining")
            stuck = viewer.stuck_for(monotonic()) > _STUCK_SECONDS
            if now > give_up_at + 1.0 or (stuck and leaves_at.get(viewer, now) < now):
                viewer.abort("drain", service.parts.settings.timeouts.drain)
        await anyio.sleep(0.05)


def _runs_here(service: Service, viewer: Viewer) -> bool:
    live = service.supervisor.get(viewer.subscription.log.turn_id)
    return live is not None and not live.handed_on and service.supervisor.is_running(live)


def _settle_collector() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
