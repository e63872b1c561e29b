"""`ksana secret new-key | status | rotate`: the key by which secrets in the store are sealed."""

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
    secrets = CommandGroup("secret", help=COMMANDS["secret"], no_args_is_help=True)
    secrets.command("new-key", help="Print a new key for KSANA_SECRET_KEY.")(new_key)
    status_help = "Show the keys given, and by which secrets are sealed."
    add_settings(secrets.command("status", help=status_help)(status))
    add_settings(
        secrets.command("rotate", help="Seal every secret by the first key given.")(rotate)
    )
    app.add_command(secrets)


def new_key() -> None:
    """Print a new key."""
    from ksana.boot.secrets import make_key

    print(make_key())


def status(loaded: Loaded) -> None:
    """Show the keys and the seals."""
    from ksana.boot.secrets import count_seals, open_box

    tell_warnings(loaded)
    box = open_box(loaded.settings)
    known = sorted(box.known_ids - {box.key_id or ""})
    print(f"seals by: {box.key_id or 'no key (clear text)'}")
    print(f"opens also: {', '.join(known) or 'nothing else'}")
    for seal, count in _with_store(loaded, lambda store: store.read(count_seals)).items():
        print(f"{seal}: {count} tasks")


def rotate(loaded: Loaded) -> None:
    """Seal everything by the first key."""
    from ksana.boot.secrets import open_box, reseal_all

    tell_warnings(loaded)
    box = open_box(loaded.settings)
    done = _with_store(loaded, lambda store: reseal_all(store, box))
    how = f"sealed by the key {box.key_id}" if box.key_id else "in clear text: no key is given"
    print(f"{done.resealed} tasks were stored anew; all secrets are {how}.")
    if done.left:
        print(f"{done.left} tasks have secrets that cannot be opened; `ksana secret status` shows.")
        raise click.exceptions.Exit(1)


def _with_store(loaded: Loaded, ask: Callable[[Any], Awaitable[T]]) -> T:
    from ksana.base.clock import SystemClock
    from ksana.boot.stores import open_store

    async def ask_once() -> T:
        settings = loaded.settings.store
        store = await open_store(settings.url, SystemClock(), migrate=False, serve=False)
        try:
            return await ask(store)
        finally:
            await store.close()

    return asyncio.run(ask_once())
