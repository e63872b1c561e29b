"""The claimer: takes ready runs from the store for hosts that have free slots."""

from collections.abc import Callable, Iterable

from ksana.base.clock import Clock
from ksana.base.ids import new_tokens
from ksana.base.instant import SECOND, Instant
from ksana.domain.tasks.changes import start
from ksana.domain.tasks.records import ClaimedRun, is_place
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.tasks.claimed_run import claimed_run_of
from ksana.engine.tasks.dispatcher import Dispatcher
from ksana.engine.tasks.run_writer import write_changes
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TasksTx

MAX_CLAIM = 500


class Claimer:
    """Knows the hosts that have ready runs. Its poll reads them from the store."""

    def __init__(
        self, store: Store, clock: Clock, instance_id: str, dispatcher: Dispatcher
    ) -> None:
        self._store = store
        self._instance_id = instance_id
        self._dispatcher = dispatcher
        self._ready: dict[str, None] = {}
        self._stopped = False
        self.on_place: Callable[[str], None] = lambda place: None
        """A run is about to start that no host is called for."""
        self.pump = Pump("claims", clock, self._claim, poll_us=5 * SECOND)

    def add(self, hosts: Iterable[str]) -> None:
        """These hosts have runs about to start."""
        self._note(hosts)
        self.pump.signal()

    def look_again(self) -> None:
        """A slot may have come free."""
        if self._ready:
            self.pump.signal()

    def stop(self) -> None:
        """Take nothing more."""
        self._stopped = True

    def _note(self, hosts: Iterable[str]) -> None:
        for host in hosts:
            if is_place(host):
                self.on_place(host)
            else:
                self._ready[host] = None
        self._watch_slots()

    async def _claim(self) -> Instant | None:
        if self._stopped or not self._dispatcher.is_lease_held:
            return None
        if not self._ready:
            self._note(await self._store.read(_list_ready_hosts))
        left = False
        for host in list(self._ready):
            room, soon = self._dispatcher.room_at(host)
            room = min(room, MAX_CLAIM)
            if room <= 0:
                continue
            lease = self._dispatcher.lease_generation
            claimed, watermark = await self._store.transact(
                claim_ready, host, self._instance_id, new_tokens(room), soon, lease
            )
            if len(claimed) < room:
                self._ready.pop(host, None)
            else:
                left = True
            self._dispatcher.take(claimed, watermark)
        self._watch_slots()
        return AGAIN if left else None

    def _watch_slots(self) -> None:
        """Have a free slot told as long as runs wait for one."""
        self._dispatcher.on_free = self.pump.signal if self._ready else None


def claim_ready(
    tx: TasksTx, host: str, instance_id: str, tokens: list[int], soon: int, lease: int = 0
) -> tuple[list[ClaimedRun], int]:
    """Take ready runs of a host, one for each token, oldest first. The first `soon` of them are
    sent at once: answer the watermark that covers these, too."""
    ready = tx.run_due.list_ready(host, len(tokens))
    changes = [
        start(run, instance_id, tx.now, token)
        for (run, _), token in zip(ready, tokens, strict=False)
    ]
    written = write_changes(tx, changes)
    claimed = [
        claimed_run_of(run, task, change, instance_id, lease)
        for (run, task), change, is_ours in zip(ready, changes, written.done, strict=True)
        if is_ours
    ]
    watermark = max((run.run_id for run in claimed[: max(0, soon)]), default=0)
    if watermark:
        tx.instances.note_begun(instance_id, watermark)
    return claimed, watermark


def _list_ready_hosts(tx: TasksTx) -> list[str]:
    return tx.run_due.list_ready_hosts()
