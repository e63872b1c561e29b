"""The endpoints that belong to no surface and need more than the foundation has: dead letters,
keys, settings, and the console's files."""

from collections.abc import Sequence

from ksana.api.console import pages
from ksana.api.core import dead_letters, keys, setting_list
from ksana.api.core.routing import AnyRoute
from ksana.api.core.setting_list import SettingShown
from ksana.boot.settings.sources import Value
from ksana.service.core.dead_letters import DeadLetterService
from ksana.service.core.keys import KeyRing


def core_routes(
    letters: DeadLetterService, ring: KeyRing, values: Sequence[Value]
) -> list[AnyRoute]:
    """All of them."""
    shown = [SettingShown(value.setting.name, value.shown, value.origin) for value in values]
    return [
        *dead_letters.routes(letters),
        *keys.routes(ring),
        *setting_list.routes(shown),
        *pages.routes(),
    ]
