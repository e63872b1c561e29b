"""`ksana doctor`: one line per check; the exit code tells whether all is well."""

import asyncio

import click

from ksana.boot.settings.sources import Loaded
from ksana.cli.main import COMMANDS, EXIT_FAILED
from ksana.cli.options import add_settings, tell_warnings


def attach(app: click.Group) -> None:
    """Add the command."""
    add_settings(app.command("doctor", help=COMMANDS["doctor"])(doctor))


def doctor(loaded: Loaded) -> None:
    """Look at everything a start needs, and change nothing."""
    from ksana.boot.doctor import examine
    from ksana.boot.redaction import escape_controls

    tell_warnings(loaded)
    findings = asyncio.run(examine(loaded.settings))
    for finding in findings:
        print(
            f"{'ok ' if finding.ok else 'BAD'}  {finding.name:<12}  {escape_controls(finding.text)}"
        )
    if not all(finding.ok for finding in findings):
        raise click.exceptions.Exit(EXIT_FAILED)
