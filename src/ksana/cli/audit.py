"""`ksana audit verify | export`: the audit of a store, beside a running server if there is one."""

import asyncio
import sys

import typer

from ksana.boot.settings.sources import Loaded
from ksana.cli.main import COMMANDS, EXIT_FAILED
from ksana.cli.options import tell_warnings, with_settings


def attach(app: typer.Typer) -> None:
    """Add the commands."""
    audit = typer.Typer(help=COMMANDS["audit"], no_args_is_help=True, rich_markup_mode=None)
    audit.command("verify", help="Check every entry, chain and anchor.")(with_settings(verify))
    audit.command("export", help="Write all of it as JSON lines.")(with_settings(export))
    app.add_typer(audit, name="audit")


def verify(
    loaded: Loaded,
    anchor: str = typer.Option(
        "",
        "--anchor",
        metavar="HASH",
        help="The hash of an anchor noted earlier: it must be there.",
    ),
) -> None:
    """Check the audit; end with 1 if anything is wrong."""
    tell_warnings(loaded)
    if not asyncio.run(_verify(loaded, anchor)):
        raise typer.Exit(EXIT_FAILED)


def export(loaded: Loaded) -> None:
    """Write the audit to standard output."""
    tell_warnings(loaded)
    asyncio.run(_export(loaded))


async def _verify(loaded: Loaded, anchor: str) -> bool:
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
