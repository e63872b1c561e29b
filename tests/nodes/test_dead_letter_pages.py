"""Pages of nodes and of their dead letters: bounded by bytes as well as by rows."""

from types import SimpleNamespace
from typing import Any

import pytest

from ksana.domain.nodes.records import NodeRecord
from ksana.ports.inbox import DeadLetter
from ksana.service.nodes.cluster import ClusterService

pytestmark = pytest.mark.spec("X13", "N14")


class Kept:
    """The dead letters of one instance, as the port has them."""

    def __init__(self, count: int, size: int) -> None:
        self.most_at_once = 0
        self._letters = [
            DeadLetter(
                id=f"{number:03}-0",
                instance_id="here",
                body=b"x" * size,
                deliveries=5,
                moved_at=1,
            )
            for number in range(count)
        ]

    async def list_letters(self, instance_id: str, after: str, limit: int) -> list[DeadLetter]:
        assert instance_id == "here"
        found = [letter for letter in self._letters if letter.id > after][:limit]
        self.most_at_once = max(self.most_at_once, len(found))
        return found


def cluster_with(kept: Kept) -> ClusterService:
    engine: Any = SimpleNamespace(fabric=SimpleNamespace(instance_id="here", dead_letters=kept))
    return ClusterService(engine)


async def read_pages(cluster: ClusterService, limit: int) -> list[int]:
    """How many letters each page has, up to the end; none comes twice."""
    sizes, seen, after = [], list[str](), ""
    while True:
        page = await cluster.list_letters("", after, limit)
        sizes.append(len(page))
        seen += [letter.id for letter in page]
        if not page.is_cut and len(page) < limit:
            break
        after = page[-1].id
    assert seen == sorted(set(seen))
    return sizes


@pytest.mark.parametrize(
    ("count", "size", "limit", "pages"),
    [
        (20, 1 << 20, 500, [8, 8, 4]),
        (100, 100, 500, [100]),
        (100, 100, 40, [40, 40, 20]),
        (3, 9 << 20, 500, [1, 1, 1]),
        (0, 0, 500, [0]),
    ],
)
async def test_a_page_ends_with_its_rows_or_its_bytes_and_goes_on(
    count: int, size: int, limit: int, pages: list[int]
) -> None:
    kept = Kept(count, size)
    assert await read_pages(cluster_with(kept), limit) == pages
    assert kept.most_at_once <= 32


@pytest.mark.parametrize(
    ("count", "models", "limit", "pages"),
    [(500, 256, 500, [248, 248, 4]), (500, 1, 500, [500, 0]), (7, 256, 3, [3, 3, 1])],
)
def test_a_page_of_nodes_ends_where_its_bytes_do(
    count: int, models: int, limit: int, pages: list[int]
) -> None:
    names = tuple(f"{'m' * 124}{number:04}" for number in range(models))
    view = [NodeRecord(f"n{number:03}", "here", 1, names) for number in range(count)]
    engine: Any = SimpleNamespace(fabric=SimpleNamespace(instance_id="here"), view=view)
    sizes, seen, after = [], list[str](), ""
    while True:
        page = ClusterService(engine).list_nodes(after, limit)
        sizes.append(len(page))
        seen += [node.node_id for node in page]
        if not page.is_cut and len(page) < limit:
            break
        after = page[-1].node_id
    assert seen == [node.node_id for node in view]
    assert sizes == pages
