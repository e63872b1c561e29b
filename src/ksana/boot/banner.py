"""What the start finds in the store and tells the operator: address, place, and contents."""

import sys
from collections.abc import Iterable

import msgspec

from ksana import __version__
from ksana.base import log
from ksana.base.instant import Instant, format_instant
from ksana.boot.stores import list_notes, schema_version
from ksana.boot.surface import Surface
from ksana.ports.store import Store, Tx


class Stock(msgspec.Struct, frozen=True):
    """What lay in the store when we came."""

    schema: int
    counts: dict[str, int]
    last_alive_at: Instant | None
    """The last sign of life of any instance before us."""
    notes: tuple[str, ...] = ()
    """What the store itself has to tell, in sentences."""


async def take_stock(store: Store, surfaces: Iterable[Surface]) -> Stock:
    """Look around, by one read for the core and one for each surface."""
    counts, last_alive_at = await store.read(_look_around)
    for surface in surfaces:
        if surface.found is not None:
            counts.update(await store.read(surface.found))
    return Stock(schema_version(), counts, last_alive_at, tuple(list_notes(store)))


def announce(address: str, store_url: str, stock: Stock, *, is_shown: bool = True) -> None:
    """Print it for people on stdout, if people look there, and log it once for machines: lines that
    are not JSON must not come between those that are."""
    notes = list(stock.notes)
    last = None if stock.last_alive_at is None else format_instant(stock.last_alive_at)
    log.info(
        "started",
        version=__version__,
        address=address,
        store=store_url,
        schema=stock.schema,
        found=stock.counts,
        last_served=last,
        **({"notes": notes} if notes else {}),
    )
    if not is_shown:
        return
    parts = [f"{count} {name}" for name, count in stock.counts.items()]
    if stock.last_alive_at is None:
        parts.insert(0, "a new store")
    else:
        parts.append(f"last served {format_instant(stock.last_alive_at)}")
    lines = (
        f"ksana {__version__} listens on {address}",
        f"store {store_url} (schema {stock.schema})",
        f"found {', '.join(parts)}",
        *(f"note: {note}" for note in stock.notes),
    )
    try:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        pass  # nobody reads us; the log has it too


def _look_around(tx: Tx) -> tuple[dict[str, int], Instant | None]:
    instances = tx.instances.list_instances()
    signs = [instance.stopped_at or instance.alive_at for instance in instances]
    counts = {
        "API keys": sum(key.revoked_at is None for key in tx.keys.list_keys()),
    }
    return counts, max(signs, default=None)
