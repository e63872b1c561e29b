"""Every setting as an option of a command, made from the table, and the settings of a run that they
lead to."""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import typer

from ksana.boot.settings.sources import Loaded, load
from ksana.boot.settings.table import TABLE, Setting
from ksana.boot.settings.values import SWITCH

_CONFIG_HELP: Final = "The configuration file; else KSANA_CONFIG, else ./ksana.toml if it exists."


def with_settings(
    command: Callable[..., int | None], panel: str = "Settings"
) -> Callable[..., int | None]:
    """Give a command `--config` and one option per setting; it receives what they lead to as its
    `loaded` argument."""
    names = {setting.name.replace(".", "__"): setting.name for setting in TABLE.values()}

    @functools.wraps(command)
    def wrapped(**given: Any) -> int | None:
        config = given.pop("config")
        flags = {
            name: value for key, name in names.items() if (value := given.pop(key)) is not None
        }
        return command(loaded=load(flags, os.environ, config), **given)

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "loaded"]
    added = [
        _parameter(
            "config", str | None, typer.Option(None, "--config", metavar="FILE", help=_CONFIG_HELP)
        )
    ]
    added += [_setting_parameter(key, TABLE[name], panel) for key, name in names.items()]
    wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
    # Typer resolves annotations by the function that wraps leads to; this one has its own.
    del wrapped.__wrapped__
    return wrapped


def tell_warnings(loaded: Loaded) -> None:
    """Print what the settings' sources gave to think about."""
    for warning in loaded.warnings:
        print(f"ksana: {warning}", file=sys.stderr)


def _setting_parameter(key: str, setting: Setting, panel: str) -> inspect.Parameter:
    text = f"{setting.about.help} [{setting.show(setting.default) or 'unset'}]"
    if setting.about.kind is SWITCH:
        flags = [f"{flag}/--no-{flag[2:]}" for flag in setting.flags]
        return _parameter(
            key, bool | None, typer.Option(None, *flags, help=text, show_default=False)
        )
    word = (
        "TEXT"
        if setting.about.kind.name in {"text", "list", "table"}
        else setting.about.kind.name.upper()
    )
    metavar = setting.about.kind.name.replace(" ", "") if "|" in word else word
    return _parameter(
        key,
        str | None,
        typer.Option(None, *setting.flags, metavar=metavar, help=text, show_default=False),
    )


def _parameter(name: str, annotation: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation
    )
