"""Who may pass: keys, scopes, hosts and origins (X19)."""

import itertools
from pathlib import Path

import httpx
import pytest

from ksana.api.core.services import ApiSettings
from ksana.base.clock import VirtualClock
from ksana.base.errors import InvalidError, NotFoundError, StoreDownError, UnauthenticatedError
from ksana.base.instant import SECOND
from ksana.service.core.keys import LEVELS, SURFACES, KeyRing, spell_out
from tests.api.ground import CoreServices, client_of, open_house
from tests.api.test_refusals import THINGS, check_refusal


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.spec("X19")
async def test_doors_are_open_on_loopback_until_a_key_exists(
    core: CoreServices, client: httpx.AsyncClient
) -> None:
    assert (await client.get(THINGS)).status_code == 200
    made = await core.keys.create_key("first", ["*:admin"])
    answer = await client.get(THINGS)
    check_refusal(answer, 401, "UNAUTHENTICATED")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert (await client.get(THINGS, headers=bearer(made.text))).status_code == 200
    await core.keys.revoke_key(made.key.id)
    check_refusal(await client.get(THINGS, headers=bearer(made.text)), 401, "UNAUTHENTICATED")
    check_refusal(await client.get(THINGS), 401, "UNAUTHENTICATED")


@pytest.mark.spec("X19")
async def test_a_public_bind_is_closed_even_without_any_key(tmp_path: Path) -> None:
    closed = ApiSettings(bind_is_loopback=False, open_without_keys=False)
    async with open_house(tmp_path, closed) as core, client_of(core.app()) as client:
        check_refusal(await client.get(THINGS), 401, "UNAUTHENTICATED")
        assert (await client.get("/health", headers={"host": "ksana.example.org"})).text == "ok"


@pytest.mark.spec("X19")
async def test_a_key_is_taken_from_each_header(
    core: CoreServices, client: httpx.AsyncClient
) -> None:
    key = (await core.keys.create_key("k", ["queue:read"])).text
    for headers in (
        {"authorization": f"Bearer {key}"},
        {"authorization": f"ApiKey {key}"},
        {"authorization": f"apikey  {key} "},
        {"x-api-key": key},
    ):
        assert (await client.get(THINGS, headers=headers)).status_code == 200
    for headers in (
        {"authorization": f"Basic {key}"},
        {"authorization": "Bearer"},
        {"authorization": key},
        {"x-api-key": ""},
        {"x-api-key": key[:-1]},
        {"x-api-key": key + "0"},
        {"x-api-key": "ksana_"},
        {"x-api-key": key[6:]},
        {"x-api-key": "ksana_nobody_" + key.rpartition("_")[2]},
    ):
        check_refusal(await client.get(THINGS, headers=headers), 401, "UNAUTHENTICATED")


@pytest.mark.spec("X19")
async def test_a_key_without_the_scope_is_forbidden(
    core: CoreServices, client: httpx.AsyncClient
) -> None:
    reader = bearer((await core.keys.create_key("reader", ["queue:read"])).text)
    other = bearer((await core.keys.create_key("other", ["tasks:admin", "nodes:admin"])).text)
    everywhere = bearer((await core.keys.create_key("all", ["*:write"])).text)
    assert (await client.get(THINGS, headers=reader)).status_code == 200
    told = check_refusal(
        await client.post(THINGS, json={"name": "a"}, headers=reader), 403, "FORBIDDEN"
    )
    assert told["scope"] == "queue:write"
    check_refusal(await client.get(THINGS, headers=other), 403, "FORBIDDEN")
    check_refusal(await client.get("/api/v1/events", headers=reader), 403, "FORBIDDEN")
    assert (await client.get("/api/v1/events", headers=everywhere)).status_code == 200
    check_refusal(await client.delete(f"{THINGS}/1", headers=everywhere), 403, "FORBIDDEN")


@pytest.mark.spec("X19")
async def test_probes_need_no_key(core: CoreServices, client: httpx.AsyncClient) -> None:
    await core.keys.create_key("k", ["*:admin"])
    for path in ("/health", "/api/v1/healthz", "/readyz", "/version", "/docs", "/openapi.json"):
        assert (await client.get(path)).status_code == 200
    check_refusal(await client.get("/metrics"), 401, "UNAUTHENTICATED")


