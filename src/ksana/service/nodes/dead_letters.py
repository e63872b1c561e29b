"""Messages between instances that nobody could handle, as dead letters beside those of the other
surfaces. They are in the fabric, by the instance that keeps them; a replay puts the message back
into that instance's inbox."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from ksana.base import log
from ksana.base.errors import DependencyDownError, UnavailableError
from ksana.domain.dead_letters import LetterRecord, group_key
from ksana.ports.fabric import Fabric
from ksana.ports.inbox import LetterHead
from ksana.ports.store import Store, Tx
from ksana.service.core.outside_letters import OutsideView, make_id

SURFACE: Final = "nodes"
ENTITY: Final = "NODE"
MOST: Final = 20_000
"""Letters looked at in all: two instances keep as many at their defaults."""
_AT_ONCE: Final = 50
"""Letters in one step: Redis copies their messages, up to a megabyte each, to leave them out."""
_STATUS: Final = "UNHANDLED"


class NodeLetters:
    """See `service.core.outside_letters.OutsideSection`."""

    surface = SURFACE
    entity_type = ENTITY
    settle_level = "admin"

    def __init__(self, fabric: Fabric, store: Store) -> None:
        self._fabric = fabric
        self._store = store

    async def look(self) -> OutsideView:
        """The letters of all instances, the dead among them until another took theirs over."""
        health = self._fabric.health()
        if not health.ok:
            raise DependencyDownError(health.reason or "coordination is away")
        presence = self._fabric.presence
        living = [one.instance_id for one in await presence.list_living()]
        keepers = {self._fabric.instance_id, *living, *await presence.list_dead()}
        letters: list[LetterRecord] = []
        for keeper in sorted(keepers):
            letters += await self._list_of(keeper, MOST - len(letters))
        letters.sort(key=lambda one: one.place, reverse=True)
        return OutsideView(letters, is_capped=len(letters) >= MOST)

    async def settle(
        self, letters: Sequence[LetterRecord], actor: str, *, replays: bool
    ) -> list[str | None]:
        """Put messages back into the inboxes of those who keep them, or drop them."""
        act = self._fabric.dead_letters.replay if replays else self._fabric.dead_letters.delete
        done: list[str | None] = []
        for letter in letters:
            keeper, _, letter_id = letter.entity_id.rpartition("/")
            done.append((keeper if replays else "") if await act(keeper, letter_id) else None)
        settled = [one for one, where in zip(letters, done, strict=True) if where is not None]
        try:
            await self._store.transact(partial(_record, settled, actor, replays))
        except UnavailableError as error:  # it is done all the same
            log.warning("settled letters are not recorded", count=len(settled), error=str(error))
        return done

    async def _list_of(self, keeper: str, most: int) -> list[LetterRecord]:
        found: list[LetterRecord] = []
        before = ""
        while len(found) < most:
            limit = min(_AT_ONCE, most - len(found))
            heads = await self._fabric.dead_letters.list_heads(keeper, before, limit)
            found += [_read(keeper, head) for head in heads]
            if len(heads) < limit:
                break
            before = heads[-1].id
        return found


def _read(keeper: str, head: LetterHead) -> LetterRecord:
    what = f"a message of kind {head.kind}" if head.kind else "a message of no known kind"
    error = f"{what} was handed out {head.deliveries} times and never done"
    return LetterRecord(
        id=make_id(keeper, head.id),
        surface=SURFACE,
        entity_id=f"{keeper}/{head.id}",
        source=keeper,
        status=_STATUS,
        error=error,
        error_key=group_key(error),
        died_at=head.moved_at,
    )


def _record(letters: Sequence[LetterRecord], actor: str, replays: bool, tx: Tx) -> None:
    kind, reason = (
        ("NODE_MESSAGE_REPLAYED", "REPLAYED_BY_CALLER")
        if replays
        else ("NODE_MESSAGE_DISMISSED", "DISMISSED_BY_CALLER")
    )
    for letter in letters:
        tx.events.append(ENTITY, letter.entity_id, kind, {"reason": reason, "actor": actor})
