"""OpenAPI 3.1 from the routes: what a route declares is what the page says. Nothing is written by
hand twice; what a type cannot say is in the tables of `words`."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from ksana.api.core.errors import Error
from ksana.api.core.openapi_schemas import Schemas, surface_of
from ksana.api.core.routing import AnyRoute, Route, SocketRoute
from ksana.api.core.words import ANSWER_HEADERS, REQUEST_HEADERS, Words, find_word

_JSON: Final = "application/json"
_PARAMETER = re.compile(r"\{([a-z_]+)(?::([a-z]+))?\}", re.ASCII)
_KINDS: Final[dict[str, dict[str, Any]]] = {
    "int": {"type": "integer", "minimum": 1, "maximum": 2**53 - 1},
    "uuid": {"type": "string", "format": "uuid"},
    "text": {"type": "string", "minLength": 1, "maxLength": 255},
    "rest": {"type": "string"},
}
_REFUSED_WITH: Final[dict[int, tuple[str, ...]]] = {
    401: ("WWW-Authenticate",),
    405: ("Allow",),
    429: ("Retry-After",),
    503: ("Retry-After",),
}
"""Headers of refusals."""
_ABOUT: Final = (
    "Every refusal has one body, `Error`. A request may carry `X-Request-Id`, which comes back, "
    "and `traceparent` (W3C), which is carried on. Once an API key exists every call but the "
    "probes needs one. Sockets are described at /asyncapi.json."
)


def describe(
    routes: Iterable[AnyRoute], version: str, words: Mapping[str, Words] | None = None
) -> dict[str, Any]:
    """Describe all routes. `words` are the tables of the surfaces, by their names."""
    http = [route for route in routes if not isinstance(route, SocketRoute)]
    declared = [
        Error,
        *(kind for route in http for kind in (route.body, route.query, *route.answers.values())),
    ]
    schemas = Schemas([kind for kind in declared if kind is not None], words or {})
    paths: dict[str, dict[str, Any]] = {}
    for one in http:
        operations = paths.setdefault(_PARAMETER.sub(r"{\1}", one.path), {})
        operations[one.method.lower()] = _operation(one, schemas)
    queries = {schemas.name_of(route.query) for route in http if route.query is not None}
    kept = {name: schema for name, schema in schemas.components.items() if name not in queries}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ksana",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": kept,
            "headers": {name: _header(word) for name, word in ANSWER_HEADERS.items()},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "key_header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": list(route.tags),
        "responses": _responses(route, schemas),
    }
    parameters = [
        *_path_parameters(route, schemas),
        *_query_parameters(route, schemas),
        *(_header_parameter(name) for name in route.request_headers),
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.empty_body_ok,
            "content": {_JSON: {"schema": schemas.of(route.body)}},
        }
    operation["security"] = [{"key": []}, {"key_header": []}, {}] if route.scope else [{}]
    if route.scope:
        operation["x-scope"] = route.scope
    return operation


def _operation_id(route: Route) -> str:
    # The path is part of it: the same handler may serve two paths.
    return f"{route.method.lower()}_" + re.sub(
        r"[^a-z0-9]+", "_", _PARAMETER.sub(r"\1", route.path).lower()
    ).strip("_")


def _responses(route: Route, schemas: Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, declared in sorted(route.answers.items()):
        headers = route.answer_headers if status < 300 else ()
        answer = responses[str(status)] = _answer(status, headers)
        if declared is not None:
            answer["content"] = {
                media_type: {
                    "schema": schemas.of(declared) if media_type == _JSON else {"type": "string"}
                }
                for media_type in (route.media_types if status < 300 else (_JSON,))
            }
    error = {_JSON: {"schema": schemas.of(Error)}}
    expected = {400, 403, 404, 405, 413, 429, 431, 500, 503}
    expected |= {401} if route.scope else set()
    expected |= {409, 415} if route.body is not None else set()
    for status in sorted(expected - set(route.answers)):
        responses[str(status)] = _answer(status, _REFUSED_WITH.get(status, ())) | {"content": error}
    return responses


def _answer(status: int, headers: tuple[str, ...]) -> dict[str, Any]:
    named = ("X-Request-Id", *headers)
    return {
        "description": HTTPStatus(status).phrase,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in named},
    }


def _header(word: Any) -> dict[str, Any]:
    return {"description": word.text, "schema": dict(word.schema), "example": word.example}


def _header_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, **_header(REQUEST_HEADERS[name])}


def _path_parameters(route: Route, schemas: Schemas) -> list[dict[str, Any]]:
    words = schemas.words_of(surface_of(route.handler.__module__))
    found: list[dict[str, Any]] = []
    for name, kind in _PARAMETER.findall(route.path):
        parameter = {"name": name, "in": "path", "required": True}
        word = find_word(words, "path", name)
        if word is not None:
            example = word.example
            if kind == "int":  # the same name may be a text in another surface's paths
                example = int(example) if str(example).isdigit() else 1
            parameter |= {"description": word.text, "example": example}
        found.append({**parameter, "schema": _KINDS[kind or "text"]})
    return found


def _query_parameters(route: Route, schemas: Schemas) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = schemas.components[schemas.name_of(route.query)]
    needed = set(schema.get("required", ()))
    found: list[dict[str, Any]] = []
    for name, member in schema["properties"].items():
        bare = _without_null(member)
        said = {key: bare.pop(key) for key in ("description",) if key in bare}
        if "examples" in bare:
            said["example"] = bare.pop("examples")[0]
        found.append(
            {"name": name, "in": "query", "required": name in needed, **said, "schema": bare}
        )
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is absent or there: it is never null."""
    if "anyOf" not in schema:
        return dict(schema)
    kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return {**kinds[0], **rest} if len(kinds) == 1 else {**rest, "anyOf": kinds}
