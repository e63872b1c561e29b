"""OpenTelemetry spans, if an exporter is configured (X22): one for each attempt, one for each
request to us.

A span is made after the fact, from what is known anyway, and handed to the SDK's own thread; a
collector that is away costs spans and nothing else. The only place that names the SDK. Without an
endpoint nothing of it is imported.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from ksana import __version__
from ksana.api.core.trace import Trace
from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import SetupError
from ksana.base.ids import new_uid
from ksana.base.instant import MINUTE, SECOND, Instant, Micros
from ksana.boot.redaction import mask_url, redact_text
from ksana.boot.settings.sections.core import DEFAULT_SERVICE, TracingSettings
from ksana.domain.tasks.call_records import span_id_of
from ksana.domain.tasks.outcome import classify, clip_error
from ksana.engine.tasks.claimed_run import AttemptOver

TELL_EVERY: Final[Micros] = 5 * MINUTE
"""How often trouble with the collector is logged at most."""

FLUSH_WITHIN: Final[Micros] = 3 * SECOND
"""How long the end waits for the last spans at most: a collector that is away must not hold up
every restart."""

_SPOKEN: Final = "http/protobuf"


def start_tracing(
    settings: TracingSettings, environ: Mapping[str, str], clock: Clock, instance_id: str
) -> "Spans | None":
    """Start sending spans if the settings name a collector. Raise SetupError if the SDK is wanted
    and not installed."""
    endpoint = settings.traces_endpoint
    if not endpoint and settings.endpoint:
        endpoint = settings.endpoint.rstrip("/") + "/v1/traces"
    if not endpoint or _is_switched_off(environ):
        return None
    protocol = (
        environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or _SPOKEN
    )
    if protocol.strip() != _SPOKEN:
        log.warning(
            "spans are sent as http/protobuf whatever the environment says", protocol=protocol
        )
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk import resources
        from opentelemetry.sdk import trace as sdk
        from opentelemetry.sdk.trace import export
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    except ImportError:
        raise SetupError(
            f"spans for {mask_url(endpoint)} need OpenTelemetry: pip install 'ksana[otel]', "
            "or leave the endpoint out"
        ) from None
    calm = _Calm(clock)
    _listen_to_sdk(calm)
    resource = resources.Resource.create(
        {"service.version": __version__, "service.instance.id": instance_id}
    )
    # The standard OTEL_RESOURCE_ATTRIBUTES may name the service too; only our own default gives way
    # to it.
    known = str(resource.attributes.get("service.name") or "unknown_service")
    if settings.service_name != DEFAULT_SERVICE or known.startswith("unknown_service"):
        resource = resource.merge(resources.Resource({"service.name": settings.service_name}))
    processor: Any = export.BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))
    scope = InstrumentationScope("ksana", __version__)
    log.info("spans are sent", target_url=mask_url(endpoint))
    return Spans(
        clock,
        processor,
        calm.tell,
        trace,
        lambda **parts: sdk.ReadableSpan(**parts, resource=resource, instrumentation_scope=scope),
    )


def _is_switched_off(environ: Mapping[str, str]) -> bool:
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none"


class Spans:
    """Makes spans and hands them on. Never waits, never raises for a collector's sake."""

    def __init__(
        self,
        clock: Clock,
        processor: Any,
        tell: Callable[[str], None],
        trace: Any,
        make: Callable[..., Any],
    ) -> None:
        """`trace` is the API's module; `make` the SDK's finished span of these parts; `tell` hears
        of trouble."""
        self._clock = clock
        self._tell = tell
        self._processor = processor
        self._context = trace.SpanContext
        self._sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        self._client, self._server = trace.SpanKind.CLIENT, trace.SpanKind.SERVER
        self._fine = trace.Status(trace.StatusCode.UNSET)
        self._failed: Callable[[str | None], Any] = lambda why: trace.Status(
            trace.StatusCode.ERROR, why
        )
        self._make = make

    def called(self, over: AttemptOver) -> None:
        """One attempt: the span that the target was told of in `traceparent`."""
        try:
            self._end_attempt(over)
        except Exception as error:  # a span that cannot be made must not cost the outcome
            self._tell(f"{type(error).__name__}: {error}")

    def served(
        self,
        method: str,
        route: str,
        status: int,
        spent_us: Micros,
        request_id: str,
        trace: Trace | None,
    ) -> None:
        """One answered request. Its path and query stay out: they may hold a callback token."""
        try:
            self._end_request(method, route, status, spent_us, request_id, trace)
        except Exception as error:
            self._tell(f"{type(error).__name__}: {error}")

    def _end_attempt(self, over: AttemptOver) -> None:
        held, reply = over.held, over.reply
        if over.request is None and reply.kind == "aborted":
            return  # nothing was tried: another instance has it
        definition = held.task.definition
        method = definition.http_method
        attributes: dict[str, str | int] = {
            "http.request.method": method,
            **_place_of(definition.target_url),
            "ksana.task_id": held.task.id,
            "ksana.job_id": held.task.job_id,
            "ksana.run_id": held.run_id,
            "ksana.run_uid": held.uid,
            "ksana.attempt": held.attempt,
        }
        if held.attempt > 1:
            attributes["http.request.resend_count"] = held.attempt - 1
        if reply.status is not None:
            attributes["http.response.status_code"] = reply.status
        status = self._fine
        if classify(reply.kind, reply.status).outcome != "success":
            attributes["error.type"] = reply.kind if reply.kind != "answered" else str(reply.status)
            why = redact_text(reply.error or "")
            status = self._failed(clip_error(why) or None)
        context = self._context(
            int(held.trace_id, 16),
            int(span_id_of(held.uid, held.attempt), 16),
            False,
            self._sampled,
        )
        self._end(
            "ksana attempt",
            context,
            None,
            self._client,
            attributes,
            status,
            over.started_at,
            over.ended_at,
        )

    def _end_request(
        self,
        method: str,
        route: str,
        status: int,
        spent_us: Micros,
        request_id: str,
        trace: Trace | None,
    ) -> None:
        if trace is not None and not int(trace.flags, 16) & 1:
            return  # the caller chose not to have this trace recorded
        ended_at = self._clock.now()
        trace_id = int(new_uid() if trace is None else trace.trace_id, 16)
        parent = (
            None
            if trace is None
            else self._context(trace_id, int(trace.span_id, 16), True, self._sampled)
        )
        context = self._context(trace_id, int(new_uid()[:16], 16), False, self._sampled)
        attributes: dict[str, str | int] = {
            "http.request.method": method,
            "http.response.status_code": status,
            "ksana.request_id": request_id,
        }
        name = method
        if route != "unknown":
            attributes["http.route"] = route
            name = f"{method} {route}"
        judged = self._fine
        if status >= 500:
            attributes["error.type"] = str(status)
            judged = self._failed(None)
        self._end(
            name, context, parent, self._server, attributes, judged, ended_at - spent_us, ended_at
        )

    def _end(
        self,
        name: str,
        context: Any,
        parent: Any,
        kind: Any,
        attributes: dict[str, str | int],
        status: Any,
        started_at: Instant,
        ended_at: Instant,
    ) -> None:
        self._processor.on_end(
            self._make(
                name=name,
                context=context,
                parent=parent,
                kind=kind,
                attributes=attributes,
                status=status,
                start_time=started_at * 1000,
                end_time=ended_at * 1000,
            )
        )

    async def close(self, within_us: Micros) -> None:
        """Send what is left, for so long at most. The threads are daemons: what hangs ends with the
        process."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut() -> None:
            self._processor.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop did not wait for us
                loop.call_soon_threadsafe(done.set)

        # Not the loop's own threads: the end of the loop would wait for those.
        threading.Thread(target=shut, name="spans-close", daemon=True).start()
        try:
            async with asyncio.timeout(within_us / SECOND):
                await done.wait()
        except TimeoutError:
            log.warning("the last spans could not be sent")


@lru_cache(maxsize=4096)
def _place_of(url: str) -> dict[str, str | int]:
    """Where a definition's URL leads, as attributes: placeholders unfilled, secrets masked."""
    place: dict[str, str | int] = {"url.full": mask_url(url)}
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return place
    if host and "{{" not in host:
        place["server.address"], place["server.port"] = host, port
    return place


def _listen_to_sdk(calm: "_Calm") -> None:
    """Send the SDK's own log lines through ours, without one for each batch that is not taken."""
    logger = logging.getLogger("opentelemetry")
    logger.handlers, logger.propagate = [calm], False


class _Calm(logging.Handler):
    """Passes on a warning if there was none for a while, with the number of those that were not."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._told_mono: Micros | None = None
        self._untold = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(record.getMessage())

    def tell(self, trouble: str) -> None:
        """Log it, or count it."""
        mono = self._clock.monotonic()
        if self._told_mono is not None and mono - self._told_mono < TELL_EVERY:
            self._untold += 1
            return
        untold, self._untold, self._told_mono = self._untold, 0, mono
        log.warning("spans are lost; work goes on without them", err=trouble, untold=untold)
