"""Secrets of tasks between the store and a call, callback tokens, and the loop that stores secrets
anew after a key was replaced."""

from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR
from ksana.domain.secrets import MASK, SEALED, hash_token
from ksana.domain.tasks.records import Definition, Task
from ksana.engine.tasks import resealing
from ksana.engine.tasks.resealing import BATCH, PAUSE, Resealer, list_old_seals, reseal_tasks
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.ports.secrets import SealError
from tests.ground.logs import capture_logs
from tests.unit.delivery_ground import ScriptedStore
from tests.unit.scripted_tx import ScriptedTx, Told
from tests.unit.task_ground import a_claimed_run, a_definition, a_task

pytestmark = pytest.mark.spec("X2")

UID = "0123456789abcdef00112233445566ff"


class LabelBox:
    """A SecretBox that writes on each text what for it is sealed."""

    known_ids = frozenset({"k1"})

    def __init__(self, key_id: str | None = "k1", *token_keys: bytes) -> None:
        self.key_id = key_id
        self.token_keys = token_keys or (b"first", b"second", b"third")

    def seal(self, text: str, context: str) -> str:
        if text == "unopened":
            raise SealError("no key opens it")
        return f"{SEALED}{context}|{text}"

    def open(self, text: str, context: str) -> str:
        label = f"{SEALED}{context}|"
        if not text.startswith(label):
            raise SealError("sealed for another place")
        return text.removeprefix(label)


SECRETS = TaskSecrets(LabelBox())


def a_secret_definition(**members: Any) -> Definition:
    given: dict[str, Any] = {
        "headers": {"Authorization": "key", "X-Open": "open"},
        "body": "body",
        "secret_body": True,
        "signing_secret": "sign",
    }
    return a_definition(**given | members)


def sealed_for(job_id: str, text: str, place: str) -> str:
    return f"{SEALED}task/{job_id}/{place}|{text}"


def test_a_task_is_stored_with_each_secret_sealed_for_its_place() -> None:
    sealed = SECRETS.seal(a_secret_definition(), "j")
    assert sealed == a_secret_definition(
        headers={
            "Authorization": sealed_for("j", "key", "header/authorization"),
            "X-Open": "open",
        },
        body=sealed_for("j", "body", "body"),
        signing_secret=sealed_for("j", "sign", "signing_secret"),
        sealed_by="k1",
    )
    assert SECRETS.open(sealed, "j") == a_secret_definition()
    with pytest.raises(SealError, match="another place"):
        SECRETS.open(sealed, "other")


def test_a_task_without_secrets_stays_as_it_is() -> None:
    plain = a_definition(body="body")
    assert SECRETS.seal(plain, "j") is plain
    assert SECRETS.open(plain, "j") is plain


def test_without_a_key_secrets_stay_as_they_are_unless_one_sealed_them() -> None:
    keyless = TaskSecrets(LabelBox(None))
    clear = a_secret_definition()
    assert keyless.seal(clear, "j") is clear
    sealed = SECRETS.seal(clear, "j")
    assert keyless.seal(sealed, "j").options.sealed_by == "", "it is told as not sealed"
    assert (keyless.key_id, SECRETS.key_id, TaskSecrets().key_id) == (None, "k1", None)


def test_what_was_dropped_with_its_task_cannot_be_opened() -> None:
    with pytest.raises(SealError, match="the task was deleted, and its secrets with it"):
        SECRETS.open(a_secret_definition(sealed_by="gone"), "j")


# Runs


def test_a_run_that_needs_nothing_opened_is_sent_as_it_is() -> None:
    run = a_claimed_run(override_body="own")
    assert SECRETS.open_run(run) is run


def test_a_run_is_sent_with_its_secrets_opened() -> None:
    task = a_task()
    sealed = SECRETS.seal(a_secret_definition(), "j")
    run = a_claimed_run(
        msgspec.structs.replace(task, definition=sealed),
        uid=UID,
        override_body=SECRETS.seal_override("own", sealed, "j"),
        callback_hash=SECRETS.hash_new_token(UID),
    )
    opened = SECRETS.open_run(run)
    assert opened == msgspec.structs.replace(
        run,
        task=msgspec.structs.replace(task, definition=a_secret_definition()),
        override_body="own",
        callback_token=SECRETS.find_token(UID, SECRETS.hash_new_token(UID)),
    )


@pytest.mark.parametrize("which", ["task", "body", "token"])
def test_each_of_them_alone_is_opened(which: str) -> None:
    clear, sealed = a_secret_definition(), SECRETS.seal(a_secret_definition(), "j")
    task = msgspec.structs.replace(a_task(), definition=sealed if which == "task" else clear)
    run = a_claimed_run(
        task,
        override_body=SECRETS.seal_override("own", clear, "j") if which == "body" else None,
        callback_hash=SECRETS.hash_new_token("f" * 32) if which == "token" else None,
    )
    opened = SECRETS.open_run(run)
    assert opened.task.definition == clear
    assert opened.override_body == ("own" if which == "body" else None)
    assert (opened.callback_token is None) is (which != "token")


def test_the_body_of_one_run_is_sealed_where_that_of_its_task_would_be() -> None:
    assert SECRETS.seal_override("own", a_definition(), "j") == "own"
    assert SECRETS.seal_override("own", a_secret_definition(), "j") == sealed_for(
        "j", "own", "override_body"
    )


# Callback tokens


