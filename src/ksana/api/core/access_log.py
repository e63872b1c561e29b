"""One line for each request, if that is turned on. Secrets in the path and the query are masked by
the log, as everywhere."""

from typing import Any, Final, Protocol

from ksana.base import log
from ksana.base.instant import MILLISECOND, Micros
from ksana.service.core.keys import Principal


class Asked(Protocol):
    """What is logged of a request."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def query_string(self) -> bytes: ...

    @property
    def peer(self) -> Any: ...


class NoAccessLog:
    """The log of an app that was given none."""

    level = "info"
    access = False

    def change(self, level: str | None = None, access: bool | None = None) -> None:
        """Nothing is here to be changed."""


NO_ACCESS_LOG: Final = NoAccessLog()


def log_request(
    request: Asked,
    route: str,
    principal: Principal | None,
    request_id: str,
    status: int,
    size: int | None,
    spent_us: Micros,
) -> None:
    """Write the line of an answered request. The size of a stream is not known."""
    query = request.query_string.decode("latin-1")
    members: dict[str, Any] = {} if size is None else {"bytes": size}
    if principal is not None:
        members["key_id"] = principal.key_id
    log.info(
        "request",
        status=status,
        latency_ms=spent_us / MILLISECOND,
        method=request.method,
        url=f"{request.path}?{query}" if query else request.path,
        route=route,
        client=request.peer[0] if request.peer else None,
        request_id=request_id,
        **members,
    )
