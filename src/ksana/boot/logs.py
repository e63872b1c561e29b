"""Logs: one line per event, JSON or console, secrets masked, control characters escaped. Set up
once, at the start.

Code anywhere writes by `base/log`. A level that is off may be turned on while the server runs. What
the standard library logs (the HTTP server) goes the same way.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any, Final, TextIO

import msgspec

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.instant import format_instant
from ksana.boot.redaction import MAX_TEXT, escape_controls, redact_member, redact_text

_LEVELS: Final = {**log.LEVELS, "warn": log.LEVELS["warning"]}
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
}
_MAX_STACK: Final = 4 * MAX_TEXT


def is_written(level: str) -> bool:
    """Whether lines of a level are written now: for whoever would make many of them in vain."""
    return logging.getLogger().isEnabledFor(_LEVELS[level])


class LogSwitch:
    """What may be changed of the log while the server runs."""

    def __init__(self, output: log.Output, level: str, form: str, access: bool) -> None:
        self._output = output
        self.level = "warning" if level == "warn" else level
        self.form = form
        """json or console."""
        self.access = access
        """Whether each request is a line."""

    def change(self, level: str | None = None, access: bool | None = None) -> None:
        """From now on write from this level on; write a line for each request, or none."""
        if level is not None:
            self.level = level
            self._output.least = _LEVELS[level]
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
    render = _render_json if form == "json" else _Console(out.isatty())
    output = log.Output(_LEVELS[level], _Lines(clock, render, out))
    log.redirect(output)
    root = logging.getLogger()
    root.handlers = [_Bridge()]
    root.setLevel(output.least)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
    # Start and end are told by boot, requests by the API; the server's own lines would double them.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return LogSwitch(output, level, form, access)


class _Lines:
    """Puts the members of an event in order, masks them, and writes the line."""

    def __init__(self, clock: Clock, render: Callable[[dict[str, Any]], str], out: TextIO) -> None:
        self._clock = clock
        self._render = render
        self._out = out

    def __call__(self, level: str, words: str, members: dict[str, Any]) -> None:
        line: dict[str, Any] = {
            "ts": format_instant(self._clock.now()),
            "level": level,
            "msg": redact_text(words[:MAX_TEXT]),
        }
        fault = members.pop("exc_info", None)
        if fault:
            _add_fault(line, members, fault)
        for key in _FIRST_KEYS:
            if key in members:
                line[key] = redact_member(key, members.pop(key))
        for key, value in members.items():
            line[key] = redact_member(key, value)
        self._out.write(self._render(line) + "\n")
        self._out.flush()


def _add_fault(line: dict[str, Any], members: dict[str, Any], fault: Any) -> None:
    if fault is True:
        fault = sys.exc_info()[1]
    if isinstance(fault, tuple):
        fault = fault[1]
    if not isinstance(fault, BaseException):
        return
    members.setdefault("err", f"{type(fault).__name__}: {fault}")
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
        members: dict[str, Any] = {"logger": record.name, "exc_info": record.exc_info or None}
        if record.levelno >= logging.ERROR:
            log.error(words, **members)
        elif record.levelno >= logging.WARNING:
            log.warning(words, **members)
        elif record.levelno >= logging.INFO:
            log.info(words, **members)
        else:
            log.debug(words, **members)
