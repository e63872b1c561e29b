"""From a request's method and URL to its route, and which routes may be served without ASGI.

A fixed path is found by one dict lookup, a path with parameters by walking a tree of segments. No
list of patterns is ever scanned.

A route opts into the fast path by `is_fastpath`. Its requests run without a task of their own (see
`fastpath`), so its handler must be a coroutine function that needs no current task and does not
stream. What can be seen of that is checked before the first request.
"""

import dis
import inspect
import typing
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any, Final

from ksana.api.core.routing import AnyRoute, FoundRoute, Route, Stream
from ksana.base.errors import InvalidError, KsanaError, MethodError, NotFoundError


class _Node:
    __slots__ = ("children", "methods", "parameter", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: dict[str, AnyRoute] = {}
        self.rest: dict[str, AnyRoute] = {}


class Router:
    """All routes. Built once; finding takes no lock and no regex."""

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        self.routes = list(routes)
        self._fixed: dict[str, dict[str, AnyRoute]] = {}
        self._root = _Node()
        for route in self.routes:
            self._add(route)

    def find(self, method: str, path: str, raw_path: bytes) -> tuple[AnyRoute, dict[str, Any]]:
        """Find the route and its converted parameters. Raise 404, 405 (with what is allowed) or 400
        INVALID_ID."""
        methods = self._fixed.get(path)
        if methods is not None:
            return methods.get(method) or _find_other(method, path, methods), {}
        if b"%" in raw_path:
            # Decoded by segment, so that %2F stays inside an id and bad UTF-8 is seen and not
            # replaced.
            segments = [_unquote(segment) for segment in raw_path.split(b"/")]
        else:
            segments = path.split("/")
        found = _walk(self._root, segments, 1)
        if found is None:
            raise NotFoundError(f"there is nothing at {path[:200]}; /openapi.json lists every path")
        methods, rest_from = found
        route = methods.get(method) or _find_other(method, path, methods)
        params: dict[str, Any] = {}
        for at, (literal, name) in enumerate(route.segments, 1):
            if name is None:
                continue
            text = "/".join(segments[rest_from:]) if literal == "rest" else segments[at]
            try:
                params[name] = route.converters[name](text)
            except ValueError as error:
                raise InvalidError(str(error), code="INVALID_ID", field=name) from None
        return route, params

    def _add(self, route: AnyRoute) -> None:
        if not route.converters:
            methods = self._fixed.setdefault(route.path, {})
            if route.method in methods:
                raise ValueError(f"two routes for {route.method} {route.path}")
            methods[route.method] = route
        node = self._root
        for literal, name in route.segments:
            if name is None:
                node = node.children.setdefault(literal, _Node())
            elif literal == "rest":
                _put(node.rest, route)
                return
            else:
                node.parameter = node.parameter or _Node()
                node = node.parameter
        _put(node.methods, route)


def _put(methods: dict[str, AnyRoute], route: AnyRoute) -> None:
    if route.method in methods:
        raise ValueError(f"two routes for {route.method} {route.path}")
    methods[route.method] = route


def _walk(
    node: _Node, segments: list[str], at: int
) -> tuple[dict[str, AnyRoute], int | None] | None:
    """Literal segments win over parameters, parameters over the rest."""
    if at == len(segments):
        return (node.methods, None) if node.methods else None
    child = node.children.get(segments[at])
    if child is not None:
        found = _walk(child, segments, at + 1)
        if found is not None:
            return found
    if node.parameter is not None and segments[at]:
        found = _walk(node.parameter, segments, at + 1)
        if found is not None:
            return found
    return (node.rest, at) if node.rest else None


def _find_other(method: str, path: str, methods: dict[str, AnyRoute]) -> AnyRoute:
    """The route for a method that has none of its own: HEAD is GET without its body."""
    if method == "HEAD" and "GET" in methods:
        return methods["GET"]
    allowed = sorted({*methods, *(["HEAD"] if "GET" in methods else [])} - {"WEBSOCKET"})
    if not allowed:
        raise InvalidError(f"{path[:200]} is a WebSocket: ask for an upgrade")
    raise MethodError(
        f"{method} is not possible here; allowed: {', '.join(allowed)}", allow=allowed
    )


def _unquote(segment: bytes) -> str:
    out = bytearray()
    parts = segment.split(b"%")
    out += parts[0]
    for part in parts[1:]:
        try:
            out += bytes.fromhex(part[:2].decode("ascii")) + part[2:]
        except ValueError:
            raise InvalidError("the path holds a broken % escape", code="INVALID_ID") from None
    try:
        return out.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidError("the path is not UTF-8", code="INVALID_ID") from None


NEEDS_A_TASK: Final = frozenset({"timeout", "timeout_at", "wait_for", "current_task", "TaskGroup"})
"""What `asyncio` offers that fails where no task is current."""


class FastpathRoutes:
    """The routes that opted in, by method and URL. Raise ValueError for one that cannot work."""

    def __init__(self, router: Router) -> None:
        self._router = router
        chosen = [
            route for route in router.routes if isinstance(route, Route) and route.is_fastpath
        ]
        for route in chosen:
            check_route(route)
        self._methods = frozenset(route.method.encode() for route in chosen)
        self.fixed: dict[tuple[bytes, bytes], tuple[FoundRoute, str]] = {
            (route.method.encode(), route.path.encode()): ((route, {}), route.path)
            for route in chosen
            if not route.converters
        }
        """Those of a fixed path, by method and URL: looked at first."""

    def find(self, method: bytes, url: bytes) -> tuple[FoundRoute, str] | None:
        """The route with parameters that a request is for, and its path; None if it must go through
        ASGI."""
        if method not in self._methods or b"?" in url or b"%" in url or not url.isascii():
            return None
        path = url.decode("ascii")
        try:
            route, params = self._router.find(method.decode("ascii"), path, url)
        except KsanaError:  # the way through ASGI answers it
            return None
        if isinstance(route, Route) and route.is_fastpath:
            return (route, params), path
        return None


def check_route(route: Route) -> None:
    """Raise ValueError if the route cannot be served without a task."""
    name = f"{route.method} {route.path}"
    if not inspect.iscoroutinefunction(route.handler):
        raise ValueError(f"{name} is on the fast path: its handler must be a coroutine function")
    if "text/event-stream" in route.media_types or Stream in _return_types(route.handler):
        raise ValueError(f"{name} is on the fast path, which does not stream")
    used = sorted(_asyncio_names(inspect.unwrap(route.handler).__code__) & NEEDS_A_TASK)
    if used:
        raise ValueError(f"{name} is on the fast path, where asyncio.{used[0]} fails: no task runs")


def _return_types(handler: Any) -> set[Any]:
    try:
        declared = typing.get_type_hints(handler).get("return")
    except (NameError, TypeError):  # names that exist for the type checker only
        return set()
    return {declared, *typing.get_args(declared)}


def _asyncio_names(code: CodeType) -> set[str]:
    """What the code, and code nested in it, takes from the `asyncio` module."""
    names: set[str] = set()
    before: Any = None
    for step in dis.get_instructions(code):
        if before == "asyncio" and step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            names.add(str(step.argval))
        before = step.argval
    for nested in _nested(code):
        names |= _asyncio_names(nested)
    return names


def _nested(code: CodeType) -> Iterator[CodeType]:
    return (value for value in code.co_consts if isinstance(value, CodeType))
