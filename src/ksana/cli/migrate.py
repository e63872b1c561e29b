"""`ksana migrate`: bring the schema up to date, without starting a server."""

import asyncio

import click

from ksana.boot.settings.sources import Loaded
from ksana.cli.main import COMMANDS
from ksana.cli.options import add_settings, tell_warnings


def attach(app: click.Group) -> None:
    """Add the command."""
    add_settings(app.command("migrate", help=COMMANDS["migrate"])(migrate))


def migrate(loaded: Loaded) -> None:
    """Apply every migration that is missing."""
    from ksana.base.clock import SystemClock
    from ksana.boot.redaction import mask_url
    from ksana.boot.stores import migrate_store

    tell_warnings(loaded)
    url = loaded.settings.store.url
    report = asyncio.run(migrate_store(url, SystemClock()))
    for name in report.applied:
        print(f"applied {name}")
    state = (
        "is up to date"
        if not report.applied
        else f"went from version {report.found} to {report.now}"
    )
    print(f"The schema of {mask_url(url)} {state} (version {report.now}).")
