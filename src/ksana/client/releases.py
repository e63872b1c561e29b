"""Results of queue jobs on their way: the release of each lease, in batches."""

from collections.abc import Callable, Sequence

import msgspec

from ksana.client.errors import ApiError
from ksana.client.handlers import MAX_ERROR_CHARS, one_line
from ksana.client.leased_job import LeasedJob
from ksana.client.outbox import Outbox
from ksana.client.queue import QueueClient
from ksana.client.shapes import ReleaseItem
from ksana.client.transport import CallBackoff


class Releases(Outbox[LeasedJob, ReleaseItem]):
    """Takes results and sees them through."""

    def __init__(
        self,
        client: QueueClient,
        settle: Callable[[LeasedJob, ReleaseItem, ApiError | None], None],
        backoff: CallBackoff,
    ) -> None:
        super().__init__(settle, backoff)
        self._client = client

    async def send(self, items: Sequence[ReleaseItem]) -> list[ApiError | None]:
        return await self._client.release_batch_briefly(items)

    def substitute(self, item: ReleaseItem, error: ApiError) -> ReleaseItem:
        text = f"the server refused the result: {one_line(error)}"[:MAX_ERROR_CHARS]
        return msgspec.structs.replace(
            item, status="FAILED", result_data=None, error=text, metrics=None
        )

    def size_of(self, item: ReleaseItem) -> int:
        return len(bytes(item.result_data)) if item.result_data is not None else 0
