"""What a call can end with instead of an answer.

ClientError
├── TransportError            no answer; `is_outcome_unknown`: the server may have acted
│   └── DeadlineError         the time the caller gave is over
└── ApiError                  the server refused: code, status, message, field, current, request_id
    ├── InvalidRequestError   400, 413, 415
    ├── AccessError           401, 403
    ├── ApiNotFoundError         404
    ├── ApiConflictError         409
    │   ├── DuplicateRequestError   the job that exists is in `job`
    │   ├── ClaimLostError
    │   └── LeaseLostError
    └── BusyError             429, 502, 503, 504: try again after `retry_after_sec`
"""

from typing import Any

import msgspec


class ClientError(Exception):
    """The root of everything this package raises for a call."""

    unknown_tries: int = 0
    """Tries of this call that may have reached the server without an answer, the last one included.
    """


class TransportError(ClientError):
    """No whole answer came."""

    def __init__(self, message: str, *, is_outcome_unknown: bool) -> None:
        super().__init__(message)
        self.is_outcome_unknown = is_outcome_unknown
        """True when the request may have reached the server: it may have acted, we cannot know."""
        self.is_permanent = False
        """True when the same call cannot succeed later: the client is closed, or the server's
        certificate is not trusted."""


class DeadlineError(TransportError):
    """The time given for the call is over."""


class ApiError(ClientError):
    """The server answered with an error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        extra: dict[str, Any] | None = None,
        retry_after_sec: float | None = None,
    ) -> None:
        super().__init__(f"{status} {code}: {message}" if code else f"{status}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.extra = extra or {}
        self.retry_after_sec = retry_after_sec

    @property
    def field(self) -> str | None:
        """The member at fault (400)."""
        found = self.extra.get("field")
        return found if isinstance(found, str) else None

    @property
    def current(self) -> Any:
        """The state that stood in the way (409)."""
        return self.extra.get("current")

    @property
    def request_id(self) -> str | None:
        """The id under which the server's log knows the call."""
        found = self.extra.get("request_id")
        return found if isinstance(found, str) else None


class InvalidRequestError(ApiError):
    """The request cannot be right, now or later."""


class AccessError(ApiError):
    """No key, an unknown one, or one without the scope."""


class ApiNotFoundError(ApiError):
    """No such job, lease or route."""


class ApiConflictError(ApiError):
    """Right in itself, not in the present state."""


class DuplicateRequestError(ApiConflictError):
    """A job with this `client_request_id` exists."""

    @property
    def job(self) -> dict[str, Any] | None:
        """The job that exists, as the server sent it."""
        found = self.extra.get("job") or self.current
        return found if isinstance(found, dict) else None

    @property
    def index(self) -> int | None:
        """Which job of a batch it was."""
        found = self.extra.get("index")
        return found if isinstance(found, int) else None


class ClaimLostError(ApiConflictError):
    """Another worker holds the job now."""


class LeaseLostError(ApiConflictError):
    """The lease ran out, was released, or is another worker's. Its result is not wanted."""


class BusyError(ApiError):
    """Not now. Nothing of the request took effect."""


_BY_CODE: dict[str, type[ApiError]] = {
    "DUPLICATE_REQUEST": DuplicateRequestError,
    "CLAIM_LOST": ClaimLostError,
    "LEASE_LOST": LeaseLostError,
}
_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequestError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    401: AccessError,
    403: AccessError,
    404: ApiNotFoundError,
    409: ApiConflictError,
    429: BusyError,
    502: BusyError,
    503: BusyError,
    504: BusyError,
}
_STATUS_OF_CODE = {
    "INVALID_ARGUMENT": 400,
    "INVALID_JSON": 400,
    "INVALID_ID": 400,
    "INVALID_FRAME": 400,
    "PROTOCOL": 400,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "TOO_LARGE": 413,
    "RATE_LIMITED": 429,
    "INTERNAL": 500,
    "STORE_DOWN": 503,
    "NO_AVAILABLE_NODE": 503,
    "SCHEDULER_DEPENDENCY_DOWN": 503,
}
"""An item of a batch and an error frame carry their code only; every other code of the
contract is a 409."""


def from_answer(status: int, body: bytes, retry_after_sec: float | None = None) -> ApiError:
    """Make the exception for an error answer. A body that is not ours (a proxy's page) gives an
    empty code."""
    try:
        members = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        members = None
    if not isinstance(members, dict) or not isinstance(members.get("code"), str):
        text = body[:200].decode("utf-8", "replace").strip() or "no body"
        return _BY_STATUS.get(status, ApiError)(status, "", text, None, retry_after_sec)
    return from_body(status, members, retry_after_sec)


def from_body(
    status: int | None, members: dict[str, Any], retry_after_sec: float | None = None
) -> ApiError:
    """Make the exception for the error body of an answer, or of one item of a batch."""
    code = members["code"]
    if status is None:
        sent = members.get("status")
        status = sent if isinstance(sent, int) else _STATUS_OF_CODE.get(code, 409)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ApiError)
    message = members.get("message") or members.get("detail") or ""
    extra = {
        name: value for name, value in members.items() if name not in {"code", "message", "detail"}
    }
    return kind(status, code, str(message), extra, retry_after_sec)
