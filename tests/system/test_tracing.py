"""Spans of the real program, as a collector receives them (X22)."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.ground.child import free_port, wait_for
from tests.ground.process import Program, clean_environment
from tests.ground.target import Answer, Target

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "ksana-test-secret-3f1c"


@pytest.fixture
def collector() -> Iterator[Target]:
    with Target() as collector:
        yield collector


@pytest.fixture
def traced(tmp_path: Path, collector: Target) -> Iterator[Program]:
    """The program with a collector, its batches sent soon. Not started."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url(""), "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with Program(tmp_path / "data", env=env) as program:
        yield program


def received(collector: Target) -> list[tuple[dict[str, str], Span]]:
    """Every span that came so far, with the members of its resource."""
    spans = []
    for request in collector.requests("/v1/traces"):
        for group in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            resource = members(group.resource.attributes)
            spans += [(resource, span) for scope in group.scope_spans for span in scope.spans]
    return spans


def members(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def find_spans(collector: Target, count: int, is_wanted: Callable[[Span], bool]) -> list[Span]:
    """Wait for so many spans of a kind."""
    found: list[Span] = []

    def look() -> bool:
        found[:] = [span for _, span in received(collector) if is_wanted(span)]
        return len(found) >= count

    wait_for(look, f"{count} spans arrive", within_s=15)
    return found


def is_attempt(span: Span) -> bool:
    return bool(span.name == "ksana attempt")


def fire_once(program: Program, url: str) -> None:
    """A timer that fires in about a second."""
    run_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
    answer = program.post(
        "/jobs", {"http": {"url": url}, "schedule": {"kind": "once", "run_at": run_at}}
    )
    assert answer.status_code == 201, answer.text


@pytest.mark.spec("X22")
def test_each_attempt_is_the_span_that_its_target_was_told_of(
    traced: Program, collector: Target, target: Target
) -> None:
    target.on("/flaky", Answer(503), Answer(200))
    traced.start()
    task = traced.post(
        "/api/v1/tasks",
        {
            "name": "traced",
            "target_url": target.url(f"/flaky?token={SECRET}"),
            "schedule": {"kind": "every", "every": "24h"},
            "headers": {"Authorization": f"Bearer {SECRET}"},
            "retry_policy": {"max_retries": 1, "initial_delay": 0},
        },
    ).json()
    began_ns = time.time_ns()
    triggered = traced.post(
        f"/api/v1/tasks/{task['id']}/trigger", headers={"traceparent": f"00-{TRACE}-{CALLER}-01"}
    )
    told = [request.headers["traceparent"].split("-") for request in target.wait_for(2, "/flaky")]
    spans = sorted(find_spans(collector, 2, is_attempt), key=lambda span: span.start_time_unix_nano)
    assert [(span.trace_id.hex(), span.span_id.hex()) for span in spans] == [
        (words[1], words[2]) for words in told
    ]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert spans[0].span_id != spans[1].span_id
    failed, fine = (members(span.attributes) for span in spans)
    assert failed["http.response.status_code"] == 503
    assert failed["error.type"] == "503"
    assert [span.status.code for span in spans] == [
        Status.STATUS_CODE_ERROR,
        Status.STATUS_CODE_UNSET,
    ]
    assert fine["http.request.method"] == "GET"
    assert fine["url.full"] == target.url("/flaky?token=***")
    assert (fine["server.address"], fine["server.port"]) == (target.host, target.port)
    assert (fine["ksana.task_id"], fine["ksana.run_id"]) == (task["id"], triggered.json()["run_id"])
    assert (failed["ksana.attempt"], fine["ksana.attempt"]) == (1, 2)
    for span in spans:
        assert span.kind == Span.SPAN_KIND_CLIENT
        assert (
            began_ns - 1_000_000_000
            < span.start_time_unix_nano
            <= span.end_time_unix_nano
            <= time.time_ns()
        )
    assert all(SECRET.encode() not in request.body for request in collector.requests())


@pytest.mark.spec("X22")
def test_a_timer_that_fires_makes_a_span_of_a_trace_of_its_own(
    traced: Program, collector: Target, target: Target
) -> None:
    traced.start()
    fire_once(traced, target.url("/timer"))
    told = target.wait_for(1, "/timer")[0].headers
    _, trace_id, span_id, flags = told["traceparent"].split("-")
    (span,) = find_spans(collector, 1, is_attempt)
    assert (span.trace_id.hex(), span.span_id.hex(), flags) == (trace_id, span_id, "01")
    assert not span.parent_span_id
    assert members(span.attributes)["ksana.run_uid"] == told["x-ksana-run-id"]
    resource = received(collector)[0][0]
    assert resource["service.name"] == "ksana"
    assert resource["service.version"]


@pytest.mark.spec("X22")
def test_each_request_is_a_span_below_the_callers(traced: Program, collector: Target) -> None:
    traced.start()
    sent = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    answer = traced.get("/jobs/none-such", headers=sent)
    traced.get(f"/api/v1/nothing/{SECRET}?q={SECRET}", headers=sent)
    traced.get("/version", headers={"traceparent": f"00-{TRACE}-{CALLER}-00"})
    traced.get("/api/v1/version")
    (own,) = find_spans(
        collector, 1, lambda span: span.name == "GET /api/v1/version"
    )  # the last one
    spans = {span.name: span for _, span in received(collector)}
    job = spans["GET /jobs/{id}"]
    assert (job.trace_id.hex(), job.parent_span_id.hex()) == (TRACE, CALLER)
    told = members(job.attributes)
    assert told["http.route"] == "/jobs/{id}"
    assert told["http.response.status_code"] == 404
    assert told["ksana.request_id"] == answer.headers["x-request-id"]
    assert spans["GET"].parent_span_id.hex() == CALLER  # no route: the path stays out
    assert not own.parent_span_id
    assert own.trace_id.hex() != TRACE
    assert own.end_time_unix_nano >= own.start_time_unix_nano > 0
    assert "GET /version" not in spans  # its caller chose not to have it recorded
    assert all(SECRET.encode() not in request.body for request in collector.requests())


@pytest.mark.spec("X22", "X14")
def test_the_last_spans_are_sent_before_the_end(traced: Program, collector: Target) -> None:
    traced.env |= {"OTEL_BSP_SCHEDULE_DELAY": "600000", "OTEL_SERVICE_NAME": "night-shift"}
    traced.start()
    traced.get("/version")
    assert traced.terminate() == 0
    assert any(span.name == "GET /version" for _, span in received(collector))
    assert received(collector)[0][0]["service.name"] == "night-shift"


@pytest.mark.spec("X22", "X14")
def test_a_collector_that_is_away_costs_nothing_but_spans(traced: Program, target: Target) -> None:
    traced.env |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    }
    traced.start()
    for n in range(3):
        fire_once(traced, target.url(f"/{n}"))
    target.wait_for(3)
    traced.wait_for_log("spans are lost")
    traced.get("/version")
    asked = time.monotonic()
    assert traced.terminate() == 0
    assert time.monotonic() - asked < 10  # the exporter alone would try for longer
    log = traced.log_text()
    assert log.count("spans are lost") == 1
    assert "Traceback" not in log


