"""AsyncAPI 3.0 of the two sockets, from the frame types that server and SDK share: what is decoded
is what the page says. It stands beside the OpenAPI page, which describes the endpoints."""

from typing import Any, Final, get_args

import msgspec

from ksana.api.core.routing import Call, Content, Route
from ksana.api.nodes.key_watch import SCOPE
from ksana.domain.nodes import frames

PATH: Final = "/asyncapi.json"
_REF: Final = "#/components/schemas/{name}"
_SOCKETS: Final = {
    "node": ("/ws/node", "Connect a node", frames.FromNode, frames.ToNode),
    "session": ("/ws/session", "Ask for jobs", frames.FromSession, frames.ToSession),
}
"""By name: path, what it is for, what a client sends, what it is sent."""


def route() -> Route:
    """The route that answers the description; it is built when first asked for."""
    ready: list[bytes] = []

    async def describe_sockets(call: Call) -> Content:
        if not ready:
            ready.append(msgspec.json.encode(describe(call.app.settings.version)))
        return Content(ready[0], "application/json")

    return Route(
        "GET",
        PATH,
        describe_sockets,
        scope=None,
        summary="Describe the frames of the sockets (AsyncAPI)",
        tags=("nodes",),
        answers={200: dict[str, Any]},
    )


def describe(version: str) -> dict[str, Any]:
    """Describe both sockets."""
    kinds = list(dict.fromkeys(kind for _, _, *sides in _SOCKETS.values() for kind in _all(sides)))
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Ksana sockets",
            "version": version,
            "description": "One frame is one text message with one JSON object.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {name: _channel(name) for name in _SOCKETS},
        "operations": {key: value for name in _SOCKETS for key, value in _operations(name).items()},
        "components": {
            "messages": {kind.__name__: _message(kind) for kind in kinds},
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "key_header": {"type": "httpApiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _all(sides: Any) -> list[type[msgspec.Struct]]:
    return [kind for side in sides for kind in get_args(side)]


def _channel(name: str) -> dict[str, Any]:
    path, summary, sent, received = _SOCKETS[name]
    kinds = dict.fromkeys(_all((sent, received)))
    return {
        "address": path,
        "summary": summary,
        "messages": {
            kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"} for kind in kinds
        },
        "bindings": {"ws": {"method": "GET"}},
        "x-scope": SCOPE,
    }


def _operations(name: str) -> dict[str, Any]:
    """As the server sees it: it receives what a client sends."""
    _, _, sent, received = _SOCKETS[name]
    security = [
        {"$ref": "#/components/securitySchemes/key"},
        {"$ref": "#/components/securitySchemes/key_header"},
    ]
    return {
        f"{action}_{name}": {
            "action": action,
            "channel": {"$ref": f"#/channels/{name}"},
            "messages": [
                {"$ref": f"#/channels/{name}/messages/{kind.__name__}"} for kind in get_args(side)
            ],
            "security": security,
        }
        for action, side in (("receive", sent), ("send", received))
    }


def _message(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        "name": kind.__struct_config__.tag,
        "summary": " ".join((kind.__doc__ or "").split()),
        "payload": {"$ref": _REF.format(name=kind.__name__)},
    }
