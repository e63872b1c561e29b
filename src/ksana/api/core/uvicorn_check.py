"""Checks that the inside of uvicorn is what our connections were written against.

`connection` and `fastpath` override methods and read attributes that uvicorn does not promise. The
version is capped in `pyproject.toml`; this check is for whoever lifts the cap. What it finds
missing is served without (`server`), and is said once at start.
"""

import inspect
from typing import Any, Final

import uvicorn
from uvicorn.server import ServerState

GUARD_METHODS: Final = {
    "connection_made": ("transport",),
    "connection_lost": ("exc",),
    "handle_websocket_upgrade": (),
    "data_received": ("data",),
    "eof_received": (),
    "on_header": ("name", "value"),
    "on_message_begin": (),
    "on_headers_complete": (),
    "on_body": ("body",),
    "on_message_complete": (),
    "on_response_complete": (),
    "pause_writing": (),
    "resume_writing": (),
    "send_400_response": ("msg",),
    "_start_asgi_task": ("cycle", "app"),
}
"""Methods of the protocol that `connection` overrides or calls, and their parameters."""
GUARD_ATTRIBUTES: Final = {
    "client",
    "connections",
    "cycle",
    "flow",
    "headers",
    "loop",
    "parser",
    "pipeline",
    "scope",
    "server_state",
    "tasks",
    "timeout_keep_alive",
    "transport",
}
SOCKET_METHODS: Final = {"connection_lost": ("exc",), "handle_connect": ("event",)}
SOCKET_ATTRIBUTES: Final = {"close_sent", "conn", "disconnected", "transport", "writable"}
"""What `crowd` overrides and reads of a WebSocket."""
FASTPATH_ATTRIBUTES: Final = {"config", "expect_100_continue", "parser"}
"""What `fastpath` reads besides."""
CYCLE_ATTRIBUTES: Final = {
    "body",
    "disconnected",
    "keep_alive",
    "message_event",
    "more_body",
    "on_response",
    "response_complete",
    "response_started",
    "scope",
    "waiting_for_100_continue",
}
CYCLE_PARAMETERS: Final = {"scope", "on_response", "message_event", "keep_alive"}
FLOW_ATTRIBUTES: Final = {"read_paused", "resume_reading", "write_paused"}


def find_guard_changes() -> list[str]:
    """What `connection` relies on and this uvicorn lacks."""
    try:
        from uvicorn.protocols.http import flow_control, httptools_impl
    except ImportError as error:
        return [str(error)]
    missing = [
        f"HttpToolsProtocol.{name}({', '.join(wanted)})"
        for name, wanted in GUARD_METHODS.items()
        if _parameters(getattr(httptools_impl.HttpToolsProtocol, name, None)) != wanted
    ]
    if not isinstance(getattr(httptools_impl, "STATUS_LINE", {}).get(200), bytes):
        missing.append("STATUS_LINE")
    missing += [
        f"FlowControl.{name}"
        for name in FLOW_ATTRIBUTES
        if name not in _names(flow_control.FlowControl)
    ]
    missing += [
        f"RequestResponseCycle.{name}"
        for name in CYCLE_ATTRIBUTES
        if name not in _names(httptools_impl.RequestResponseCycle)
    ]
    missing += _missing_of_instance(httptools_impl.HttpToolsProtocol, GUARD_ATTRIBUTES)
    try:
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    except ImportError as error:
        return sorted([*missing, str(error)])
    for name, wanted in SOCKET_METHODS.items():
        if _parameters(getattr(WebSocketsSansIOProtocol, name, None)) != wanted:
            missing.append(f"WebSocketsSansIOProtocol.{name}({', '.join(wanted)})")
    missing += _missing_of_instance(WebSocketsSansIOProtocol, SOCKET_ATTRIBUTES)
    return sorted(missing)


def find_fastpath_changes() -> list[str]:
    """What `fastpath` relies on besides and this uvicorn lacks; call it where the guards stand."""
    from uvicorn.protocols.http import httptools_impl

    return sorted(_missing_of_instance(httptools_impl.HttpToolsProtocol, FASTPATH_ATTRIBUTES))


def _missing_of_instance(kind: Any, wanted: set[str]) -> list[str]:
    """Attributes that an instance lacks; all of them if it cannot be made as uvicorn makes it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        return None

    config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none")
    try:
        probe = kind(config, ServerState(), {}, object())
    except Exception as error:
        return [f"{kind.__name__}(config, server_state, app_state, _loop): {error}"]
    return [f"{kind.__name__}.{name}" for name in wanted if not hasattr(probe, name)]


def _parameters(method: Any) -> tuple[str, ...] | None:
    """Names of a method's parameters, `self` left out; None if there is no such method."""
    if not callable(method):
        return None
    return tuple(inspect.signature(method).parameters)[1:]


def _names(kind: Any) -> set[str]:
    """Names a class has, and names its initialiser sets."""
    return {*dir(kind), *kind.__init__.__code__.co_names}
