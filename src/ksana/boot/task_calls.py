"""What the calls of tasks are made with: the rules of egress, and where callbacks come to."""

from collections.abc import Callable

from ksana.boot.own_places import is_here, list_own_places
from ksana.boot.settings.sections.tasks import CallbackSettings, TaskSettings
from ksana.boot.settings.table import Settings
from ksana.boot.surface import CoreServices
from ksana.outbound.by_scheme import HttpCaller
from ksana.outbound.egress import EgressPolicy


def make_caller_factory(core: CoreServices) -> Callable[[], HttpCaller]:
    """Callers under the rules of egress."""
    egress, limits = core.settings.egress, core.settings.section(TaskSettings)
    own = list_own_places(core.settings)
    policy = EgressPolicy(allow=egress.allow, deny=egress.deny, own=own, is_here=is_here)
    plan = core.descriptors
    return lambda: HttpCaller(
        policy,
        max_idle=plan.kept_calls,
        plain_http=limits.plain_http,
        max_lookups=plan.lookups,
    )


def find_callback_base(settings: Settings) -> str:
    """The URL under which callbacks come, as targets are told it."""
    base = settings.section(CallbackSettings).base_url.rstrip("/")
    if not base:
        server = settings.server
        host = (
            "127.0.0.1"
            if server.host in ("0.0.0.0", "")
            else "[::1]"
            if server.host == "::"
            else server.host
        )
        base = f"http://{host}:{server.port}"
    return base if base.endswith("/callbacks") else f"{base}/api/v1/callbacks"
