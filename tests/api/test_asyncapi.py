"""The description of the sockets: every frame type is in it, and it holds together."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ksana.domain.nodes import frames
from tests.api.nodes_ground import nodes_server
from tests.ground.pages import DOCS


def frame_types() -> dict[str, type[msgspec.Struct]]:
    """Every frame that the module of frames declares."""
    return {
        name: found
        for name, found in vars(frames).items()
        if isinstance(found, type)
        and issubclass(found, msgspec.Struct)
        and found.__struct_config__.tag_field == "type"
    }


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def follow(page: dict[str, Any], reference: str) -> Any:
    found: Any = page
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


@pytest.fixture
async def page(tmp_path: Path) -> dict[str, Any]:
    async with nodes_server(tmp_path) as server, httpx.AsyncClient(base_url=server.base) as http:
        answer = await http.get("/asyncapi.json")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        found: dict[str, Any] = answer.json()
        return found


@pytest.mark.spec("N3", "N4")
async def test_every_frame_type_is_described_with_its_type_member(page: dict[str, Any]) -> None:
    declared = frame_types()
    assert len(declared) > 20
    assert set(page["components"]["messages"]) == set(declared)
    for name, kind in declared.items():
        message = page["components"]["messages"][name]
        assert message["name"] == kind.__struct_config__.tag
        assert message["summary"]
        schema = follow(page, message["payload"]["$ref"])
        assert schema["properties"]["type"] == {"enum": [message["name"]]}
        wanted = {field.encode_name for field in msgspec.structs.fields(kind)} | {"type"}
        assert set(schema["properties"]) == wanted


@pytest.mark.spec("N3", "N4")
async def test_every_reference_leads_somewhere_and_both_sockets_are_there(
    page: dict[str, Any],
) -> None:
    assert page["asyncapi"] == "3.0.0"
    for reference in references(page):
        assert isinstance(follow(page, reference), dict), reference
    addresses = {name: channel["address"] for name, channel in page["channels"].items()}
    assert addresses == {"node": "/ws/node", "session": "/ws/session"}
    sides = {
        "receive_node": frames.FromNode,
        "send_node": frames.ToNode,
        "receive_session": frames.FromSession,
        "send_session": frames.ToSession,
    }
    assert set(page["operations"]) == set(sides)
    for name, side in sides.items():
        listed = [one["$ref"].rpartition("/")[2] for one in page["operations"][name]["messages"]]
        assert listed == [kind.__name__ for kind in side.__args__]


@pytest.mark.spec("N3", "N4")
async def test_every_frame_has_an_example_on_the_protocol_page_that_can_be_read() -> None:
    text = (DOCS / "reference" / "node-protocol.md").read_text()
    decoders = (frames.from_node, frames.to_node, frames.from_session, frames.to_session)
    read: set[str] = set()
    for line in re.findall(r'^\{"type".*\}$', text, re.MULTILINE):
        kinds = []
        for decoder in decoders:
            try:
                kinds.append(type(decoder.decode(line.replace("…", "x"))).__name__)
            except msgspec.ValidationError:
                continue
        assert kinds, line
        read |= set(kinds)
    shown = {frame_types()[name].__struct_config__.tag for name in read}
    every = {kind.__struct_config__.tag for kind in frame_types().values()}
    assert every - shown == {"asr_partial"}
