"""The console's files at `/ui/`. They are read once, when the server starts; nothing in a request
leads to a path of the file system.

Every file but the page itself has its hash in its name and may be kept for ever. Addresses are
relative, so that the console works behind any path prefix.
"""

import gzip
import hashlib
from functools import cached_property
from importlib import resources
from typing import Final

from ksana.api.core.docs import CONSOLE, PAGE_HEADERS
from ksana.api.core.routing import AnyRoute, Call, Content, Handler, Headers, Route

PAGE: Final = "index.html"
MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""What is served. The build leaves other files too: its notes."""

_KEPT: Final[Headers] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"public, max-age=31536000, immutable"),
)
_VARY: Final = (b"vary", b"accept-encoding")


class ConsoleFile:
    """One file, ready to be sent."""

    def __init__(self, name: str, body: bytes) -> None:
        self._body = body
        self._media_type = MEDIA_TYPES["." + name.rpartition(".")[2]]
        self._etag = b'"' + hashlib.sha256(body).hexdigest()[:20].encode() + b'"'
        self._headers = (
            (b"etag", self._etag),
            _VARY,
            *(PAGE_HEADERS if name == PAGE else _KEPT),
        )

    @cached_property
    def _packed(self) -> bytes:
        return gzip.compress(self._body, mtime=0)

    async def show(self, call: Call) -> Content:
        """Answer the file, packed for those who can unpack it; 304 for those who have it."""
        if self._etag.decode() in (call.header("if-none-match") or ""):
            return Content(b"", self._media_type, 304, self._headers)
        if "gzip" in (call.header("accept-encoding") or ""):
            headers = (*self._headers, (b"content-encoding", b"gzip"))
            return Content(self._packed, self._media_type, 200, headers)
        return Content(self._body, self._media_type, 200, self._headers)


def routes() -> list[AnyRoute]:
    """The page and its files."""
    folder = resources.files("ksana.api.console") / "static"
    found = {
        path.name: ConsoleFile(path.name, path.read_bytes())
        for path in folder.iterdir()
        if path.is_file() and "." + path.name.rpartition(".")[2] in MEDIA_TYPES
    }

    async def lead(call: Call) -> Content:
        return Content(b"", "", 302, ((b"location", b"ui/"),))

    def route(path: str, handler: Handler) -> Route:
        return Route("GET", path, handler, scope=None, summary="The console", hidden=True)

    page = found.pop(PAGE)
    return [
        route(CONSOLE, lead),
        route(f"{CONSOLE}/", page.show),
        *(route(f"{CONSOLE}/{name}", file.show) for name, file in found.items()),
    ]
