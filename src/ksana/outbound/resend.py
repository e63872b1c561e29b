"""When a request may be sent again inside one attempt. Pure."""

from typing import Final

from ksana.ports.caller import Request

_REPEATABLE_METHODS: Final = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Methods whose second request leaves the target as the first did (RFC 9110, 9.2.2)."""


def can_send_again(request: Request) -> bool:
    """Tell whether a request that was written may be sent again, once, when its kept connection
    ended before a byte of the answer. The target may have acted on it: nobody can know."""
    return request.may_resend and request.method in _REPEATABLE_METHODS
