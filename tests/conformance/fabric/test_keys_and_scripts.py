"""RedisKeys as the contract spells them, scripts that a Cluster can route (F46)."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.clock import SystemClock
from ksana.base.instant import SECOND
from ksana.domain.nodes.records import Binding
from ksana.domain.nodes.storm import StormLimits
from ksana.fabric.redis import scripts
from ksana.fabric.redis.fabric import RedisFabric
from ksana.fabric.redis.keys import RedisKeys, slot_of
from ksana.fabric.redis.router import Router
from tests.conformance.fabric.world import LONG, a_job, a_node, an_instance, change
from tests.ground.redis import Redis

ids = st.text(
    alphabet=st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=40
)


@pytest.mark.spec("N1", "N2", "N6", "N7", "N8", "N9", "N10")
def test_keys_are_those_of_the_contract() -> None:
    keys = RedisKeys("p")
    assert keys.presence("i") == "p:schedulers:presence:i"
    assert keys.owner("node", "n") == "p:nodes:owner:{node:n}"
    assert keys.owner("session", "s") == "p:sessions:owner:{session:s}"
    assert keys.inbox("i") == "p:streams:{instance:i}:inbox"
    assert keys.dlq("i") == "p:streams:{instance:i}:dlq"
    assert keys.nodes_all == "p:v1:nodes:all"
    assert keys.nodes_last_seen == "p:v1:nodes:last_seen"
    assert keys.node_presence("n") == "p:v1:nodes:presence:n"
    assert keys.node_snapshot("n") == "p:v1:nodes:snapshot:n"
    assert keys.request_lock("r") == "p:v1:requests:lock:r"
    assert keys.request_binding("r") == "p:v1:requests:binding:r"
    assert keys.reserved("n") == "p:v1:nodes:{node:n}:reserved"
    assert keys.sessions("i") == "p:v1:sessions:{instance:i}:listed"
    assert keys.job("j") == "p:v1:jobs:{job:j}:fsm"


@pytest.mark.fault("F46")
@pytest.mark.spec("N13")
@given(ids)
def test_keys_that_belong_together_lie_in_one_slot_whatever_the_id(name: str) -> None:
    keys = RedisKeys("p")
    for group in (
        (keys.inbox(name), keys.dlq(name), keys.drainer(name), keys.sessions(name)),
        (keys.reserved(name), keys.away(name), keys.away_marks(name), keys.drain(name)),
    ):
        assert len({slot_of(key) for key in group}) == 1


class Recorder(Router):
    """Notes the keys of every script that is called."""

    called: dict[str, list[Sequence[str]]]

    def script_step(self, op: str, script: Any, keys: Sequence[str], arguments: Any) -> Any:
        self.called.setdefault(script.name, []).append(tuple(keys))
        return super().script_step(op, script, keys, arguments)


async def use_everything(fabric: RedisFabric) -> None:
    """Every operation that calls a script."""
    await fabric.presence.renew(an_instance(fabric), LONG)
    await fabric.presence.forget("dead")
    await fabric.owners.claim("node", "n", LONG)
    await fabric.owners.renew("session", ["s"], LONG)
    await fabric.owners.replace_if("node", "n", "x", LONG)
    await fabric.owners.drop_if_ours("node", "n")
    await fabric.inbox.open()
    await fabric.inbox.send("one", b"x")
    found = await fabric.inbox.read(1, SECOND)
    await fabric.inbox.reclaim(0, 1)
    await fabric.inbox.done([found[0].id])
    await fabric.inbox.bury()
    await fabric.inbox.begin_drain("dead", LONG)
    await fabric.inbox.drain("dead", 1)
    await fabric.inbox.end_drain("dead")
    await fabric.dead_letters.list_heads("one", "", 1)
    await fabric.dead_letters.replay("one", "1-1")
    await fabric.snapshots.publish([a_node("n")], LONG)
    await fabric.snapshots.read_changes(0)
    await fabric.snapshots.sweep(LONG)
    await fabric.requests.bind("r", Binding(job_id="j"), LONG)
    await fabric.requests.unbind_if("r", "j")
    await fabric.reservations.reserve("n", "j", 1, "echo", LONG)
    await fabric.reservations.count("n")
    await fabric.marks.mark_away("n", "echo", StormLimits())
    await fabric.marks.list_away("n")
    await fabric.jobs.create(a_job("j"), "one", LONG)
    await fabric.jobs.move("j", change("dispatch", 1, "n"))
    await fabric.jobs.adopt_if("j", "one", LONG)


@pytest.mark.fault("F46")
@pytest.mark.spec("N13")
async def test_every_script_is_called_with_all_its_keys_in_one_slot(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: dict[str, list[Sequence[str]]] = {}
    monkeypatch.setattr(Recorder, "called", called, raising=False)
    monkeypatch.setattr("ksana.fabric.redis.fabric.Router", Recorder)
    fabric = RedisFabric(redis.url(), "one", SystemClock(), "test")
    await use_everything(fabric)
    await fabric.close()
    assert sorted(called) == scripts.list_names()  # none is left out
    for name, calls in called.items():
        for keys in calls:
            assert len({slot_of(key) for key in keys}) == 1, (name, keys)


@pytest.mark.spec("N13")
@pytest.mark.parametrize("name", scripts.list_names())
def test_a_script_names_its_keys_first_and_takes_all_of_them_through_keys(name: str) -> None:
    lines = scripts.load(name).text.splitlines()
    head = [line for line in lines if line.startswith("--")]
    assert lines[: len(head)] == head
    code = "\n".join(lines[len(head) :])
    told = set(re.findall(r"^-- (KEYS\[\d\])", "\n".join(head), re.MULTILINE))
    assert told == set(re.findall(r"KEYS\[\d\]", code))
    # The first word after the command's name is a key, unless the command has none there.
    for command, first in re.findall(r"redis\.p?call\('(\w+)'(?:, ([^,)]+))?", code):
        if command in ("XGROUP", "XINFO"):
            continue
        if command == "XREADGROUP":
            assert "'STREAMS', KEYS[1], '>'" in code
            continue
        assert command == "TIME" or first.startswith("KEYS["), (command, first)
