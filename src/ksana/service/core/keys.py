"""API keys (X19): made once, kept as a hash, checked against a copy in memory of the store's.

A key is `ksana_<id>_<secret>`. The secret has 256 random bits, so a fast hash is right, and it is
compared in constant time. The copy is at most `STALE_US` old when it is asked; a key revoked
elsewhere dies within that time, and at once where a signal tells of it.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import InvalidError, NotFoundError, UnauthenticatedError
from ksana.base.ids import new_uid
from ksana.base.instant import MILLISECOND, MINUTE, SECOND, Micros
from ksana.ports.store import ApiKey, Store

SURFACES: Final = ("tasks", "queue", "governance", "nodes")
ANY: Final = "any"
"""For routes that serve several surfaces and look themselves which of them a key may see."""
LEVELS: Final = ("read", "write", "admin")
REFRESH_US: Final = 500 * MILLISECOND
"""Age of the copy at which it is renewed in the background."""
STALE_US: Final = SECOND
"""Age of the copy at which a caller waits for the new one. So long after a change it binds
everywhere, whoever made it."""
TOUCH_US: Final = MINUTE
"""How often at most a key's last use is written to the store."""
MAX_NAME: Final = 128
_PREFIX: Final = "ksana_"
_UNKNOWN: Final = "this key is not known, or it was revoked"


class Principal(msgspec.Struct, frozen=True):
    """Who calls, and everything it may do."""

    key_id: str
    name: str
    allowed: frozenset[str]
    """Every `surface:level` it holds, spelled out."""

    def may(self, scope: str) -> bool:
        """Whether the scope is held. `*:read` needs a key for all surfaces."""
        return scope in self.allowed


class MadeKey(msgspec.Struct, frozen=True):
    """A new key; `text` is shown this once and cannot be had again."""

    key: ApiKey
    text: str


class KeyRing:
    """Makes, lists, revokes and recognises keys."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, tuple[bytes, Principal]] = {}
        self._recognised: dict[str, Principal] = {}
        """Keys that were presented and are good, as long as the copy in memory is the same."""
        self.any_made = False
        """Whether a key was ever made. Revoking the last one does not switch auth off again."""
        self.fresh_until: Micros = 0
        """Until then, by the monotonic clock, `any_made` and `recognise` can be asked at once; who
        asks later calls `follow` first."""
        self._loaded_at: Micros | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._touched: dict[str, Micros] = {}
        self._used: set[str] = set()

    async def create_key(self, name: str, scopes: Iterable[str]) -> MadeKey:
        """Make a key. From the first one on every call needs one."""
        name = name.strip()
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise InvalidError(
                f"a key's name has 1 to {MAX_NAME} printable characters", field="name"
            )
        checked = tuple(dict.fromkeys(check_scope(scope) for scope in scopes))
        if not checked:
            raise InvalidError("a key needs at least one scope such as queue:write", field="scopes")
        key_id, secret = new_uid()[:12], new_uid() + new_uid()
        key = await self._store.transact(_insert, key_id, name, hash_secret(secret), checked)
        await self.refresh()
        return MadeKey(key=key, text=f"{_PREFIX}{key_id}_{secret}")

    async def list_keys(self) -> list[ApiKey]:
        """All keys ever made, revoked ones included; no secrets."""
        return await self._store.read(_list_keys)

    async def revoke_key(self, key_id: str) -> None:
        """End a key. Raise NotFoundError if there is no live key of that id."""
        if not await self._store.transact(_revoke, key_id):
            raise NotFoundError(f"there is no live key {key_id[:64]!r}")
        await self.refresh()

    @property
    def is_fresh(self) -> bool:
        """Whether `any_made` and `recognise` can be asked without waiting."""
        return self._clock.monotonic() < self.fresh_until

    async def follow(self) -> None:
        """Renew the copy if it is old: at once if it is stale, else in the background."""
        age = STALE_US if self._loaded_at is None else self._clock.monotonic() - self._loaded_at
        if age < REFRESH_US:
            return
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_quietly())
        if age >= STALE_US:
            # Shielded: the task serves every caller who waits, and one of them may be cancelled.
            await asyncio.shield(self._refreshing)
            if self._loaded_at is None or self._clock.monotonic() - self._loaded_at >= STALE_US:
                await self.refresh()  # the background one failed: raise its reason

    def expire(self) -> None:
        """Keys were changed elsewhere: whoever asks next waits for a new copy."""
        self._loaded_at, self.fresh_until = None, 0

    async def refresh(self) -> None:
        """Read all keys from the store. Uses are written by the background refresh alone."""
        keys = await self._store.read(_list_keys)
        self.any_made = bool(keys)
        self._recognised = {}
        self._known = {
            key.id: (
                bytes.fromhex(key.secret_hash),
                Principal(key.id, key.name, spell_out(key.scopes)),
            )
            for key in keys
            if key.revoked_at is None
        }
        self._loaded_at = self._clock.monotonic()
        self.fresh_until = self._loaded_at + REFRESH_US

    def recognise(self, text: str) -> Principal:
        """Find whose key this is, in the copy in memory. Raise UnauthenticatedError."""
        recognised = self._recognised.get(text)
        if recognised is not None:
            self._used.add(recognised.key_id)
            return recognised
        key_id, _, secret = text.removeprefix(_PREFIX).partition("_")
        found = self._known.get(key_id)
        # An unknown id costs the same hash as a known one.
        expected = found[0] if found else bytes(32)
        presented = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
        if (
            not hmac.compare_digest(presented, expected)
            or found is None
            or not text.startswith(_PREFIX)
        ):
            raise UnauthenticatedError(_UNKNOWN)
        self._used.add(key_id)
        self._recognised[text] = found[1]
        return found[1]

    async def close(self) -> None:
        """Stop the background refresh."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    async def _refresh_quietly(self) -> None:
        """Refresh and forget failures: whoever waits sees them by asking again, and a copy too old
        is not used."""
        try:
            await self.refresh()
            await self._write_uses()
        except Exception:
            return

    async def _write_uses(self) -> None:
        now = self._clock.monotonic()
        due = [key for key in self._used if now - self._touched.get(key, -TOUCH_US) >= TOUCH_US]
        self._used.clear()
        if due:
            self._touched.update(dict.fromkeys(due, now))
            await self._store.transact(_touch, due)