def test_a_token_is_derived_from_the_first_key_and_stored_as_its_hash() -> None:
    """The same on every instance and in every version: open runs outlive both."""
    token = "0ef652b965aa11c5064b30b4600f1b3b"
    stored = "8248e60d179d0e7d530ac80ff88fe01520fee2db060392ad24df0e72759cb7c8"
    assert (SECRETS.hash_new_token(UID), hash_token(token)) == (stored, stored)
    assert SECRETS.find_token(UID, stored) == token


@pytest.mark.parametrize("key", [b"first", b"second", b"third"])
def test_a_token_of_any_known_key_is_found(key: bytes) -> None:
    stored = TaskSecrets(LabelBox("k1", key)).hash_new_token(UID)
    token = SECRETS.find_token(UID, stored + " " * 8)
    assert hash_token(token) == stored, "PostgreSQL fills the column up"


def test_a_token_of_a_key_that_is_gone_is_not_found() -> None:
    stored = TaskSecrets(LabelBox("k1", b"other")).hash_new_token(UID)
    with pytest.raises(SealError, match="not among those of KSANA_SECRET_KEY"):
        SECRETS.find_token(UID, stored)


def test_a_token_that_was_stored_before_they_were_hashed_is_its_own() -> None:
    assert SECRETS.find_token(UID, "a" * 32 + "  ") == "a" * 32


def test_of_a_long_key_the_first_64_bytes_count() -> None:
    hashes = [
        TaskSecrets(LabelBox("k1", b"k" * 63 + more)).hash_new_token(UID)
        for more in (b"a", b"ab", b"b")
    ]
    assert hashes[0] == hashes[1] != hashes[2]


# Stored anew


def resealed_tx(*tasks: Task, **answers: Any) -> ScriptedTx:
    return ScriptedTx(
        task_seals_list_sealed=list(tasks),
        task_seals_reseal_if_version=lambda task, stored: task.version == 3,
        **answers,
    )


def a_secret_task(task_id: int, **members: Any) -> Task:
    named = {name: members.pop(name) for name in ("is_deleted", "version") if name in members}
    task = a_task(id=task_id, **named)
    return msgspec.structs.replace(task, definition=a_secret_definition(**members))


@pytest.mark.parametrize(
    ("key_id", "old"),
    [("k1", ["k0", "clear", "unknown"]), (None, ["k0", "k1", "unknown"])],
)
def test_ways_of_storing_that_should_not_be_are_found(key_id: str | None, old: list[str]) -> None:
    tx = ScriptedTx(task_seals_list_seals=["k0", "k1", "clear", "gone", "unknown"])
    assert list_old_seals(tx, TaskSecrets(LabelBox(key_id))) == old


def test_tasks_are_sealed_by_the_present_key_and_deleted_ones_lose_their_secrets() -> None:
    kept, deleted = a_secret_task(1), a_secret_task(2, is_deleted=True)
    changed = a_secret_task(4, version=4)
    tx = resealed_tx(kept, deleted, changed)
    assert reseal_tasks(tx, "k0", SECRETS, 5, 9) == ([1, 2, 4], 2), "one was changed meanwhile"
    assert tx.told[0] == Told("task_seals.list_sealed", ("k0", 5, 9), {})
    stored = [args[1] for args in tx.args_of("task_seals.reseal_if_version")]
    assert stored[0] == SECRETS.seal(a_secret_definition(), "j")
    assert stored[1].headers["Authorization"] == MASK
    assert stored[1].options.sealed_by == "gone"


def test_secrets_that_cannot_be_opened_are_left_and_hold_up_no_other() -> None:
    tx = resealed_tx(a_secret_task(1, body="unopened"), a_secret_task(2))
    with capture_logs() as logs:
        assert reseal_tasks(tx, "k0", SECRETS, 0, 9) == ([1, 2], 1)
    [line] = logs
    assert (line["log_level"], line["task_id"]) == ("error", 1)


async def test_the_loop_goes_through_each_way_in_batches_and_looks_again_in_an_hour(
    clock: VirtualClock,
) -> None:
    store = ScriptedStore()
    resealer = Resealer(store, clock, SECRETS)  # type: ignore[arg-type]
    assert (resealer.pump.name, resealer.pump._poll_us) == ("task-secrets", HOUR)
    store.answer("list_old_seals", ["k0", "clear"])
    store.answer(
        "reseal_tasks", ([3, 5], 2), ([9], 1), ([], 0), ([4], 0), ([], 0), ([], 0), ([], 0)
    )
    pause, hour = clock.now() + PAUSE, clock.now() + HOUR
    with capture_logs() as logs:
        assert [await resealer.step() for _ in range(4)] == [pause, pause, pause, hour]
    asked = [args for name, args in store.asked if name == "reseal_tasks"]
    assert [(seal, after) for seal, _, after, _ in asked] == [
        ("k0", 0),
        ("k0", 5),
        ("k0", 9),
        ("clear", 0),
        ("k0", 9),
        ("clear", 4),
    ]
    assert asked[0] == ("k0", SECRETS, 0, BATCH)
    assert [(line["event"], line["tasks"]) for line in logs] == [
        ("secrets of tasks are stored anew", 3)
    ]
    assert resealer.resealed == 3
    store.asked.clear()
    with capture_logs() as logs:
        assert await resealer.step() == hour
    assert logs == [], "nothing was done"
    assert [args[2] for name, args in store.asked if name == "reseal_tasks"] == [0, 0]


async def test_a_store_that_is_in_order_costs_one_look(clock: VirtualClock) -> None:
    store = ScriptedStore()
    store.answer("list_old_seals", [])
    resealer = Resealer(store, clock, CLEAR)  # type: ignore[arg-type]
    assert await resealer.step() == clock.now() + resealing.EVERY
    assert store.names() == ["list_old_seals"]
    assert resealer.resealed == 0
