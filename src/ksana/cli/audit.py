"""`ksana audit verify | export`: the audit of a store, beside a running server if there is one."""

import asyncio
import sys

import click

from ksana.boot.settings.sources import Loaded
from ksana.cli.main import COMMANDS, EXIT_FAILED, CommandGroup
from ksana.cli.options import add_settings, tell_warnings


def attach(app: click.Group) -> None:
    """Add the commands."""
    audit = CommandGroup("audit", help=COMMANDS["audit"], no_args_is_help=True)
    add_settings(audit.command("verify", help="Check every entry, chain and anchor.")(verify))
    add_settings(audit.command("export", help="Write all of it as JSON lines.")(export))
    app.add_command(audit)


@click.option(
    "--anchor",
    metavar="HASH",
    help="The hash of an anchor noted earlier: it must be there.",
)
def verify(loaded: Loaded, anchor: str | None) -> None:
    """Check the audit; end with 1 if anything is wrong."""
    tell_warnings(loaded)
    if not asyncio.run(_verify(loaded, anchor)):
        raise click.exceptions.Exit(EXIT_FAILED)


def export(loaded: Loaded) -> None:
    """Write the audit to standard output."""
    tell_warnings(loaded)
    asyncio.run(_export(loaded))


async def _verify(loaded: Loaded, anchor: str | None) -> bool:
    from ksana.boot.redaction import escape_controls
    from ksana.boot.surfaces.governance import open_audit

    audit, store = await open_audit(loaded.settings)
    try:
        report = await audit.verify(anchor or None)
    finally:
        await store.close()
    for finding in report.findings:
        print(f"{finding.kind}: {escape_controls(finding.message)}")
    counts = f"{report.entries} entries in {report.chains} chains, {report.anchors} anchors"
    if report.findings:
        print(f"{len(report.findings)} findings. {counts}.")
    else:
        print(f"The audit is whole: {counts}.")
    if report.last_anchor is not None:
        print(f"Newest anchor: {report.last_anchor}")
    return report.ok


async def _export(loaded: Loaded) -> None:
    from ksana.boot.surfaces.governance import open_audit

    audit, store = await open_audit(loaded.settings)
    try:
        async for line in audit.export():
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    finally:
        await store.close()
