"""Placeholders in URL, headers and body: one pass over a fixed list of names, escaped by where they
stand.

No expressions, no nesting, no engine: a value that contains `{{…}}` is not looked at again.
"""

import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from ksana.base.errors import InvalidError
from ksana.base.short_cache import cache_short

NAMES: Final = (
    "run_id",
    "run_uid",
    "task_id",
    "job_id",
    "task_name",
    "scheduled_at",
    "triggered_at",
    "attempt",
    "trace_id",
    "callback_url",
    "callback_token",
)

_HOLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_.]{0,63})\s*\}\}")
_ANY = re.compile(r"\{\{(.{0,80}?)\}\}", re.DOTALL)
_FILLED = re.compile(r'("(job_id|run_id)"\s*:\s*)"<filled-by-service>"')


@cache_short(maxsize=1024, longest=4096)
def _parts(text: str) -> tuple[tuple[str, str | None, str], ...]:
    """Cut a text into (literal before, name, the hole as written); the tail has no name."""
    parts: list[tuple[str, str | None, str]] = []
    at = 0
    for hole in _HOLE.finditer(text):
        if hole[1] in NAMES:
            parts.append((text[at : hole.start()], hole[1], hole[0]))
            at = hole.end()
    parts.append((text[at:], None, ""))
    return tuple(parts)


def check_template(text: str, field: str) -> None:
    """Raise InvalidError for a placeholder that is not on the list."""
    for hole in _ANY.finditer(text):
        if hole[1].strip() not in NAMES:
            raise InvalidError(
                f"unknown placeholder {{{{{hole[1][:40]}}}}}; allowed are {', '.join(NAMES)} "
                '(or send "template": false to keep the text as it is)',
                field=field,
            )


def fill_url(text: str, values: Mapping[str, str]) -> str:
    """Fill a URL, percent-encoding every value."""
    if "{{" not in text:
        return text
    return _fill(text, {name: quote(value, safe="") for name, value in values.items()})


def fill_header(text: str, values: Mapping[str, str]) -> str:
    """Fill a header's value; control bytes in a value are dropped."""
    if "{{" not in text:
        return text
    return _fill(
        text, {name: re.sub(r"[\x00-\x1f\x7f]", "", value) for name, value in values.items()}
    )


def fill_body(text: str, values: Mapping[str, str], *, is_json: bool) -> str:
    """Fill a body; inside JSON the values are escaped as the inside of a JSON string."""
    if "<filled-by-service>" in text:
        text = _FILLED.sub(lambda match: match[1] + json.dumps(values[match[2]]), text)
    if "{{" not in text:
        return text
    if is_json:
        values = {
            name: json.dumps(value, ensure_ascii=False)[1:-1] for name, value in values.items()
        }
    return _fill(text, values)


def _fill(text: str, values: Mapping[str, str]) -> str:
    out: list[str] = []
    for literal, name, hole in _parts(text):
        out.append(literal)
        if name is not None:
            out.append(values.get(name, hole))
    return "".join(out)


def looks_like_json(body: str) -> bool:
    """Tell whether a body without a Content-Type should be sent as JSON."""
    start = body.lstrip()[:1]
    return start in ("{", "[", '"') or body.strip() in ("true", "false", "null")
