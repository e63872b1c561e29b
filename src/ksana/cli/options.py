"""Every setting as an option of a command, made from the table, and the settings of a run that they
lead to."""

import os
import sys
from typing import Any, Final

import click

from ksana.boot.settings.sources import Loaded, load
from ksana.boot.settings.table import TABLE, Setting
from ksana.boot.settings.values import SWITCH

_CONFIG_HELP: Final = "The configuration file; else KSANA_CONFIG, else ./ksana.toml if it exists."


def add_settings(command: click.Command) -> None:
    """Give a command `--config` and one option per setting; its function receives what they lead to
    as its `loaded` argument."""
    names = {setting.name.replace(".", "__"): setting.name for setting in TABLE.values()}
    function = command.callback
    assert function is not None

    def run(config: str | None, **given: Any) -> Any:
        flags = {
            name: value for key, name in names.items() if (value := given.pop(key)) is not None
        }
        return function(loaded=load(flags, os.environ, config), **given)

    command.callback = run
    command.params.append(click.Option(["--config"], metavar="FILE", help=_CONFIG_HELP))
    command.params += [_make_option(key, TABLE[name]) for key, name in names.items()]


def tell_warnings(loaded: Loaded) -> None:
    """Print what the settings' sources gave to think about."""
    for warning in loaded.warnings:
        print(f"ksana: {warning}", file=sys.stderr)


def _make_option(key: str, setting: Setting) -> click.Option:
    kind = setting.about.kind
    text = f"{setting.about.help} [{setting.show(setting.default) or 'unset'}]"
    if kind is SWITCH:
        flags = [f"{flag}/--no-{flag[2:]}" for flag in setting.flags]
        return click.Option([key, *flags], default=None, help=text)
    word = "TEXT" if kind.name in {"text", "list", "table"} else kind.name.upper()
    metavar = kind.name.replace(" ", "") if "|" in word else word
    return click.Option([key, *setting.flags], metavar=metavar, help=text)
