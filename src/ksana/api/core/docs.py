"""The API's description at /openapi.json, and the page at /docs on which our own small script
renders it. Nothing is fetched from elsewhere. And where `/` leads."""

from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any, Final

import msgspec

from ksana.api.core.routing import AnyRoute, Call, Content, Headers, Route

FindWords = Callable[[], Mapping[str, Any]]
"""Answers the `Words` of a surface: what the description says of its members. Loaded with it."""

CSP: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Final[Headers] = (
    (b"content-security-policy", CSP),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
CONSOLE: Final = "/ui"
OPENAPI: Final = "/openapi.json"
_FILES: Final = {
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/docs/docs.css": ("docs.css", "text/css; charset=utf-8"),
}


def routes() -> list[AnyRoute]:
    """The page, its script and its style."""
    folder = resources.files("ksana.api.core") / "static"
    return [
        _route(path, Content((folder / name).read_bytes(), media_type, headers=PAGE_HEADERS))
        for path, (name, media_type) in _FILES.items()
    ]


def openapi_route(described: list[Route], version: str, words: Mapping[str, FindWords]) -> Route:
    """The route that answers the description; it is built when first asked for. `words` are found
    by the names of the surfaces."""
    ready: list[bytes] = []

    async def describe_api(call: Call) -> Content:
        if not ready:
            from ksana.api.core.openapi import describe

            found = {surface: find() for surface, find in words.items()}
            ready.append(msgspec.json.encode(describe([*described, own], version, found)))
        return Content(ready[0], "application/json")

    own = Route(
        "GET",
        OPENAPI,
        describe_api,
        scope=None,
        summary="This description",
        tags=("probes",),
        answers={200: dict[str, Any]},
    )
    return own


def root_route(routes: Iterable[AnyRoute]) -> Route:
    """Who asks for `/` is led to the console, or where there is none to the API page."""
    has_console = any(route.path.startswith(CONSOLE) for route in routes)
    # Relative: a proxy may serve us below a path of its own.
    place = f"{CONSOLE[1:]}/" if has_console else "docs"

    async def lead(call: Call) -> Content:
        return Content(b"", "", 302, ((b"location", place.encode()),))

    return Route("GET", "/", lead, scope=None, summary="Lead to the console", hidden=True)


def _route(path: str, content: Content) -> Route:
    async def show(call: Call) -> Content:
        return content

    return Route("GET", path, show, scope=None, summary="The API page", hidden=True)
