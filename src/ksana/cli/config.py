"""`ksana config`: every setting, its value with secrets masked, and where the value came from."""

import typer

from ksana.boot.settings.sources import Loaded
from ksana.cli.main import COMMANDS
from ksana.cli.options import tell_warnings, with_settings


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command("config", help=COMMANDS["config"])(with_settings(config))


def config(
    loaded: Loaded,
    json: bool = typer.Option(False, "--json", help="Print JSON."),
    changed: bool = typer.Option(False, "--changed", help="Leave out defaults."),
) -> None:
    """Print the settings as a server started now would have them."""
    from ksana.boot.redaction import escape_controls

    tell_warnings(loaded)
    values = [
        value for value in loaded.values if not changed or not value.origin.startswith("default")
    ]
    if json:
        import msgspec

        rows = {
            value.setting.name: {"value": value.shown, "origin": value.origin} for value in values
        }
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    if loaded.file is not None:
        print(f"# file: {loaded.file}")
    width = max((len(value.setting.name) for value in values), default=0)
    for value in values:
        shown = escape_controls(value.shown) or '""'
        print(f"{value.setting.name:<{width}}  {shown:<32}  {value.origin}")
