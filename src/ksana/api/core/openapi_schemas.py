"""The schemas of the API's description: those of the declared types, without what callers need not
send, with the words of each member."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from ksana.api.core.words import CORE_WORDS, SHAPE, Word, Words, find_word

_REF: Final = "#/components/schemas/{name}"
_SAID: Final = frozenset({"description", "examples", "title"})


class Schemas:
    """The schemas of some types, by type and by name."""

    def __init__(self, declared: Sequence[Any], words: Mapping[str, Words]) -> None:
        self._words = words
        types: dict[int, Any] = {}
        for kind in declared:
            types.setdefault(id(kind), kind)
        found, self.components = msgspec.json.schema_components(
            list(types.values()), ref_template=_REF
        )
        self._by_type = dict(zip(types, found, strict=True))
        for struct in _find_structs(types.values()):
            self._finish(struct)
        for schema in (*self.components.values(), *self._by_type.values()):
            _open_objects(schema)

    def of(self, declared: Any) -> dict[str, Any]:
        """The schema of a declared type."""
        return self._by_type[id(declared)]

    def name_of(self, declared: Any) -> str:
        """The name of a struct among the components."""
        return str(self.of(declared)["$ref"].rpartition("/")[2])

    def words_of(self, surface: str) -> Words:
        """The words for shapes of a surface."""
        return {**CORE_WORDS, **self._words.get(surface, {})}

    def _finish(self, struct: type[msgspec.Struct]) -> None:
        schema = self.components.get(struct.__name__)
        if schema is None or "properties" not in schema:
            return
        for name in getattr(struct, "SERVER_OWNED", ()):
            schema["properties"].pop(name, None)
        words = self.words_of(surface_of(struct.__module__))
        for name, member in schema["properties"].items():
            word = find_word(words, struct.__name__, name)
            if word is not None:
                _say(member, word)


def surface_of(module: str) -> str:
    """The surface that a module of ours belongs to: its name stands third or later."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 else ""


def _find_structs(declared: Iterable[Any]) -> list[type[msgspec.Struct]]:
    found: dict[type[msgspec.Struct], None] = {}
    waiting = list(inspect.multi_type_info(declared))
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, inspect.StructType):
            if kind.cls in found:
                continue
            found[kind.cls] = None
            waiting += [field.type for field in kind.fields]
            continue
        for name in ("type", "types", "item_type", "item_types", "key_type", "value_type"):
            inner = getattr(kind, name, None)
            if isinstance(inner, inspect.Type):
                waiting.append(inner)
            elif isinstance(inner, tuple):
                waiting += inner
    return list(found)


def _open_objects(schema: dict[str, Any]) -> None:
    """An object without declared members may have any: generators take silence for none."""
    if schema.get("type") == "object" and "properties" not in schema:
        schema.setdefault("additionalProperties", True)
    for inner in (*schema.get("anyOf", ()), *schema.get("properties", {}).values()):
        _open_objects(inner)


def _say(member: dict[str, Any], word: Word) -> None:
    """Add the words to a member."""
    if word.schema is not None:
        for name in [name for name in member if name not in _SAID and name != "default"]:
            del member[name]
        member.update(word.schema)
    member["description"] = word.text
    if word.example is not SHAPE:
        member["examples"] = [word.example]
    if word.format:
        for kind in [member, *member.get("anyOf", ())]:
            if kind.get("type") == "string":
                kind["format"] = word.format
