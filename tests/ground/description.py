"""Looks through an OpenAPI document for what generators and readers stumble over: a schema that
says nothing, an array of anything, a member or a header without words, an example that its own
schema refuses."""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs

KINDS = frozenset({"type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref"})
ANY_JSON = "Any JSON"
"""The title of a schema that is open on purpose; it still needs words around it."""
WITHOUT_CONTENT = frozenset({"204", "302"})


def find_faults(document: dict[str, Any]) -> list[str]:
    """Every fault, with where it is."""
    faults = list(_look_at_components(document))
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            faults += _look_at_operation(f"{method.upper()} {path}", operation, document)
    return faults


def _look_at_components(document: dict[str, Any]) -> Iterator[str]:
    components = document["components"]
    for name, schema in components["schemas"].items():
        yield from _look_at_schema(name, schema, document)
        if not schema.get("description"):
            yield f"{name}: no description"
    for name, header in components.get("headers", {}).items():
        yield from _look_at_said(f"header {name}", header, document)


def _look_at_operation(
    at: str, operation: dict[str, Any], document: dict[str, Any]
) -> Iterator[str]:
    if not operation.get("summary"):
        yield f"{at}: no summary"
    for parameter in operation.get("parameters", ()):
        yield from _look_at_said(f"{at} ?{parameter['name']}", parameter, document)
    contents = [
        *((f"{at} body", "", operation["requestBody"]) for _ in [0] if "requestBody" in operation),
        *((f"{at} {status}", status, one) for status, one in operation["responses"].items()),
    ]
    for where, status, one in contents:
        if "content" not in one and status not in WITHOUT_CONTENT:
            yield f"{where}: no schema"
        for content in one.get("content", {}).values():
            yield from _look_at_schema(where, content["schema"], document)
        for name in one.get("headers", {}):
            if name not in document["components"].get("headers", {}):
                yield f"{where}: header {name} is not described"


def _look_at_said(at: str, said: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    """A parameter or a header."""
    yield from _look_at_schema(at, said["schema"], document)
    if not said.get("description"):
        yield f"{at}: no description"
    if "example" not in said:
        yield f"{at}: no example"
    else:
        yield from _try_example(at, said["example"], said["schema"], document)


def _look_at_schema(at: str, schema: Any, document: dict[str, Any]) -> Iterator[str]:
    if schema is True or (not KINDS & set(schema) and schema.get("title") != ANY_JSON):
        yield f"{at}: an empty schema"
        return
    kinds = schema.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    if "array" in kinds and not {"items", "prefixItems"} & set(schema):
        yield f"{at}: an array without items"
    if "items" in schema:
        yield from _look_at_schema(f"{at}[]", schema["items"], document)
    if "object" in kinds and not {"properties", "additionalProperties"} & set(schema):
        yield f"{at}: an object without members"
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        yield from _look_at_schema(f"{at}.*", more, document)
    for each in ("anyOf", "oneOf", "allOf"):
        for number, inner in enumerate(schema.get(each, ())):
            yield from _look_at_schema(f"{at}|{number}", inner, document)
    for name, member in schema.get("properties", {}).items():
        yield from _look_at_member(f"{at}.{name}", member, document)


def _look_at_member(at: str, member: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    yield from _look_at_schema(at, member, document)
    if not member.get("description"):
        yield f"{at}: no description"
    examples = member.get("examples", [])
    if not examples and not _is_shape(member):
        yield f"{at}: no example"
    for example in examples:
        yield from _try_example(at, example, member, document)


def _is_shape(member: dict[str, Any]) -> bool:
    """Whether it is a shape, or null, whose members have examples of their own."""
    kinds = member.get("anyOf", [member])
    return any("$ref" in kind for kind in kinds)


def _try_example(at: str, example: Any, schema: Any, document: dict[str, Any]) -> Iterator[str]:
    # Most schemas are small and name no other: then no other is read for them.
    others = document["components"] if "$ref" in str(schema) else {}
    whole = {"components": others, "allOf": [schema]}
    if not jsonschema_rs.Draft202012Validator(whole, validate_formats=True).is_valid(example):
        yield f"{at}: its example {example!r} does not fit"
