"""The ring of API keys over a store in memory, on the virtual clock: what a key opens, and how old
the copy may be that says so."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import InvalidError, NotFoundError, StoreDownError, UnauthenticatedError
from ksana.base.instant import MILLISECOND, SECOND
from ksana.ports.store import ApiKey
from ksana.service.core.keys import (
    MAX_NAME,
    REFRESH_US,
    STALE_US,
    TOUCH_US,
    KeyRing,
    check_scope,
    hash_secret,
    spell_out,
)

pytestmark = pytest.mark.spec("X19")


class Keys:
    """The store port as far as the ring uses it, and its table of keys."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.rows: dict[str, ApiKey] = {}
        self.touched: list[tuple[int, str]] = []
        self.told: list[tuple[Any, ...]] = []
        self.reads = 0
        self.down: Exception | None = None
        self.turns = 0
        self.keys = self
        self.events = SimpleNamespace(append=lambda *fact: self.told.append(fact))

    async def transact(self, fn: Any, *args: Any) -> Any:
        return fn(self, *args)

    async def read(self, fn: Any, *args: Any) -> Any:
        self.reads += 1
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.down:
            raise self.down
        return fn(self, *args)

    def insert(self, key_id: str, name: str, secret_hash: str, scopes: tuple[str, ...]) -> ApiKey:
        self.rows[key_id] = ApiKey(
            id=key_id,
            name=name,
            secret_hash=secret_hash,
            scopes=scopes,
            created_at=self._clock.now(),
            last_used_at=None,
            revoked_at=None,
        )
        return self.rows[key_id]

    def list_keys(self) -> list[ApiKey]:
        return list(self.rows.values())

    def revoke_if_live(self, key_id: str) -> bool:
        row = self.rows.get(key_id)
        if row is None or row.revoked_at is not None:
            return False
        self.rows[key_id] = msgspec.structs.replace(row, revoked_at=self._clock.now())
        return True

    def touch(self, key_id: str) -> None:
        self.touched.append((self._clock.monotonic(), key_id))


@pytest.fixture
def store(clock: VirtualClock) -> Keys:
    return Keys(clock)


@pytest.fixture
def ring(store: Keys, clock: VirtualClock) -> KeyRing:
    return KeyRing(store, clock)  # type: ignore[arg-type]


async def test_a_key_is_recognised_by_the_whole_of_its_text(ring: KeyRing, store: Keys) -> None:
    assert ring.any_made is False
    made = await ring.create_key("  ci ", ["queue:write", "queue:write", "tasks:read"])
    assert ring.any_made is True
    assert made.key.name == "ci"
    assert made.key.scopes == ("queue:write", "tasks:read")
    assert made.text.startswith(f"ksana_{made.key.id}_")
    assert len(made.key.id) == 12
    secret = made.text.rpartition("_")[2]
    assert len(secret) >= 64
    assert store.rows[made.key.id].secret_hash == hash_secret(secret)
    who = ring.recognise(made.text)
    assert (who.key_id, who.name) == (made.key.id, "ci")
    assert who.may("queue:read")
    assert not who.may("tasks:write")
    assert ring.recognise(made.text) is who
    for wrong in (
        made.text[:-1],
        made.text.removeprefix("ksana_"),
        made.text.replace(made.key.id, "x" * 12),
        f"ksana_{made.key.id}_",
        f"ksana_{made.key.id}",
        "",
        "ksana_\udcff_\udcff",
    ):
        with pytest.raises(UnauthenticatedError):
            ring.recognise(wrong)
    assert store.told == [
        ("KEY", made.key.id, "KEY_CREATED", {"name": "ci", "scopes": made.key.scopes})
    ]


@pytest.mark.parametrize(
    ("name", "is_good"),
    [
        ("", False),
        (" ", False),
        ("x", True),
        ("x" * MAX_NAME, True),
        ("x" * (MAX_NAME + 1), False),
        ("a\nb", False),
        ("名", True),
    ],
)
async def test_the_name_of_a_key_is_bounded(ring: KeyRing, name: str, is_good: bool) -> None:
    if is_good:
        assert (await ring.create_key(name, ["*:read"])).key.name == name
        return
    with pytest.raises(InvalidError) as refusal:
        await ring.create_key(name, ["*:read"])
    assert refusal.value.field == "name"


async def test_a_key_needs_a_scope(ring: KeyRing, store: Keys) -> None:
    with pytest.raises(InvalidError) as refusal:
        await ring.create_key("x", [])
    assert refusal.value.field == "scopes"
    assert store.rows == {}


async def test_a_revoked_key_opens_nothing_and_auth_stays_on(ring: KeyRing, store: Keys) -> None:
    made = await ring.create_key("x", ["*:admin"])
    other = await ring.create_key("y", ["*:read"])
    ring.recognise(made.text)
    await ring.revoke_key(made.key.id)
    with pytest.raises(UnauthenticatedError):
        ring.recognise(made.text)
    assert ring.recognise(other.text).name == "y"
    with pytest.raises(NotFoundError):
        await ring.revoke_key(made.key.id)
    assert [fact for fact in store.told if fact[2] == "KEY_REVOKED"] == [
        ("KEY", made.key.id, "KEY_REVOKED")
    ]
    await ring.revoke_key(other.key.id)
    assert ring.any_made is True
    assert [key.id for key in await ring.list_keys()] == [made.key.id, other.key.id]


