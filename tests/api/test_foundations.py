"""Probes, version, metrics, stats, the description and its page."""

import re
from typing import Any

import httpx
import pytest
import tzdata
from prometheus_client import CollectorRegistry

from ksana.api.core.app import create_app
from ksana.api.core.routing import Call, Route
from ksana.api.core.services import Check
from ksana.domain.zones import rules_version
from tests.api.ground import CoreServices, client_of, thing_routes


@pytest.mark.spec("X18", "T5")
@pytest.mark.parametrize("path", ["/health", "/api/v1/healthz"])
async def test_a_probe_answers_ok_as_text_or_json(client: httpx.AsyncClient, path: str) -> None:
    plain = await client.get(path)
    assert (plain.status_code, plain.text) == (200, "ok")
    assert plain.headers["content-type"].startswith("text/plain")
    assert (await client.get(path, headers={"accept": "application/json"})).json() == {
        "status": "ok"
    }


@pytest.mark.spec("X18")
async def test_a_probe_is_503_until_the_store_is_open(
    core: CoreServices, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "is_open", lambda: False)
    for path in ("/health", "/api/v1/healthz"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_DOWN")
        assert answer.headers["retry-after"]


async def test_the_root_leads_to_the_console_or_else_to_the_api_page(
    core: CoreServices, client: httpx.AsyncClient
) -> None:
    answer = await client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (302, "docs")
    assert (await client.get(answer.headers["location"])).status_code == 200

    async def show(call: Call) -> str:
        return "console"

    console = Route("GET", "/ui", show, scope=None, summary="The console", hidden=True)
    core.metrics = CollectorRegistry()
    async with client_of(core.app(console)) as other:
        answer = await other.get("/", headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (302, "ui/")


@pytest.mark.spec("X18")
async def test_readiness_says_what_is_wrong(core: CoreServices, client: httpx.AsyncClient) -> None:
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ready"
    core.checks = [
        Check("store", False, "cannot be reached"),
        Check("loops", True),
        Check("coordination", False),
    ]
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    told = answer.json()
    assert told["checks"] == {
        "store": "cannot be reached",
        "loops": "ok",
        "coordination": "not well",
    }
    assert told["problems"] == ["store: cannot be reached", "coordination: not well"]


@pytest.mark.spec("C21")
def test_the_edition_of_the_zone_rules_is_the_one_in_use() -> None:
    # The machine may have another edition; slots are worked out by the package's.
    assert rules_version() == tzdata.IANA_VERSION


@pytest.mark.spec("X18")
@pytest.mark.parametrize("path", ["/version", "/api/v1/version"])
async def test_version_tells_what_runs(client: httpx.AsyncClient, path: str) -> None:
    told = (await client.get(path)).json()
    assert told["version"] == "1.2.3"
    assert told["tzdata"] == "2026a"
    assert told["store"] == "sqlite"
    assert re.match(r"3\.\d+", told["python"])


@pytest.mark.spec("X17")
async def test_metrics_count_requests_by_route_template(client: httpx.AsyncClient) -> None:
    for number in (1, 2):
        await client.get(f"/api/v1/things/{number}")
    await client.get("/nowhere/at/all")
    text = (await client.get("/metrics")).text
    assert (
        'ksana_http_requests_total{method="GET",route="/api/v1/things/{id:int}",status="200"} 2.0'
        in text
    )
    assert 'ksana_http_requests_total{method="GET",route="unknown",status="404"} 1.0' in text
    assert "ksana_http_request_seconds_sum" in text
    open_metrics = await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert open_metrics.text.endswith("# EOF\n")


@pytest.mark.spec("X18")
async def test_stats_have_a_section_from_each_surface(
    core: CoreServices, client: httpx.AsyncClient
) -> None:
    async def count() -> dict[str, int]:
        return {"ready": 3}

    core.stats.add("queue", count)
    told = (await client.get("/api/v1/stats")).json()
    assert told["queue"] == {"ready": 3}
    assert told["store"]["ok"] is True
    with pytest.raises(ValueError, match="queue"):
        core.stats.add("queue", count)


async def test_the_description_follows_from_the_routes(client: httpx.AsyncClient) -> None:
    api: dict[str, Any] = (await client.get("/openapi.json")).json()
    assert api["openapi"] == "3.1.0"
    make = api["paths"]["/api/v1/things"]["post"]
    assert make["x-scope"] == "queue:write"
    assert make["requestBody"]["required"] is True
    assert make["responses"]["201"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/Thing"
    )
    assert make["responses"]["400"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/Error"
    )
    assert api["components"]["schemas"]["MakeThing"]["additionalProperties"] is False
    listed = {one["name"]: one for one in api["paths"]["/api/v1/things"]["get"]["parameters"]}
    assert listed["page"]["schema"] == {"type": "integer", "minimum": 1, "default": 1}
    assert listed["status"]["schema"] == {"enum": ["off", "on"]}
    (by_id,) = api["paths"]["/api/v1/things/{id}"]["get"]["parameters"]
    assert (by_id["in"], by_id["schema"]["type"]) == ("path", "integer")
    assert "content" not in api["paths"]["/api/v1/things/{id}"]["delete"]["responses"]["204"]
    ids = [call["operationId"] for calls in api["paths"].values() for call in calls.values()]
    assert len(ids) == len(set(ids))
    assert "/openapi.json" in api["paths"]
    assert "/docs" not in api["paths"]


async def test_the_api_page_is_self_hosted_under_a_strict_policy(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {"/docs/docs.js", "/docs/docs.css"} <= set(links)
    for link in links:
        assert link == "data:," or (await client.get(link)).status_code == 200
    for path in ("/docs", "/docs/docs.js", "/docs/docs.css"):
        text = (await client.get(path)).text
        assert "http://" not in text
        assert "https://" not in text
        assert "innerHTML" not in text


async def test_two_routes_for_one_path_and_method_are_refused(core: CoreServices) -> None:
    async def answer(call: Call) -> None: ...

    def route(path: str) -> Route:
        return Route("GET", path, answer, scope=None, summary="Twice")

    for path in ("/health", "/api/v1/things/{other:int}"):
        with pytest.raises(ValueError, match="two routes"):
            create_app(core, thing_routes(), [route(path)])
        core.metrics._collector_to_names.clear()
        core.metrics._names_to_collectors.clear()
