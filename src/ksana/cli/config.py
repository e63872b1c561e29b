"""`ksana config`: every setting, its value with secrets masked, and where the value came from."""

import click

from ksana.boot.settings.sources import Loaded
from ksana.cli.main import COMMANDS
from ksana.cli.options import add_settings, tell_warnings


def attach(app: click.Group) -> None:
    """Add the command."""
    add_settings(app.command("config", help=COMMANDS["config"])(config))


@click.option("--json", is_flag=True, help="Print JSON.")
@click.option("--changed", is_flag=True, help="Leave out defaults.")
def config(loaded: Loaded, json: bool, changed: bool) -> None:
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
