"""Every setting over HTTP: its value with secrets masked, and where the value came from."""

from collections.abc import Sequence

import msgspec

from ksana.api.core.routing import AnyRoute, Call, Route


class SettingShown(msgspec.Struct, frozen=True):
    """One setting, as `ksana config` prints it."""

    name: str
    value: str
    origin: str


class SettingList(msgspec.Struct, frozen=True):
    """All of them, as this instance was started."""

    settings: list[SettingShown]


def routes(settings: Sequence[SettingShown]) -> list[AnyRoute]:
    """The list. It changes with a restart only."""
    shown = SettingList(list(settings))

    async def list_settings(call: Call) -> SettingList:
        return shown

    return [
        Route(
            "GET",
            "/api/v1/settings",
            list_settings,
            scope="*:admin",
            summary="List every setting and where its value came from",
            tags=("insight",),
            answers={200: SettingList},
        )
    ]
