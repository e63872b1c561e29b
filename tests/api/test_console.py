"""The console's files as they are served."""

import gzip
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from ksana.api.console import pages
from tests.api.ground import CoreServices, client_of


@pytest.fixture
async def console(core: CoreServices) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(core.app(*pages.routes())) as client:
        yield client


async def load_page(client: httpx.AsyncClient) -> tuple[httpx.Response, list[str]]:
    answer = await client.get("/ui/")
    assert answer.status_code == 200
    return answer, re.findall(r'(?:src|href)="\./([^"]+)"', answer.text)


async def test_every_way_in_leads_to_the_page_whatever_the_prefix(
    console: httpx.AsyncClient,
) -> None:
    root, short = await console.get("/"), await console.get("/ui")
    assert (root.status_code, short.status_code) == (302, 302)
    # Relative to /prefix/ and to /prefix/ui, both are /prefix/ui/.
    for place in ("http://a.test/", "http://a.test/some/where/"):
        base = httpx.URL(place)
        led = {
            str(base.join(root.headers["location"])),
            str(base.join("ui").join(short.headers["location"])),
        }
        assert led == {f"{place}ui/"}


async def test_the_page_allows_nothing_from_elsewhere_and_nothing_written_into_it(
    console: httpx.AsyncClient,
) -> None:
    page, _ = await load_page(console)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-cache"
    again = await console.get("/ui/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_its_files_are_kept_for_ever_and_come_packed(console: httpx.AsyncClient) -> None:
    _, names = await load_page(console)
    assert len(names) == 3
    for name in names:
        plain = await console.get(f"/ui/{name}", headers={"accept-encoding": "identity"})
        packed = await console.get(f"/ui/{name}", headers={"accept-encoding": "gzip"})
        assert plain.status_code == packed.status_code == 200
        assert "immutable" in plain.headers["cache-control"]
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content, "httpx unpacked it"
        assert int(packed.headers["content-length"]) == len(gzip.compress(plain.content, mtime=0))
        assert plain.headers["vary"] == "accept-encoding"


@pytest.mark.parametrize(
    "path",
    [
        "/ui/sources.sha256",
        "/ui/../keys.py",
        "/ui/%2e%2e/pages.py",
        "/ui/..%2fpages.py",
        "/ui/x.js",
    ],
)
async def test_nothing_but_its_files_is_served(console: httpx.AsyncClient, path: str) -> None:
    assert (await console.get(path)).status_code == 404


async def test_the_page_needs_no_key_and_tells_nothing(
    core: CoreServices, console: httpx.AsyncClient
) -> None:
    await core.keys.create_key("first", ["*:admin"])
    assert (await console.get("/api/v1/stats")).status_code == 401
    page, _ = await load_page(console)
    assert "first" not in page.text
