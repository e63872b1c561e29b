"""The log of this instance, changed while it runs: its level, and whether each request is a line.
A restart forgets it."""

from typing import Literal

import msgspec

from ksana.api.core.routing import AnyRoute, Call, Route
from ksana.api.core.services import LogControl

Level = Literal["debug", "info", "warning", "error"]


class LogSettings(msgspec.Struct, frozen=True):
    """What is written now."""

    level: str
    access: bool


class LogChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change; a member that is absent stays as it is."""

    level: Level | None = None
    access: bool | None = None


def routes(logs: LogControl) -> list[AnyRoute]:
    """Show it and change it."""

    async def show(call: Call) -> LogSettings:
        return LogSettings(logs.level, logs.access)

    async def change(call: Call, body: LogChange) -> LogSettings:
        logs.change(body.level, body.access)
        return LogSettings(logs.level, logs.access)

    return [
        Route(
            "GET",
            "/api/v1/logging",
            show,
            scope="*:admin",
            summary="Show what this instance logs",
            tags=("insight",),
            answers={200: LogSettings},
        ),
        Route(
            "PATCH",
            "/api/v1/logging",
            change,
            scope="*:admin",
            summary="Change what this instance logs, until it ends",
            tags=("insight",),
            body=LogChange,
            answers={200: LogSettings},
        ),
    ]