@pytest.mark.parametrize(
    ("scope", "is_one"),
    [
        ("queue:read", True),
        ("*:admin", True),
        ("nodes:write", True),
        ("any:read", False),
        ("queue:", False),
        ("queue", False),
        ("queue:all", False),
        ("cars:read", False),
    ],
)
def test_a_scope_is_a_surface_and_a_level(scope: str, is_one: bool) -> None:
    if is_one:
        assert check_scope(scope) == scope
        return
    with pytest.raises(InvalidError) as refusal:
        check_scope(scope)
    assert refusal.value.field == "scopes"


def test_a_level_includes_the_lower_ones_and_a_star_every_surface() -> None:
    assert spell_out(["queue:write"]) == {"queue:read", "queue:write", "any:read", "any:write"}
    assert spell_out(["queue:read", "queue:later", "tasks"]) == {"queue:read", "any:read"}
    everywhere = spell_out(["*:read"])
    assert everywhere == {
        f"{one}:read" for one in ["tasks", "queue", "governance", "nodes", "*", "any"]
    }
    assert "*:read" not in spell_out(["tasks:admin"])


def test_a_scope_that_is_not_understood_allows_nothing_and_takes_nothing_away() -> None:
    assert spell_out(["queue:fly", "tasks:read"]) == {"tasks:read", "any:read"}


async def test_the_copy_is_renewed_before_it_is_too_old(
    ring: KeyRing, store: Keys, clock: VirtualClock
) -> None:
    await clock.advance(7 * SECOND)
    assert not ring.is_fresh
    await ring.follow()  # the first waits
    assert (store.reads, ring.is_fresh) == (1, True)
    await clock.advance(REFRESH_US - 1)
    assert ring.is_fresh
    await ring.follow()
    await clock.settle()
    assert store.reads == 1
    await clock.advance(1)
    assert not ring.is_fresh
    store.turns = 3
    await ring.follow()  # in the background: nobody waits
    assert store.reads == 1
    await ring.follow()
    await clock.settle()
    assert store.reads == 2  # one at a time
    assert ring.is_fresh
    await clock.advance(STALE_US)
    await ring.follow()
    assert store.reads == 3  # too old: whoever asks has waited
    assert ring.is_fresh


async def test_a_copy_that_is_nearly_stale_is_still_used(
    ring: KeyRing, store: Keys, clock: VirtualClock
) -> None:
    await ring.refresh()
    await clock.advance(STALE_US - 1)
    store.turns = 3
    await ring.follow()
    assert store.reads == 1
    await ring.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not ring.is_fresh  # the renewal was ended with the ring


async def test_a_store_that_is_away_is_told_to_who_needs_a_new_copy(
    ring: KeyRing, store: Keys, clock: VirtualClock
) -> None:
    await ring.refresh()
    store.down = StoreDownError("away")
    await clock.advance(REFRESH_US)
    await ring.follow()  # the copy is still good
    await clock.settle()
    await clock.advance(STALE_US - REFRESH_US)
    with pytest.raises(StoreDownError):
        await ring.follow()
    store.down = None
    await ring.follow()
    assert ring.is_fresh


async def test_a_change_elsewhere_that_was_told_binds_the_next_caller(
    ring: KeyRing, store: Keys, clock: VirtualClock
) -> None:
    made = await ring.create_key("x", ["*:read"])
    assert ring.is_fresh
    store.revoke_if_live(made.key.id)
    ring.expire()
    assert not ring.is_fresh
    await ring.follow()
    with pytest.raises(UnauthenticatedError):
        ring.recognise(made.text)


async def test_the_last_use_of_a_key_is_written_once_a_minute(
    ring: KeyRing, store: Keys, clock: VirtualClock
) -> None:
    used = await ring.create_key("used", ["*:read"])
    await ring.create_key("idle", ["*:read"])

    async def pass_by(by: int) -> None:
        await clock.advance(by)
        await ring.follow()
        await clock.settle()

    await pass_by(SECOND)
    assert store.touched == []
    ring.recognise(used.text)
    await pass_by(SECOND)
    assert store.touched == [(2 * SECOND, used.key.id)]
    ring.recognise(used.text)
    await pass_by(TOUCH_US - 1)
    assert len(store.touched) == 1
    await pass_by(SECOND)
    assert len(store.touched) == 1  # not used since
    ring.recognise(used.text)
    ring.recognise(used.text)
    await pass_by(SECOND)
    assert len(store.touched) == 2
    ring.recognise(used.text)
    await pass_by(TOUCH_US)
    assert len(store.touched) == 3


def test_the_ages_are_those_that_the_contract_names() -> None:
    assert (REFRESH_US, STALE_US) == (500 * MILLISECOND, SECOND)
