"""`ksana doctor`: one line per check; the exit code tells whether all is well."""

import asyncio

import typer

from ksana.boot.settings.sources import Loaded
from ksana.cli.main import COMMANDS, EXIT_FAILED
from ksana.cli.options import tell_warnings, with_settings


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", help=COMMANDS["doctor"])(with_settings(doctor))


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
        raise typer.Exit(EXIT_FAILED)
