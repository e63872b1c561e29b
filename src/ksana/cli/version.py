"""`ksana version`."""

import click

from ksana import __version__
from ksana.cli.main import COMMANDS


def attach(app: click.Group) -> None:
    """Add the command."""
    app.command("version", help=COMMANDS["version"])(version)


def version() -> None:
    """Print the version."""
    print(f"ksana {__version__}")
