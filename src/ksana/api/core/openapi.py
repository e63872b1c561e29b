"""OpenAPI 3.1 from the routes: what a route declares is what the page says. Nothing is written by
hand twice."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import msgspec

from ksana.api.core.routing import AnyRoute, Call, Content, Route, SocketRoute

_REF: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_PARAMETER = re.compile(r"\{([a-z_]+)(?::([a-z]+))?\}", re.ASCII)
_KINDS: Final[dict[str, dict[str, Any]]] = {
    "int": {"type": "integer", "minimum": 1, "maximum": 2**53 - 1},
    "uuid": {"type": "string", "format": "uuid"},
    "text": {"type": "string", "minLength": 1, "maxLength": 255},
    "rest": {"type": "string"},
}
PATH: Final = "/openapi.json"


class Error(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every refusal. `detail` repeats `message`."""

    code: str
    message: str
    detail: str
    request_id: str
    field: str | msgspec.UnsetType = msgspec.UNSET
    """The member at fault (400)."""
    current: Any | msgspec.UnsetType = msgspec.UNSET
    """The present state (409)."""


def route(described: list[Route], version: str) -> Route:
    """The route that answers the description; it is built when first asked for."""
    ready: list[bytes] = []

    async def describe_api(call: Call) -> Content:
        if not ready:
            ready.append(msgspec.json.encode(describe([*described, own], version)))
        return Content(ready[0], "application/json")

    own = Route("GET", PATH, describe_api, scope=None, summary="This description", tags=("probes",))
    return own


def describe(routes: Iterable[AnyRoute], version: str) -> dict[str, Any]:
    """Describe all routes."""
    http = [route for route in routes if not isinstance(route, SocketRoute)]
    types: dict[int, Any] = {}
    for declared in [
        Error,
        *(kind for route in http for kind in (route.body, route.query, *route.answers.values())),
    ]:
        if declared is not None:
            types.setdefault(id(declared), declared)
    schemas, components = msgspec.json.schema_components(list(types.values()), ref_template=_REF)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in http:
        operations = paths.setdefault(_PARAMETER.sub(r"{\1}", one.path), {})
        operations[one.method.lower()] = _operation(one, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ksana",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "key_header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _operation(route: Route, by_type: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": list(route.tags),
        "responses": _responses(route, by_type),
    }
    parameters = _path_parameters(route) + _query_parameters(route, by_type, components)
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.empty_body_ok,
            "content": {_JSON: {"schema": by_type[id(route.body)]}},
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


def _responses(route: Route, by_type: dict[int, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, declared in sorted(route.answers.items()):
        responses[str(status)] = {"description": HTTPStatus(status).phrase}
        if declared is not None:
            responses[str(status)]["content"] = {
                media_type: {
                    "schema": by_type[id(declared)] if media_type == _JSON else {"type": "string"}
                }
                for media_type in (route.media_types if status < 300 else (_JSON,))
            }
    error = {_JSON: {"schema": by_type[id(Error)]}}
    expected = {400, 403, 404, 405, 413, 429, 500, 503}
    expected |= {401} if route.scope else set()
    expected |= {409, 415} if route.body is not None else set()
    for status in sorted(expected - set(route.answers)):
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": error}
    return responses


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _KINDS[kind or "text"]}
        for name, kind in _PARAMETER.findall(route.path)
    ]


def _query_parameters(
    route: Route, by_type: dict[int, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = components[by_type[id(route.query)]["$ref"].rpartition("/")[2]]
    needed = set(schema.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": _without_null(member)}
        for name, member in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is absent or there: it is never null."""
    if "anyOf" not in schema:
        return schema
    kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return {**kinds[0], **rest} if len(kinds) == 1 else {**rest, "anyOf": kinds}
