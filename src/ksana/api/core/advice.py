"""How a refused member is told: in plain words, the nearest name first, and with the way to write
it. What was sent is shown only where it is a number, a switch or a short word."""

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any, Final

from ksana.base.instant import SECOND, format_instant

LONGEST: Final = 64
"""Characters of a name that are compared, and of a word that is shown."""
_NEAR: Final = 0.6
_WITHIN: Final = 0.9
"""How near a name counts that is a part of another: `url` in `target_url`."""
_MEMBERS_SHOWN: Final = 6
_EXPECTED = re.compile(r"Expected `([^`]*)`(.*)\Z", re.DOTALL)
_GOT = re.compile(r", got `([^`]*)`\Z")
_KINDS: Final = {
    "int": ("a whole number",),
    "float": ("a number",),
    "str": ("a text",),
    "bool": ("true", "false"),
    "object": ("an object",),
    "array": ("a list",),
    "null": ("null",),
}
_TIME_NAMES: Final = frozenset({"from", "to", "now", "run_after", "run_before"})
_EPOCH_SEC: Final = range(10**9, 4 * 10**9)
_EPOCH_MS: Final = range(10**12, 4 * 10**12)
_ABSENT: Final = object()


def order_names(name: str, known: Iterable[str]) -> tuple[str | None, list[str]]:
    """The known name that was probably meant, and all of them with the nearest first."""
    wanted = name[:LONGEST].lower()
    scored = sorted((-_score(wanted, one.lower()), one) for one in known)
    names = [one for _, one in scored]
    if not scored or -scored[0][0] < _NEAR:
        return None, sorted(names)
    near = [one for score, one in scored if -score >= _NEAR]
    return near[0], [*near, *sorted(names[len(near) :])]


def refuse_name(
    told: str,
    name: str,
    known: Iterable[str],
    what: str = "known",
    also_called: Mapping[str, str] | None = None,
) -> str:
    """The words for a name that is not known; `told` is how it is shown. `also_called` has names
    that others use for ours."""
    meant, names = order_names((also_called or {}).get(name.lower(), name), known)
    question = "; allowed: " if meant is None else f": did you mean {meant}? Allowed: "
    return f"{told} is not {what} here{question}{', '.join(names) or 'none'}"


def choose_value(sent: Any, allowed: list[str]) -> str:
    """The words for a value that is not in a list."""
    if not isinstance(sent, str):
        return f"; allowed: {', '.join(allowed)}"
    meant, names = order_names(sent, allowed)
    question = "" if meant is None else f": did you mean {meant}?"
    return f"{question} Allowed: {', '.join(names)}" if meant else f"; allowed: {', '.join(names)}"


def explain_kind(
    message: str, name: str, sent: Any, members: Iterable[str], allowed: list[str]
) -> str | None:
    """The words for a value of the wrong kind or size, from msgspec's; None if it says something
    else. `name` is the member's own, `members` those of the object that is due."""
    expected = _EXPECTED.match(message)
    if expected is None:
        return None
    got = _GOT.search(message)
    kinds = [kind.strip() for kind in expected[1].split("|")]
    due = _join([word for kind in kinds for word in _KINDS.get(kind, (kind,))])
    if got is None:
        return f"must be {due}{expected[2].replace('`', '')}"
    told = f"must be {due}, not {_show(got[1], sent, kinds)}"
    if allowed:
        return f"{told}; allowed: {', '.join(allowed)}"
    advice = _advise(kinds, name, sent, members)
    return f"{told}: {advice}" if advice else told


def _advise(kinds: list[str], name: str, sent: Any, members: Iterable[str]) -> str:
    """How to write what was probably meant."""
    if isinstance(sent, bool):
        return 'write "true" or "false" in quotes' if kinds[0] == "str" else ""
    if isinstance(sent, dict | list) and {"float", "str"} <= set(kinds):
        return 'write a duration, such as "1h30m", or a number of seconds'
    if {"int", "float"} & set(kinds):
        return _advise_number(sent)
    if "bool" in kinds:
        return _advise_switch(sent)
    if "str" in kinds:
        return _advise_text(name, sent)
    if "array" in kinds and not isinstance(sent, dict | list) and sent is not _ABSENT:
        return "put it in brackets, [ ]"
    if "object" in kinds and (shown := list(members)[:_MEMBERS_SHOWN]):
        return f"write an object with members such as {', '.join(shown)}"
    return ""


def _advise_number(sent: Any) -> str:
    if isinstance(sent, float) and sent.is_integer() and abs(sent) < 2**53:
        return f"write {int(sent)}"
    if isinstance(sent, str) and re.fullmatch(r"-?\d{1,15}(\.\d{1,9})?", sent, re.ASCII):
        return f"write {sent} without quotes"
    return ""


def _advise_switch(sent: Any) -> str:
    if isinstance(sent, str) and sent.lower() in ("true", "false"):
        return f"write {sent.lower()} without quotes"
    if sent in (0, 1):
        return f"write {'true' if sent else 'false'}"
    return ""


def _advise_text(name: str, sent: Any) -> str:
    if isinstance(sent, dict | list):
        return 'write it as a text, with its quotes escaped, such as "{\\"a\\": 1}"'
    if name.endswith("_at") or name in _TIME_NAMES:
        at = _read_epoch(sent)
        return f'write an RFC 3339 time such as "{at or "2026-02-21T00:00:00Z"}"'
    return f'write "{sent}" in quotes' if isinstance(sent, int | float) else ""


def _read_epoch(sent: Any) -> str | None:
    """The time that a number probably stands for: seconds or milliseconds since the epoch."""
    if not isinstance(sent, int | float):
        return None
    if int(sent) in _EPOCH_MS:
        sent = sent / 1000
    return format_instant(int(sent * SECOND)) if int(sent) in _EPOCH_SEC else None


def _show(kind: str, sent: Any, due: list[str]) -> str:
    if isinstance(sent, bool):
        return "true" if sent else "false"
    if isinstance(sent, int | float):
        return repr(sent)[:LONGEST]
    if isinstance(sent, str) and len(sent) <= 20 and {"int", "float", "bool"} & set(due):
        return f"the text {sent!r}"
    return _join(list(_KINDS.get(kind, (kind,))))


def find_sent(value: Any, path: list[str]) -> tuple[Any, list[str]]:
    """What stands at a path of what was sent, and the path with the names of the keys that it
    leaves open (`...`), as far as they can be told."""
    named: list[str] = []
    for at, token in enumerate(path):
        if isinstance(value, list) and token.isdecimal() and int(token) < len(value):
            value = value[int(token)]
        elif isinstance(value, dict) and token == "..." and at == len(path) - 1:
            keys = [key for key, one in value.items() if not isinstance(one, str | None)]
            token = keys[0] if len(keys) == 1 else token
            value = value[keys[0]] if len(keys) == 1 else _ABSENT
        elif isinstance(value, dict) and token in value:
            value = value[token]
        else:
            return _ABSENT, path
        named.append(token)
    return value, named


def _score(wanted: str, known: str) -> float:
    if wanted == known:
        return 1.0
    short, long = sorted((wanted, known), key=len)
    ratio = SequenceMatcher(None, wanted, known).ratio()
    if len(short) >= 3 and short in long.split("_"):
        return _WITHIN + ratio / 100 + (0.05 if long.startswith(short) else 0)
    return max(ratio, _WITHIN - 0.1) if len(short) >= 4 and short in long else ratio


def _join(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
