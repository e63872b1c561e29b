"""`ksana key create | list | revoke`: API keys, written to the store directly, beside a running
server if there is one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from ksana.boot.settings.sources import Loaded
from ksana.cli.main import COMMANDS, CommandGroup
from ksana.cli.options import add_settings, tell_warnings

T = TypeVar("T")


def attach(app: click.Group) -> None:
    """Add the commands."""
    keys = CommandGroup("key", help=COMMANDS["key"], no_args_is_help=True)
    add_settings(keys.command("create", help="Make a key and print it, this once.")(create))
    add_settings(keys.command("list", help="List all keys, without their secrets.")(list_keys))
    add_settings(keys.command("revoke", help="End a key.")(revoke))
    app.add_command(keys)


@click.option("--name", required=True, help="What the key is for.")
@click.option(
    "--scope",
    required=True,
    multiple=True,
    help="surface:level, such as queue:write or *:read; repeatable.",
)
def create(loaded: Loaded, name: str, scope: tuple[str, ...]) -> None:
    """Make a key."""
    tell_warnings(loaded)
    made = _with_keys(loaded, lambda keys: keys.create_key(name, list(scope)), is_change=True)
    print(made.text)


def list_keys(loaded: Loaded) -> None:
    """List all keys."""
    from ksana.base.instant import format_instant
    from ksana.boot.redaction import escape_controls

    tell_warnings(loaded)
    for key in _with_keys(loaded, lambda keys: keys.list_keys()):
        used = (
            "never used"
            if key.last_used_at is None
            else f"last used {format_instant(key.last_used_at)}"
        )
        state = "live" if key.revoked_at is None else f"revoked {format_instant(key.revoked_at)}"
        print(
            f"{key.id}  {escape_controls(key.name)}  {','.join(key.scopes)}  "
            f"made {format_instant(key.created_at)}  {state}  {used}"
        )


@click.argument("key_id", metavar="ID", help="The id that `ksana key list` shows.")
def revoke(loaded: Loaded, key_id: str) -> None:
    """End a key."""
    tell_warnings(loaded)
    # The whole key is taken too: its owner may have nothing else at hand.
    bare = key_id.removeprefix("ksana_").partition("_")[0]
    _with_keys(loaded, lambda keys: keys.revoke_key(bare), is_change=True)
    print(f"The key {bare} is revoked; no server accepts it any more.")


def _with_keys(loaded: Loaded, ask: Callable[[Any], Awaitable[T]], *, is_change: bool = False) -> T:
    from ksana.base.clock import SystemClock
    from ksana.boot.fabrics import KEYS_CHANGED, tell_instances
    from ksana.boot.stores import open_store
    from ksana.service.core.keys import STALE_US, KeyRing

    async def ask_once() -> T:
        clock = SystemClock()
        store = await open_store(loaded.settings.store.url, clock, migrate=False, serve=False)
        keys = KeyRing(store, clock)
        try:
            answer = await ask(keys)
        finally:
            await keys.close()
            await store.close()
        if is_change:
            # When the command ends the change binds: no server's copy is older than this.
            bound_at = clock.now() + STALE_US
            coordination = loaded.settings.coordination
            await tell_instances(coordination.url, coordination.key_prefix, clock, KEYS_CHANGED)
            await clock.sleep_until(bound_at)
        return answer

    return asyncio.run(ask_once())
