"""`ksana backfill`: fire past slots of a task, through the running server."""

import asyncio
from typing import Any, Final

import click

from ksana.base.errors import SetupError
from ksana.cli.main import COMMANDS

_URL: Final = "http://127.0.0.1:7100"


def attach(app: click.Group) -> None:
    """Add the command."""
    app.command("backfill", help=COMMANDS["backfill"])(backfill)


@click.argument("task_id", type=int, metavar="TASK", help="The task's id.")
@click.option("since", "--from", required=True, metavar="TIME", help="The first slot at this time.")
@click.option("until", "--to", metavar="TIME", help="Slots before this time; now.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    metavar="COUNT",
    help="How many at most.",
)
@click.option("--max-age", metavar="SPAN", help="None older than this.")
@click.option(
    "--per-minute", type=click.IntRange(1, 6000), default=60, metavar="COUNT", help="How fast."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be fired.")
@click.option(
    "--url",
    default=_URL,
    envvar="KSANA_URL",
    show_envvar=True,
    metavar="URL",
    help="Where the server is.",
)
@click.option("--key", envvar="KSANA_API_KEY", show_envvar=True, help="An API key, if needed.")
def backfill(
    task_id: int,
    since: str,
    until: str | None,
    limit: int,
    max_age: str | None,
    per_minute: int,
    dry_run: bool,
    url: str,
    key: str | None,
) -> None:
    """Fire past slots that have no run; asked for again it fires what is left."""
    body: dict[str, Any] = {
        "from": since,
        "limit": limit,
        "per_minute": per_minute,
        "dry_run": dry_run,
    }
    body |= {"to": until} if until else {}
    body |= {"max_age": max_age} if max_age else {}
    said = asyncio.run(_ask(url, key, task_id, body))
    _print(said, dry_run)


async def _ask(url: str, key: str | None, task_id: int, body: dict[str, Any]) -> dict[str, Any]:
    from ksana.client import wire
    from ksana.client.errors import ClientError
    from ksana.client.transport import Transport

    transport = Transport(url, api_key=key or None)
    try:
        # Repeating it is safe: a slot that has a run is not fired again.
        reply, _ = await transport.call(
            "POST", f"/api/v1/tasks/{task_id}/backfill", wire.encode(body), deadline_sec=30.0
        )
    except ClientError as error:
        raise SetupError(str(error)) from None
    finally:
        await transport.close()
    return wire.decode(reply.body, dict[str, Any])


def _print(said: dict[str, Any], is_dry: bool) -> None:
    verb = "would be fired" if is_dry else "are fired"
    print(f"{said['fires']} of {said['in_range']} slots {verb}, {said['recorded']} have a run.")
    for one in said["slots"]:
        print(f"  {one['slot']}  from {one['starts_at']}")
    if said["fires"] > len(said["slots"]):
        print(f"  … up to {said['last']}, the last from {said['ends_at']}")
    if said["next_from"]:
        print(f"There may be more: go on with --from {said['next_from']}")
