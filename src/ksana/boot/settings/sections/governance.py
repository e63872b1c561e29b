"""The settings of governance."""

from typing import Annotated, Any, Final

import msgspec

from ksana.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Micros
from ksana.boot.settings.values import BASE_URL, SWITCH, About, duration, integer, text


class GovernanceWorkerSettings(msgspec.Struct, frozen=True):
    """The built-in worker."""

    enabled: Annotated[bool, About(SWITCH, "Run the built-in worker.")] = False
    interval_us: Annotated[
        Micros, About(duration(100 * MILLISECOND, DAY), "How often it looks for work.")
    ] = 5 * SECOND
    webhook: Annotated[
        str, About(BASE_URL, "Where it sends verify, revalidate and reinstate-check.")
    ] = ""
    callable: Annotated[
        str,
        About(
            text(pattern=r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", allowed="module:function"),
            "A Python function that does these in the place of a webhook.",
        ),
    ] = ""
    timeout_us: Annotated[
        Micros,
        About(duration(SECOND, HOUR), "How long the webhook or the function may take."),
    ] = MINUTE


class GovernanceSettings(msgspec.Struct, frozen=True):
    """Objects and their jobs."""

    require_lease_token: Annotated[
        bool, About(SWITCH, "Refuse ack, fail and renew without a lease token.")
    ] = False
    verify_limit: Annotated[
        int, About(integer(0, 1000), "Verifications that an unknowable object gets, ever.")
    ] = 2
    auto_verify_budget: Annotated[
        int, About(integer(0, 1000), "Verifications that an uncertain object starts with.")
    ] = 2
    allow_simulation: Annotated[
        bool, About(SWITCH, "Allow a pull to name a time ahead of ours.")
    ] = False
    worker: GovernanceWorkerSettings = GovernanceWorkerSettings()


SECTIONS: Final[dict[str, type[Any]]] = {
    "governance": GovernanceSettings,
}
