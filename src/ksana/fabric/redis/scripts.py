"""The Lua scripts: one file each, loaded once, called by their SHA."""

import hashlib
from functools import cache
from pathlib import Path

import msgspec

_FOLDER = Path(__file__).parent / "lua"


class Script(msgspec.Struct, frozen=True):
    """A script and the name under which a server knows it."""

    name: str
    text: str
    sha: str


@cache
def load(name: str) -> Script:
    """Read a script from its file."""
    text = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    return Script(name=name, text=text, sha=hashlib.sha1(text.encode()).hexdigest())


@cache
def list_names() -> list[str]:
    """All scripts there are."""
    return sorted(path.stem for path in _FOLDER.glob("*.lua"))