def check_scope(scope: str) -> str:
    """Check `surface:level`. Raise InvalidError saying what is allowed."""
    surface, _, level = scope.partition(":")
    if (surface in SURFACES or surface == "*") and level in LEVELS:
        return scope
    raise InvalidError(
        f"{scope[:64]!r} is not a scope: write surface:level with surface {', '.join(SURFACES)} "
        f"or * and level {', '.join(LEVELS)}",
        field="scopes",
    )


def spell_out(scopes: Iterable[str]) -> frozenset[str]:
    """List everything that the scopes allow: levels include the lower ones, `*` includes every
    surface and itself. `any` is held with whatever surface."""
    allowed: set[str] = set()
    for scope in scopes:
        surface, _, level = scope.partition(":")
        if level not in LEVELS:
            continue  # written by a newer program: what is not understood allows nothing
        for surface_name in (*SURFACES, "*", ANY) if surface == "*" else (surface, ANY):
            allowed.update(f"{surface_name}:{lower}" for lower in LEVELS[: LEVELS.index(level) + 1])
    return frozenset(allowed)


def hash_secret(secret: str) -> str:
    """Hash a secret as it is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _insert(tx: Any, key_id: str, name: str, secret_hash: str, scopes: tuple[str, ...]) -> ApiKey:
    key: ApiKey = tx.keys.insert(key_id, name, secret_hash, scopes)
    tx.events.append("KEY", key_id, "KEY_CREATED", {"name": name, "scopes": scopes})
    return key


def _list_keys(tx: Any) -> list[ApiKey]:
    keys: list[ApiKey] = tx.keys.list_keys()
    return keys


def _revoke(tx: Any, key_id: str) -> bool:
    if not tx.keys.revoke_if_live(key_id):
        return False
    tx.events.append("KEY", key_id, "KEY_REVOKED")
    return True


def _touch(tx: Any, key_ids: list[str]) -> None:
    for key_id in key_ids:
        tx.keys.touch(key_id)
