"""The API's description of itself, looked through as a generator or a reader would."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ksana.api.core.words import CORE_WORDS
from ksana.api.governance.words import WORDS as GOVERNANCE_WORDS
from ksana.api.nodes.words import WORDS as NODES_WORDS
from ksana.api.queue.words import WORDS as QUEUE_WORDS
from ksana.api.tasks.words import WORDS as TASKS_WORDS
from tests.ground.description import find_faults
from tests.ground.process import Program

PROBES = frozenset({"/health", "/healthz", "/readyz", "/api/v1/healthz", "/api/v1/readyz"})
"""Their 503 is what they are asked for."""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with Program(tmp_path_factory.mktemp("description")) as program:
        yield program.start().get("/openapi.json").json()


@pytest.mark.spec("X8")
def test_every_answer_array_member_and_header_is_described(document: dict[str, Any]) -> None:
    assert len(document["paths"]) > 80
    assert find_faults(document) == []


def run_of(document: dict[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = document["components"]["schemas"]["RunDetail"]["properties"]
    return members


def answer_of(document: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = document["paths"]["/api/v1/runs/{id}"]["get"]["responses"]
    return answers


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "empty member": (lambda api: run_of(api).update(status={}), "RunDetail.status: an empty"),
    "member of any kind": (
        lambda api: run_of(api).update(status={"description": "x", "examples": [1]}),
        "RunDetail.status: an empty",
    ),
    "empty answer": (
        lambda api: answer_of(api)["200"]["content"]["application/json"].update(schema={}),
        "GET /api/v1/runs/{id} 200: an empty",
    ),
    "answer without a schema": (
        lambda api: answer_of(api)["200"].pop("content"),
        "GET /api/v1/runs/{id} 200: no schema",
    ),
    "array of anything": (
        lambda api: run_of(api)["attempts"].pop("items"),
        "RunDetail.attempts: an array without items",
    ),
    "array of empty schemas": (
        lambda api: run_of(api)["attempts"].update(items={}),
        "RunDetail.attempts[]: an empty",
    ),
    "object of no members": (
        lambda api: run_of(api).update(uid={"type": "object", "description": "x", "examples": [1]}),
        "RunDetail.uid: an object without members",
    ),
    "no sentence": (
        lambda api: run_of(api)["uid"].pop("description"),
        "RunDetail.uid: no description",
    ),
    "no example": (lambda api: run_of(api)["uid"].pop("examples"), "RunDetail.uid: no example"),
    "wrong example": (
        lambda api: run_of(api)["id"].update(examples=["x"]),
        "RunDetail.id: its example 'x' does not fit",
    ),
    "example of a wrong format": (
        lambda api: run_of(api)["created_at"].update(examples=["yesterday"]),
        "RunDetail.created_at: its example 'yesterday' does not fit",
    ),
    "header without words": (
        lambda api: api["components"]["headers"]["Retry-After"].pop("description"),
        "header Retry-After: no description",
    ),
    "unknown header": (
        lambda api: answer_of(api)["200"]["headers"].update({"X-New": {}}),
        "GET /api/v1/runs/{id} 200: header X-New is not described",
    ),
    "parameter without an example": (
        lambda api: api["paths"]["/api/v1/runs/{id}"]["get"]["parameters"][0].pop("example"),
        "GET /api/v1/runs/{id} ?id: no example",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_the_description_is_found(document: dict[str, Any], fault: str) -> None:
    plant, expected = FAULTS[fault]
    spoilt = copy.deepcopy(document)
    plant(spoilt)
    assert [one for one in find_faults(spoilt) if one.startswith(expected)], find_faults(spoilt)


def names_in(document: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    inner = (*schema.get("anyOf", ()), *schema.get("properties", {}).values())
    return set(schema.get("properties", ())).union(*(names_in(document, one) for one in inner))


def test_bodies_hold_only_what_callers_may_send(document: dict[str, Any]) -> None:
    ours = {"created_at", "updated_at", "anchor_at", "next_run_at", "last_run_at", "last_status"}
    ours |= {"attempt", "last_error", "decayed_at", "deleted_at", "failure_streak"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if "requestBody" in operation:
                body = operation["requestBody"]["content"]["application/json"]["schema"]
                assert not names_in(document, body) & ours, f"{method} {path}"
    of_change = names_in(document, {"$ref": "#/components/schemas/TimerBody"})
    assert "id" not in of_change
    assert {"schedule", "run_at", "every", "expr"} <= of_change


def test_what_a_caller_waits_repeats_and_asks_by_is_described(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                at = f"{method} {path} {status}"
                assert "X-Request-Id" in answer["headers"], at
                if status in {"429", "503"} and path not in PROBES:
                    assert "Retry-After" in answer["headers"], at
    for path in ("/jobs", "/api/v1/tasks", "/api/scheduler/jobs/submit"):
        operation = document["paths"][path]["post"]
        assert "Idempotency-Key" in {one["name"] for one in operation["parameters"]}
        done = next(status for status in operation["responses"] if status.startswith("2"))
        assert "Idempotency-Replayed" in operation["responses"][done]["headers"]


def said_in(document: dict[str, Any]) -> set[str]:
    found: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("description"), str):
                found.add(value["description"])
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(document)
    return found


@pytest.mark.parametrize(
    "words", [CORE_WORDS, TASKS_WORDS, QUEUE_WORDS, GOVERNANCE_WORDS, NODES_WORDS]
)
def test_no_words_are_left_of_members_that_are_gone(
    document: dict[str, Any], words: dict[str, Any]
) -> None:
    said = said_in(document)
    assert [name for name, word in words.items() if word.text not in said] == []
