"""API keys over HTTP: who one is, list, make, revoke (X19). A key's text is answered once, where it
is made."""

from typing import Annotated, Any, Final

import msgspec

from ksana.api.core.routing import Answer, AnyRoute, Call, Handler, Route
from ksana.base.instant import Instant, format_instant
from ksana.ports.store import ApiKey
from ksana.service.core.keys import MAX_NAME, KeyRing, spell_out

PATH: Final = "/api/v1/keys"
_ADMIN: Final = "*:admin"
_TAGS: Final = ("keys",)


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to make; a scope is `surface:level`."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
    scopes: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(min_length=1, max_length=16)
    ]


class KeyShown(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    name: str
    scopes: list[str]
    created_at: str
    last_used_at: str | None
    revoked_at: str | None


class KeyMade(KeyShown, frozen=True, kw_only=True):
    """A new key. `key` is what callers send; it cannot be had again."""

    key: str


class KeyList(msgspec.Struct, frozen=True):
    """All keys ever made, revoked ones too."""

    keys: list[KeyShown]


class Caller(msgspec.Struct, frozen=True):
    """Who calls, and what it may do. `id` is null while no key is needed."""

    id: str | None
    name: str | None
    allowed: list[str]


class KeyRevoked(msgspec.Struct, frozen=True):
    """The key is revoked."""

    revoked: bool


def routes(keys: KeyRing) -> list[AnyRoute]:
    """All of them."""

    async def show_caller(call: Call) -> Caller:
        who = call.principal
        if who is None:
            return Caller(None, None, sorted(spell_out([_ADMIN])))
        return Caller(who.key_id, who.name, sorted(who.allowed))

    async def list_keys(call: Call) -> KeyList:
        return KeyList([KeyShown(**_members(key)) for key in await keys.list_keys()])

    async def make_key(call: Call, body: NewKey) -> Answer:
        made = await keys.create_key(body.name, body.scopes)
        return Answer(
            201, KeyMade(**_members(made.key), key=made.text), ((b"cache-control", b"no-store"),)
        )

    async def revoke_key(call: Call) -> KeyRevoked:
        await keys.revoke_key(call.params["id"])
        return KeyRevoked(True)

    def route(method: str, path: str, handler: Handler, summary: str, **more: Any) -> Route:
        scope = more.pop("scope", _ADMIN)
        return Route(method, PATH + path, handler, scope=scope, summary=summary, tags=_TAGS, **more)

    return [
        route("GET", "", list_keys, "List keys, without their secrets", answers={200: KeyList}),
        route("POST", "", make_key, "Make a key", body=NewKey, answers={201: KeyMade}),
        route("DELETE", "/{id}", revoke_key, "Revoke a key", answers={200: KeyRevoked}),
        route(
            "GET",
            "/self",
            show_caller,
            "Say who calls, and what it may do",
            scope="any:read",
            answers={200: Caller},
        ),
    ]


def _members(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": list(key.scopes),
        "created_at": format_instant(key.created_at),
        "last_used_at": _show(key.last_used_at),
        "revoked_at": _show(key.revoked_at),
    }


def _show(at: Instant | None) -> str | None:
    return None if at is None else format_instant(at)