def test_scopes_are_spelled_out_with_lower_levels_and_all_surfaces() -> None:
    held = {"queue:write", "queue:read", "any:write", "any:read"}
    assert spell_out(["queue:write"]) == held
    everything = {
        f"{surface}:{level}"
        for surface, level in itertools.product((*SURFACES, "*", "any"), LEVELS)
    }
    assert spell_out(["*:admin"]) == everything
    assert spell_out(["queue:everything", "odd"]) == frozenset()


@pytest.mark.spec("X19")
async def test_only_the_hash_is_stored_and_names_and_scopes_are_checked(core: CoreServices) -> None:
    made = await core.keys.create_key(" ci ", ["queue:write", "queue:write"])
    secret = made.text.split("_")[2]
    (key,) = await core.keys.list_keys()
    assert (key.name, key.scopes) == ("ci", ("queue:write",))
    assert secret not in str(key)
    assert made.text.startswith(f"ksana_{key.id}_")
    for name, scopes in (
        ("", ["*:read"]),
        ("x" * 129, ["*:read"]),
        ("a\n", ["a:b"]),
        ("a", []),
        ("a", ["queue"]),
    ):
        with pytest.raises(InvalidError):
            await core.keys.create_key(name, scopes)
    with pytest.raises(NotFoundError):
        await core.keys.revoke_key("nobody")


@pytest.mark.spec("X19")
async def test_a_key_made_or_revoked_by_another_process_is_followed_within_seconds(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        elsewhere = KeyRing(core.store, clock)
        await core.keys.follow()
        assert not core.keys.any_made
        made = await elsewhere.create_key("k", ["*:read"])
        await clock.advance(4 * SECOND)
        await core.keys.follow()
        assert core.keys.recognise(made.text).name == "k"
        await elsewhere.revoke_key(made.key.id)
        await clock.advance(4 * SECOND)
        await core.keys.follow()
        with pytest.raises(UnauthenticatedError):
            core.keys.recognise(made.text)
        await elsewhere.close()


async def test_the_last_use_of_a_key_is_written_down(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        made = await core.keys.create_key("k", ["*:read"])
        core.keys.recognise(made.text)
        await clock.advance(5 * SECOND)
        await core.keys.follow()
        (key,) = await core.keys.list_keys()
        assert key.last_used_at == clock.now()


async def test_keys_too_old_to_trust_are_not_used_when_the_store_is_down(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:

        class DownStore:
            async def read(self, *args: object) -> None:
                raise StoreDownError("gone")

        await core.keys.create_key("k", ["*:read"])
        core.keys._store = DownStore()  # type: ignore[assignment]
        async with client_of(core.app()) as client:
            check_refusal(await client.get(THINGS), 401, "UNAUTHENTICATED")
            await clock.advance(5 * SECOND)
            check_refusal(await client.get(THINGS), 503, "STORE_DOWN")


@pytest.mark.spec("X19")
@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:7100", "[::1]:80", "LOCALHOST:1", "ksana.internal"]
)
async def test_own_hosts_are_served_on_loopback(tmp_path: Path, host: str) -> None:
    settings = ApiSettings(allowed_hosts=("ksana.internal",))
    async with open_house(tmp_path, settings) as core, client_of(core.app()) as client:
        assert (await client.get(THINGS, headers={"host": host})).status_code == 200


@pytest.mark.spec("X19")
@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:7100", "", "[::2]", "[::1"]
)
async def test_a_foreign_host_is_forbidden_on_loopback(
    client: httpx.AsyncClient, host: str
) -> None:
    check_refusal(await client.get("/health", headers={"host": host}), 403, "FORBIDDEN")


@pytest.mark.spec("X19")
async def test_a_foreign_origin_is_forbidden_and_our_own_is_not(tmp_path: Path) -> None:
    settings = ApiSettings(allowed_origins=("https://ops.example",))
    async with open_house(tmp_path, settings) as core, client_of(core.app()) as client:
        for origin in ("http://localhost:7100", "https://localhost:7100", "https://ops.example"):
            assert (await client.get(THINGS, headers={"origin": origin})).status_code == 200
        for origin in (
            "null",
            "http://localhost:3000",
            "http://evil.example",
            "file://",
            "https://ops.example.evil",
        ):
            check_refusal(await client.get(THINGS, headers={"origin": origin}), 403, "FORBIDDEN")
            check_refusal(
                await client.post(THINGS, json={"name": "a"}, headers={"origin": origin}),
                403,
                "FORBIDDEN",
            )
