"""Logs: one line per event, JSON or console, secrets masked, control characters escaped. Set up
once, at the start.

Code anywhere writes `structlog.get_logger().info("words", key=value)`. A level that is off costs a
call and nothing more, and may be turned on while the server runs. What the standard library logs
(the HTTP server) goes the same way.
"""

import logging
import sys
from typing import Any, Final, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from ksana.base.clock import Clock
from ksana.base.instant import format_instant
from ksana.boot.redaction import MAX_TEXT, escape_controls, redact_member, redact_text

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
_FIRST_KEYS: Final = (
    "trace_id",
    "job_id",
    "task_id",
    "run_id",
    "attempt",
    "status",
    "err",
    "latency_ms",
    "target_url",
)
_encode = msgspec.json.Encoder(enc_hook=str).encode
_COLOURS: Final = {
    "debug": "\x1b[2m",
    "info": "",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31m",
}
_MAX_STACK: Final = 4 * MAX_TEXT


class LevelledLogger(structlog.BoundLoggerBase):
    """A logger that compares each call with a level that all loggers share and that may change."""

    least = logging.INFO

    def debug(self, event: str, **members: Any) -> Any:
        return self._write(logging.DEBUG, "debug", event, members)

    def info(self, event: str, **members: Any) -> Any:
        return self._write(logging.INFO, "info", event, members)

    def warning(self, event: str, **members: Any) -> Any:
        return self._write(logging.WARNING, "warning", event, members)

    def error(self, event: str, **members: Any) -> Any:
        return self._write(logging.ERROR, "error", event, members)

    def critical(self, event: str, **members: Any) -> Any:
        return self._write(logging.CRITICAL, "critical", event, members)

    def exception(self, event: str, **members: Any) -> Any:
        members.setdefault("exc_info", True)
        return self._write(logging.ERROR, "error", event, members)

    def _write(self, level: int, name: str, event: str, members: dict[str, Any]) -> Any:
        if level < self.least:
            return None
        return self._proxy_to_logger(name, event, **members)


def is_written(level: str) -> bool:
    """Whether lines of a level are written now: for whoever would make many of them in vain."""
    return logging.getLogger().isEnabledFor(_LEVELS[level])


class LogSwitch:
    """What may be changed of the log while the server runs."""

    def __init__(self, logger: type[LevelledLogger], level: str, form: str, access: bool) -> None:
        self._logger = logger
        self.level = "warning" if level == "warn" else level
        self.form = form
        """json or console."""
        self.access = access
        """Whether each request is a line."""

    def change(self, level: str | None = None, access: bool | None = None) -> None:
        """From now on write from this level on; write a line for each request, or none."""
        if level is not None:
            self.level = level
            self._logger.least = _LEVELS[level]
            logging.getLogger().setLevel(_LEVELS[level])
        if access is not None:
            self.access = access


def start_logging(
    level: str, form: str, clock: Clock, stream: TextIO | None = None, *, access: bool = False
) -> LogSwitch:
    """Send everything that is logged to the stream (stderr), from this level on, as JSON or console
    lines."""
    out = sys.stderr if stream is None else stream
    if form == "auto":
        form = "console" if out.isatty() else "json"
    least = _LEVELS[level]
    kind = type("Logger", (LevelledLogger,), {"least": least})
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _Line(clock, _render_json if form == "json" else _Console(out.isatty())),
        ],
        wrapper_class=kind,
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=stream is None,
    )
    root = logging.getLogger()
    root.handlers = [_Bridge()]
    root.setLevel(least)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
    # Start and end are told by boot, requests by the API; the server's own lines would double them.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return LogSwitch(kind, level, form, access)


class _Line:
    """Puts the members of an event in order, masks them, and renders the line."""

    def __init__(self, clock: Clock, render: Any) -> None:
        self._clock = clock
        self._render = render

    def __call__(self, _: WrappedLogger, level: str, event: EventDict) -> str:
        line: dict[str, Any] = {
            "ts": format_instant(self._clock.now()),
            "level": "error" if level == "exception" else level,
            "msg": redact_text(str(event.pop("event", ""))[:MAX_TEXT]),
        }
        fault = event.pop("exc_info", None)
        event.pop("_logger", None)
        if fault:
            _add_fault(line, event, fault)
        for key in _FIRST_KEYS:
            if key in event:
                line[key] = redact_member(key, event.pop(key))
        for key, value in event.items():
            line[key] = redact_member(key, value)
        return str(self._render(line))


def _add_fault(line: dict[str, Any], event: EventDict, fault: Any) -> None:
    if fault is True:
        fault = sys.exc_info()[1]
    if isinstance(fault, tuple):
        fault = fault[1]
    if not isinstance(fault, BaseException):
        return
    event.setdefault("err", f"{type(fault).__name__}: {fault}")
    import traceback  # only when something is wrong

    stack = "".join(traceback.format_exception(fault))
    line["stack"] = redact_text(stack[-_MAX_STACK:])


def _render_json(line: dict[str, Any]) -> str:
    text = _encode(_tidy(line)).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    # Inside JSON only strings can hold these, so their JSON escapes keep the line valid.
    return "".join(
        char if char.isprintable() or char == " " else _json_escape(char) for char in text
    )


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _tidy(value: Any) -> Any:
    """Replace lone surrogates, which no encoder takes; keep three digits of a fraction."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_tidy(key): _tidy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    return value


class _Console:
    """Lines for people: time, level, words, then key=value."""

    def __init__(self, is_coloured: bool) -> None:
        self._is_coloured = is_coloured

    def __call__(self, line: dict[str, Any]) -> str:
        clock, level, words = line.pop("ts"), line.pop("level"), line.pop("msg")
        stack = line.pop("stack", None)
        colour = _COLOURS.get(level, "") if self._is_coloured else ""
        members = "".join(
            f" {escape_controls(key)}={_console_value(value)}" for key, value in line.items()
        )
        text = f"{clock} {level.upper():<7} {escape_controls(words)}{members}"
        if stack is not None:
            text += "".join(f"\n    {escape_controls(row)}" for row in stack.splitlines())
        return f"{colour}{text}\x1b[0m" if colour else text


def _console_value(value: Any) -> str:
    if isinstance(value, str):
        safe = escape_controls(value)
        return (
            safe
            if safe and not any(char in ' "=' for char in safe)
            else '"' + safe.replace('"', '\\"') + '"'
        )
    return escape_controls(_encode(_tidy(value)).decode())


class _Bridge(logging.Handler):
    """Carries records of the standard library over."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            words = record.getMessage()
        except Exception:
            words = str(record.msg)
        level = (
            "error"
            if record.levelno >= logging.ERROR
            else "warning"
            if record.levelno >= logging.WARNING
            else "info"
        )
        if record.levelno < logging.INFO:
            level = "debug"
        getattr(structlog.get_logger(), level)(
            words, logger=record.name, exc_info=record.exc_info or None
        )
