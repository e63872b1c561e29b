"""API keys and settings over HTTP."""

from collections.abc import AsyncIterator

import httpx
import pytest

from ksana.api.core import keys, setting_list
from ksana.api.core.setting_list import SettingShown
from tests.api.ground import CoreServices, client_of


@pytest.fixture
async def client(core: CoreServices) -> AsyncIterator[httpx.AsyncClient]:
    shown = [SettingShown("server.port", "7100", "default"), SettingShown("x.key", "***", "env")]
    routes = [*keys.routes(core.keys), *setting_list.routes(shown)]
    async with client_of(core.app(*routes)) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.spec("X19")
async def test_the_text_of_a_key_is_answered_where_it_is_made_and_nowhere_else(
    client: httpx.AsyncClient,
) -> None:
    made = await client.post("/api/v1/keys", json={"name": "ops", "scopes": ["*:admin"]})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    text = made.json()["key"]
    listed = await client.get("/api/v1/keys", headers=bearer(text))
    assert [key["name"] for key in listed.json()["keys"]] == ["ops"]
    assert text.split("_")[2] not in listed.text
    assert "hash" not in listed.text


@pytest.mark.spec("X19")
async def test_keys_are_for_those_who_may_do_everything(
    core: CoreServices, client: httpx.AsyncClient
) -> None:
    some = (await core.keys.create_key("some", ["tasks:admin", "queue:write"])).text
    body = {"name": "more", "scopes": ["*:admin"]}
    assert (await client.post("/api/v1/keys", json=body)).status_code == 401
    for method, path in (
        ("GET", "/api/v1/keys"),
        ("POST", "/api/v1/keys"),
        ("DELETE", "/api/v1/keys/abc"),
        ("GET", "/api/v1/settings"),
    ):
        sent = body if method == "POST" else None
        answer = await client.request(method, path, json=sent, headers=bearer(some))
        assert answer.status_code == 403, (method, path)
    assert len(await core.keys.list_keys()) == 1


async def test_a_caller_is_told_who_it_is_and_what_it_may(
    core: CoreServices, client: httpx.AsyncClient
) -> None:
    nobody = (await client.get("/api/v1/keys/self")).json()
    assert (nobody["id"], nobody["name"]) == (None, None)
    assert "*:admin" in nobody["allowed"]
    made = await core.keys.create_key("reader", ["queue:read"])
    answer = await client.get("/api/v1/keys/self", headers=bearer(made.text))
    assert answer.json()["name"] == "reader"
    assert answer.json()["allowed"] == ["any:read", "queue:read"]
    assert (await client.get("/api/v1/keys/self")).status_code == 401


@pytest.mark.spec("X19")
async def test_a_revoked_key_is_refused_at_once_and_cannot_be_revoked_twice(
    core: CoreServices, client: httpx.AsyncClient
) -> None:
    admin = (await core.keys.create_key("admin", ["*:admin"])).text
    other = await core.keys.create_key("other", ["queue:read"])
    path = f"/api/v1/keys/{other.key.id}"
    assert (await client.delete(path, headers=bearer(admin))).json() == {"revoked": True}
    assert (await client.get("/api/v1/keys/self", headers=bearer(other.text))).status_code == 401
    assert (await client.delete(path, headers=bearer(admin))).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"name": "", "scopes": ["*:admin"]},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["moon:read"]},
        {"name": "x", "scopes": ["*:admin"], "secret": "mine"},
        {"name": "a\nb", "scopes": ["*:admin"]},
    ],
)
async def test_a_key_that_makes_no_sense_is_refused(
    core: CoreServices, client: httpx.AsyncClient, body: dict[str, object]
) -> None:
    assert (await client.post("/api/v1/keys", json=body)).status_code == 400
    assert await core.keys.list_keys() == []


async def test_settings_are_listed_with_their_origin(client: httpx.AsyncClient) -> None:
    assert (await client.get("/api/v1/settings")).json() == {
        "settings": [
            {"name": "server.port", "value": "7100", "origin": "default"},
            {"name": "x.key", "value": "***", "origin": "env"},
        ]
    }
