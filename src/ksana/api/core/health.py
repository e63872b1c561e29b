"""Probes, version, metrics and the overview (X17, X18). Probes are open and touch nothing that can
hang."""

import platform
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from prometheus_client.exposition import choose_encoder

from ksana.api.core.routing import AnyRoute, Call, Content, Route
from ksana.api.core.services import Check, Services
from ksana.base.errors import StoreDownError
from ksana.base.instant import format_instant

Section = Callable[[], Awaitable[Any]]
METRICS_TYPES = ("text/plain", "application/openmetrics-text")
_encode = msgspec.json.encode


class StatsSections:
    """The overview's sections; each surface adds its own under its own name."""

    def __init__(self) -> None:
        self._sections: dict[str, Section] = {}

    def add(self, name: str, section: Section) -> None:
        """Add a section. Raise ValueError if the name is taken."""
        if name in self._sections:
            raise ValueError(f"two sections named {name}")
        self._sections[name] = section

    async def collect(self) -> dict[str, Any]:
        """Ask every section, in the order they were added."""
        return {name: await section() for name, section in self._sections.items()}


class Alive(msgspec.Struct, frozen=True):
    """The process answers."""

    status: str


class Ready(msgspec.Struct, frozen=True):
    """`problems` says in words what is wrong; empty when ready."""

    status: str
    checks: dict[str, str]
    problems: list[str]


class Version(msgspec.Struct, frozen=True):
    """What runs."""

    version: str
    python: str
    tzdata: str
    store: str


class StoreStats(msgspec.Struct, frozen=True):
    """How the store fares."""

    kind: str
    ok: bool
    reason: str | None
    commits: int
    transactions: int
    retries: int


class Stats(msgspec.Struct, frozen=True):
    """The frame of the overview; every surface adds a member of its name."""

    version: str
    now: str
    store: StoreStats


def routes(services: Services, stats: StatsSections) -> list[AnyRoute]:
    """Probes, version, metrics, stats."""
    settings = services.settings

    async def show_alive(call: Call) -> Content:
        if not services.is_open():
            raise StoreDownError(services.store.health().reason or "the store is not open yet")
        if "json" in (call.header("accept") or ""):
            return Content(b'{"status":"ok"}', "application/json")
        return Content(b"ok", "text/plain; charset=utf-8")

    async def show_ready(call: Call) -> Content:
        ready = summarize(services.readiness())
        return Content(_encode(ready), "application/json", 200 if ready.status == "ready" else 503)

    async def show_version(call: Call) -> Version:
        return Version(
            settings.version,
            platform.python_version(),
            settings.tzdata_version,
            store_kind(services),
        )

    async def show_metrics(call: Call) -> Content:
        encoder, media_type = choose_encoder(call.header("accept") or "")
        return Content(encoder(services.metrics), media_type)

    async def show_stats(call: Call) -> dict[str, Any]:
        frame = Stats(
            settings.version, format_instant(services.clock.now()), _store_stats(services)
        )
        return {**msgspec.structs.asdict(frame), **await stats.collect()}

    def probe(
        path: str, handler: Callable[[Call], Awaitable[Any]], summary: str, kind: Any, *other: int
    ) -> Route:
        answers = {200: kind, **dict.fromkeys(other, kind)}
        media_types = ("application/json", "text/plain") if kind is Alive else ("application/json",)
        return Route(
            "GET",
            path,
            handler,
            scope=None,
            summary=summary,
            tags=("probes",),
            answers=answers,
            media_types=media_types,
        )

    metrics = Route(
        "GET",
        "/metrics",
        show_metrics,
        scope="*:read",
        summary="Prometheus metrics",
        tags=("insight",),
        media_types=METRICS_TYPES,
    )
    return [
        probe(
            "/health",
            show_alive,
            "Say that the process answers; 503 until its store is open",
            Alive,
        ),
        probe("/api/v1/healthz", show_alive, "The same", Alive),
        probe(
            "/readyz",
            show_ready,
            "Say whether work can be taken, and what is wrong if not",
            Ready,
            503,
        ),
        probe("/version", show_version, "Name what runs", Version),
        probe("/api/v1/version", show_version, "Name what runs", Version),
        *([metrics] if settings.serves_metrics else []),
        Route(
            "GET",
            "/api/v1/stats",
            show_stats,
            scope="*:read",
            summary="One overview of all surfaces",
            tags=("metrics",),
            answers={200: Stats},
        ),
    ]


def summarize(checks: list[Check]) -> Ready:
    """Sum up the checks."""
    problems = [f"{check.name}: {check.problem or 'not well'}" for check in checks if not check.ok]
    described = {check.name: _describe(check) for check in checks}
    return Ready("not ready" if problems else "ready", described, problems)


def _describe(check: Check) -> str:
    """A check in words; one that is well may still have something to say."""
    if check.ok:
        return f"ok, but {check.problem}" if check.problem else "ok"
    return check.problem or "not well"


def store_kind(services: Services) -> str:
    """The store's kind by the scheme of its URL."""
    return services.store.url.partition(":")[0] or "unknown"


def _store_stats(services: Services) -> StoreStats:
    health = services.store.health()
    return StoreStats(
        store_kind(services),
        health.ok,
        health.reason,
        health.commits,
        health.transactions,
        health.retries,
    )
