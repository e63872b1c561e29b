"""The operator's key for secrets: what a start does with it before anything else is read."""

from typing import Final

import msgspec

from ksana.base import log
from ksana.base.ids import new_bytes
from ksana.boot.sealing import AesBox, check_ids, make_box, new_key, read_keys
from ksana.boot.settings.table import Settings
from ksana.boot.surface import Surface
from ksana.engine.tasks.resealing import BATCH, list_old_seals, reseal_tasks
from ksana.engine.tasks.task_secrets import TaskSecrets
from ksana.ports.secrets import ClearBox
from ksana.ports.store import Store, Tx
from ksana.ports.tasks.tables import TasksTx

TOKEN_KEY: Final = "callback_token_key"
_WARNING: Final = (
    "secrets are stored in clear text: set KSANA_SECRET_KEY or KSANA_SECRET_KEY_FILE; "
    "`ksana secret new-key` makes a key"
)


def make_key() -> str:
    """A new key, as the setting takes it."""
    return new_key()


def open_box(settings: Settings) -> ClearBox | AesBox:
    """The box of the keys in the settings."""
    return make_box(read_keys(settings.secret.key))


async def unlock(store: Store, box: ClearBox | AesBox, surfaces: tuple[Surface, ...]) -> None:
    """Make the box ready for an open store. Raise SetupError if something in the store was sealed
    by a key that is not here: better not to start than to fail call by call."""
    found: list[str] = []
    for surface in surfaces:
        if surface.seals is not None:
            found += await store.read(surface.seals)
    check_ids(found, box)
    box.use_token_key(bytes.fromhex(await store.transact(find_token_key)))
    if box.key_id is None:
        log.warning(_WARNING)


def find_token_key(tx: Tx) -> str:
    """The store's own key of callback tokens, made by the first who asks. A transaction
    function."""
    return tx.facts.find_or_note(TOKEN_KEY, new_bytes(32).hex())


class Rotated(msgspec.Struct, frozen=True):
    """What a rotation came to, in tasks."""

    resealed: int
    left: int


async def reseal_all(store: Store, box: ClearBox | AesBox) -> Rotated:
    """Store every secret as it should be, in batches."""
    secrets, resealed, left = TaskSecrets(box), 0, 0
    for seal in await store.read(list_old_seals, secrets):
        after = 0
        while True:
            found, done = await store.transact(reseal_tasks, seal, secrets, after, BATCH)
            if not found:
                break
            after, resealed, left = found[-1], resealed + done, left + len(found) - done
    return Rotated(resealed, left)


def count_seals(tx: TasksTx) -> dict[str, int]:
    """How many tasks have their secrets stored in each way. A read function."""
    return {seal: tx.task_seals.count(seal) for seal in tx.task_seals.list_seals()}
