"""What the console says: in both languages, and nothing that is not said."""

import json
import re
from pathlib import Path

from tests.ground.pages import event_kinds

SOURCES = Path(__file__).parents[2] / "console" / "src"
EN: dict[str, str] = json.loads((SOURCES / "words" / "en.json").read_text(encoding="utf-8"))
ZH: dict[str, str] = json.loads((SOURCES / "words" / "zh.json").read_text(encoding="utf-8"))
PLACEHOLDER = re.compile(r"\{\w+\}")
FAMILIES = (
    "state.",
    "event.",
    "surface.",
    "priority.",
    "trigger.",
    "step.",
    "overlap.",
    "misfire.",
    "reason.",
    "fault.",
)
"""Words that are looked up by a code the API answers."""
SAME_IN_BOTH = {"step.tls"}


def code() -> str:
    files = [*SOURCES.rglob("*.ts"), *SOURCES.rglob("*.tsx")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_every_word_is_there_in_english_and_in_chinese() -> None:
    assert list(EN) == list(ZH)
    assert all(text.strip() for text in (*EN.values(), *ZH.values()))


def test_chinese_words_are_chinese() -> None:
    plain = {
        key for key, text in ZH.items() if not re.search(r"[一-鿿]", PLACEHOLDER.sub("", text))
    }
    assert plain == SAME_IN_BOTH


def test_both_languages_fill_in_the_same_values() -> None:
    differ = [
        key
        for key in EN
        if sorted(PLACEHOLDER.findall(EN[key])) != sorted(PLACEHOLDER.findall(ZH[key]))
    ]
    assert not differ


def test_every_kind_of_event_has_words() -> None:
    names = {kind.name for kinds in event_kinds().values() for kind in kinds}
    assert len(names) > 60
    assert not {name for name in names if f"event.{name}" not in EN}


def test_every_word_is_said_somewhere() -> None:
    text = code()
    prefixes = tuple(set(re.findall(r"`([a-z_]+\.)\$\{", text)))
    silent = [
        key for key in EN if f'"{key}"' not in text and not key.startswith((*FAMILIES, *prefixes))
    ]
    assert not silent
