"""Schemathesis against our own OpenAPI: every operation, hostile input, and the answers held to the
schema.

    def test_every_operation_keeps_its_own_schema(app):  # an ASGI app with its lifespan running
        check_every_operation(schema_of(app))

    def test_the_real_process_keeps_its_schema(program):
        check_every_operation(schema_at(program.start().url("/openapi.json")))

One hypothesis test per operation, inside one pytest test: the app may come from a fixture.
"""

from collections.abc import Callable
from typing import Any

import schemathesis
from hypothesis import given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from tests.ground.tasks import FULL

SCHEMA_PATH = "/openapi.json"

LONGEST_POLL = 30

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


def schema_of(app: Any) -> Any:
    """Load the schema from an ASGI app, in this process."""
    return schemathesis.openapi.from_asgi(SCHEMA_PATH, app)


def schema_at(url: str) -> Any:
    """Load the schema from a running server."""
    return schemathesis.openapi.from_url(url)


def check_every_operation(
    schema: Any,
    *,
    examples: int = 25 if FULL else 12,
    skip: Callable[[Any], bool] = lambda operation: False,
    **options: Any,
) -> int:
    """Try each operation with valid and with broken input; tell how many there were. All failures
    are reported."""
    failures: list[BaseException] = []
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if skip(operation):
            continue
        count += 1
        try:
            _check_operation(operation, examples, options)
        except (Exception, BaseExceptionGroup) as failure:
            failure.add_note(f"in {operation.method.upper()} {operation.path}")
            failures.append(failure)
    assert count, "the schema has no operations"
    if failures:
        raise BaseExceptionGroup(
            f"{len(failures)} of {count} operations break their schema", failures
        )
    return count


def _check_operation(operation: Any, examples: int, options: dict[str, Any]) -> None:
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @settings(max_examples=examples)
        @given(case=operation.as_strategy(generation_mode=mode))
        def one_case(case: Any) -> None:
            check(case, **options)

        try:
            one_case()
        except Unsatisfiable:
            # An operation that takes no input cannot be given a broken one.
            if mode is GenerationMode.POSITIVE:
                raise


def check(case: Any, **options: Any) -> Any:
    """Send one generated case and hold the answer to the schema; never a 5xx. A long poll waits a
    moment, not half a minute."""
    if isinstance(case.body, dict):
        wait_sec = case.body.get("wait_sec")
        if isinstance(wait_sec, int | float) and 0 < wait_sec <= LONGEST_POLL:
            case.body["wait_sec"] = 0.01
    return case.call_and_validate(checks=CHECKS, **options)
