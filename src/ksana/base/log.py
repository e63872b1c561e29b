"""What the program tells of itself while it runs: a line in words, with members by name.

    log.warning("waiting for the store", err=problem, tries=3)

Where lines go, and what of them is masked, is said once at the start (`boot/logs`). Until then, and
in commands, warnings and worse go to stderr. A line whose level is off costs a call and nothing
more.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""By the numbers of the standard library."""
_DEBUG, _INFO, _WARNING, _ERROR = LEVELS.values()

Write = Callable[[str, str, dict[str, Any]], None]
"""Takes the level, the words and the members. `exc_info` among them is the error a line is about,
or True for the one being handled."""


class Output:
    """Where lines go."""

    def __init__(self, least: int, write: Write) -> None:
        self.least = least
        """Lines below this level are dropped."""
        self.write = write


def _write_plain(level: str, words: str, members: dict[str, Any]) -> None:
    told = "".join(f" {name}={value!r}" for name, value in members.items())
    sys.stderr.write(f"ksana: {level}: {words}{told}\n")


_output = Output(_WARNING, _write_plain)


def current() -> Output:
    """Where lines go now."""
    return _output


def redirect(output: Output) -> Output:
    """Have all lines go there from now on; answer where they went."""
    global _output
    before, _output = _output, output
    return before


def debug(words: str, /, **members: Any) -> None:
    if _output.least <= _DEBUG:
        _output.write("debug", words, members)


def info(words: str, /, **members: Any) -> None:
    if _output.least <= _INFO:
        _output.write("info", words, members)


def warning(words: str, /, **members: Any) -> None:
    if _output.least <= _WARNING:
        _output.write("warning", words, members)


def error(words: str, /, **members: Any) -> None:
    if _output.least <= _ERROR:
        _output.write("error", words, members)


def exception(words: str, /, **members: Any) -> None:
    """An error, with the stack of the exception being handled."""
    error(words, exc_info=True, **members)
