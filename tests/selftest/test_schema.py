"""The schemathesis wiring, shown on a small app that keeps its schema and on one that breaks it."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.ground.schema import check_every_operation, schema_of

SCHEMA = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "paths": {
        "/n": {
            "get": {
                "parameters": [
                    {"name": "n", "in": "query", "required": True, "schema": {"type": "integer"}}
                ],
                "responses": {
                    code: {
                        "description": "d",
                        "content": {
                            "application/json": {"schema": {"type": "object", "required": ["n"]}}
                        },
                    }
                    for code in ("200", "400")
                },
            }
        }
    },
}


def app(answer: Any) -> Starlette:
    async def openapi(_: Request) -> Response:
        return JSONResponse(SCHEMA)

    async def number(_: Request) -> Response:
        return answer()

    return Starlette(routes=[Route("/openapi.json", openapi), Route("/n", number)])


def test_an_app_that_keeps_its_schema_passes() -> None:
    assert check_every_operation(schema_of(app(lambda: JSONResponse({"n": 1})))) == 1


@pytest.mark.parametrize(
    "answer",
    [
        lambda: JSONResponse({}, 500),
        lambda: JSONResponse({"m": 1}),
        lambda: JSONResponse({"n": 1}, 418),
        lambda: PlainTextResponse("n"),
    ],
    ids=["server error", "wrong body", "undeclared status", "wrong type"],
)
def test_an_app_that_breaks_its_schema_fails(answer: Any) -> None:
    with pytest.raises(BaseExceptionGroup, match="1 of 1 operations"):
        check_every_operation(schema_of(app(answer)))
