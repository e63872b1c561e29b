"""Whether the replicas of Redis could take over. A replica that has not finished its first sync has
nothing: when its master is lost it is not promoted, and the slots of that master are gone until it
is back. So it is looked at before that happens."""

from typing import Any, Final

from ksana.fabric.redis.link import LinkDownError
from ksana.fabric.redis.router import Router

_IN_STEP: Final = "online"
"""What a master says of a replica whose sync is finished."""


class ReplicaWatch:
    """What the masters said last of their replicas."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.in_step = 0
        self.behind: tuple[str, ...] = ()
        """Addresses of replicas that would not take over."""

    async def look(self) -> None:
        """Ask every master. One that does not answer is left out: others tell of that."""
        in_step: list[str] = []
        behind: list[str] = []
        for master in await self._router.list_masters():
            try:
                answer = await self._router.ask_server(master, "INFO", "replication")
            except LinkDownError:
                continue
            for address, is_in_step in read_replicas(answer):
                (in_step if is_in_step else behind).append(address)
        self.in_step, self.behind = len(in_step), tuple(sorted(behind))


def read_replicas(answer: Any) -> list[tuple[str, bool]]:
    """The replicas in what a master says: (address, whether it is in step). Nothing for what is no
    such answer: a server may refuse INFO to us."""
    if not isinstance(answer, bytes):
        return []
    found = []
    for line in answer.decode("utf-8", "replace").splitlines():
        name, _, rest = line.partition(":")
        if not (name.startswith("slave") and name[5:].isdigit()):
            continue
        members = dict(part.partition("=")[::2] for part in rest.split(","))
        address = f"{members.get('ip', '')}:{members.get('port', '')}"
        found.append((address, members.get("state") == _IN_STEP))
    return found
