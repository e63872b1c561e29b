"""Which routes may be served without ASGI: the index the server asks, and the check at start-up.

A route opts in by `is_fastpath`. Its requests run without a task of their own (see `fastpath`), so
its handler must be a coroutine function that needs no current task and does not stream. What can be
seen of that is checked before the first request.
"""

import dis
import inspect
import typing
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

from ksana.api.core.routing import FoundRoute, Route, Router, Stream
from ksana.base.errors import KsanaError

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
        self._fixed: dict[tuple[bytes, bytes], tuple[FoundRoute, str]] = {
            (route.method.encode(), route.path.encode()): ((route, {}), route.path)
            for route in chosen
            if not route.converters
        }

    def find(self, method: bytes, url: bytes) -> tuple[FoundRoute, str] | None:
        """The route a request is for and its path; None if it must go through ASGI."""
        found = self._fixed.get((method, url))
        if found is not None:
            return found
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
