"""Every error a caller can see, with its stable code and HTTP status.

    KsanaError
    ├── InvalidError              400  INVALID_ARGUMENT (carries the field), INVALID_JSON,
    │                                  INVALID_ID
    ├── UnauthenticatedError      401  UNAUTHENTICATED
    ├── ForbiddenError            403  FORBIDDEN
    ├── NotFoundError             404  NOT_FOUND
    ├── MethodError               405  METHOD_NOT_ALLOWED
    ├── ConflictError             409  ALREADY_EXISTS, VERSION_CONFLICT, CONCURRENCY_LIMIT,
    │                                  QUEUE_FULL, ILLEGAL_TRANSITION, DUPLICATE_REQUEST,
    │                                  IDEMPOTENCY_MISMATCH, CLAIM_LOST, LEASE_LOST
    │                                  (carries `current`)
    ├── TooLargeError             413  TOO_LARGE
    ├── MediaTypeError            415  UNSUPPORTED_MEDIA_TYPE
    ├── RateLimitedError          429  RATE_LIMITED
    └── UnavailableError          503  with Retry-After
        ├── StoreDownError             STORE_DOWN
        └── DependencyDownError        SCHEDULER_DEPENDENCY_DOWN

A lost race is a return value, never an exception: guarded writes answer a bool. Anything that is
not a KsanaError is a bug of ours and becomes 500 INTERNAL at the edge, without its text. Setup
mistakes (a bad setting, a foreign database file) are `SetupError`: they stop the start with a
sentence for the operator and never reach HTTP.
"""

from typing import Any, ClassVar


class KsanaError(Exception):
    """The root: a stable `code`, a `status`, a message that says what is allowed, and extra members
    of the answer."""

    status: ClassVar[int] = 500
    default_code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, code: str | None = None, **extra: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.extra = extra


class InvalidError(KsanaError):
    """What was sent cannot be right, now or later. `field` names the member."""

    status = 400
    default_code = "INVALID_ARGUMENT"

    def __init__(
        self, message: str, *, field: str | None = None, code: str | None = None, **extra: Any
    ) -> None:
        if field is not None:
            extra["field"] = field
        super().__init__(message, code=code, **extra)

    @property
    def field(self) -> str | None:
        """The member at fault, if one is."""
        found = self.extra.get("field")
        return found if isinstance(found, str) else None


class UnauthenticatedError(KsanaError):
    """No key, or one we do not know."""

    status = 401
    default_code = "UNAUTHENTICATED"


class ForbiddenError(KsanaError):
    """Known, but not allowed: a missing scope, a foreign origin or host."""

    status = 403
    default_code = "FORBIDDEN"


class NotFoundError(KsanaError):
    """No such route or thing."""

    status = 404
    default_code = "NOT_FOUND"


class MethodError(KsanaError):
    """The path exists, not with this method."""

    status = 405
    default_code = "METHOD_NOT_ALLOWED"


class ConflictError(KsanaError):
    """Right in itself, but not in the present state. `current` shows that state."""

    status = 409
    default_code = "ILLEGAL_TRANSITION"


class TooLargeError(KsanaError):
    """The body passes the limit."""

    status = 413
    default_code = "TOO_LARGE"


class MediaTypeError(KsanaError):
    """A body that is not JSON where JSON is due."""

    status = 415
    default_code = "UNSUPPORTED_MEDIA_TYPE"


class RateLimitedError(KsanaError):
    """Too many, too fast: try again after `retry_after_sec`."""

    status = 429
    default_code = "RATE_LIMITED"

    def __init__(
        self, message: str, *, retry_after_sec: int = 1, code: str | None = None, **extra: Any
    ) -> None:
        super().__init__(message, code=code, **extra)
        self.retry_after_sec = retry_after_sec


class UnavailableError(KsanaError):
    """Not now: try again after `retry_after_sec`."""

    status = 503
    default_code = "SCHEDULER_DEPENDENCY_DOWN"

    def __init__(
        self, message: str, *, retry_after_sec: int = 1, code: str | None = None, **extra: Any
    ) -> None:
        super().__init__(message, code=code, **extra)
        self.retry_after_sec = retry_after_sec


class StoreDownError(UnavailableError):
    """The store cannot be reached or cannot write. Nothing of the request took effect."""

    default_code = "STORE_DOWN"


class DependencyDownError(UnavailableError):
    """Coordination is away or not configured."""


class SetupError(Exception):
    """The program cannot start like this; the message tells the operator what to change."""
