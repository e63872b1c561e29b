"""The API page at /docs: our own small script renders /openapi.json. Nothing is fetched from
elsewhere. And where `/` leads."""

from collections.abc import Iterable
from importlib import resources
from typing import Final

from ksana.api.core.routing import AnyRoute, Call, Content, Headers, Route

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