@pytest.mark.spec("X22", "X15")
def test_without_the_sdk_a_start_with_an_endpoint_says_what_to_install(tmp_path: Path) -> None:
    hidden = (
        "import sys; sys.modules['opentelemetry'] = None; "
        "from ksana.cli.main import run; sys.argv[1:] = ['serve']; run()"
    )
    env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://who:secret@127.0.0.1:1/v1/traces"}
    with Program(tmp_path, env=env, command=(sys.executable, "-c", hidden)) as program:
        program.start(until=None)
        assert program.wait_for_end() == 1
        assert "pip install 'ksana[otel]'" in program.log_text()
        assert "secret" not in program.log_text()
        assert "Traceback" not in program.log_text()
        program.env["OTEL_SDK_DISABLED"] = "true"
        program.start()
        assert program.get("/health").text == "ok"


@pytest.mark.spec("X22")
def test_nothing_of_the_sdk_is_loaded_while_no_endpoint_is_configured() -> None:
    code = (
        "import asyncio, sys; from ksana.boot.server import KsanaServer\n"
        "from ksana.boot.settings.table import Settings\n"
        "async def make(): KsanaServer(Settings())\n"
        "asyncio.run(make())\n"
        "sys.exit(any(name.partition('.')[0] == 'opentelemetry' for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
