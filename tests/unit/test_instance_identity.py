"""Whether another instance is dead for certain, and what its death does to leases and outages."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.boot.instance_identity import find_host, is_dead, make_instance_id
from ksana.engine.core.membership import Membership
from ksana.ports.store import Instance
from ksana.store.sql import open_store

HERE = find_host()


def instance(pid: int, host: str = HERE) -> Instance:
    return Instance(f"box-{pid}-abc123", host, "0", 0, 0, 15 * SECOND, None, None)


@pytest.fixture
def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return child.pid


@pytest.mark.skipif("@" not in HERE, reason="this system does not tell its table of processes")
def test_a_process_of_this_machine_that_is_gone_is_dead(dead_pid: int) -> None:
    assert is_dead(instance(dead_pid), HERE)
    assert not is_dead(instance(os.getppid()), HERE)


@pytest.mark.skipif("@" not in HERE, reason="this system does not tell its table of processes")
def test_a_process_id_that_is_ours_now_proves_the_other_dead() -> None:
    assert is_dead(instance(os.getpid()), HERE)


def test_nothing_is_proved_about_another_machine_or_a_configured_name(dead_pid: int) -> None:
    assert not is_dead(instance(dead_pid, "elsewhere@0123456789ab"), HERE)
    assert not is_dead(instance(dead_pid, HERE.partition("@")[0]), HERE.partition("@")[0])
    assert not is_dead(msgspec.structs.replace(instance(dead_pid), id="scheduler-a"), HERE)


def test_an_instance_id_tells_the_configured_name_and_the_process_and_differs_in_each_life() -> (
    None
):
    assert make_instance_id("scheduler-a").startswith(f"scheduler-a-{os.getpid()}-")
    assert make_instance_id("scheduler-a") != make_instance_id("scheduler-a")
    assert make_instance_id("auto").split("-")[-2] == str(os.getpid())


@pytest.mark.spec("C10", "X4")
async def test_a_restart_ends_the_lease_of_the_dead_and_records_the_gap(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/ksana.db", clock, inline=True)
    network = _NotSole(store)
    await Membership(network, clock, "one", "host", "0").join()
    died_at = clock.now()
    await clock.advance(3 * SECOND)
    await Membership(
        network, clock, "two", "host", "0", is_dead=lambda other: other.id == "one"
    ).join()
    instances = {one.id: one for one in await store.read(lambda tx: tx.instances.list_instances())}
    assert instances["one"].lease_until == died_at
    assert await store.read(lambda tx: tx.instances.list_outages(0)) == [(died_at, clock.now())]
    await Membership(network, clock, "three", "host", "0").join()
    assert len(await store.read(lambda tx: tx.instances.list_outages(0))) == 1
    await store.close()


class _NotSole:
    """The store as a network database would look: others may be on it."""

    sole = False

    def __init__(self, store: object) -> None:
        self.transact = store.transact  # type: ignore[attr-defined]
