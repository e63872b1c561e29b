"""Ask the node beside this file for jobs, and print what it answers."""

import asyncio
import os

from ksana.client import NodeJobError, NodeSession


async def main() -> None:
    """One job with partial results, one without, one that fails, one that is cancelled."""
    async with NodeSession(
        os.environ.get("KSANA_URL", "http://127.0.0.1:7100"), os.environ.get("KSANA_API_KEY")
    ) as session:
        job = session.request("spell", {"text": "to be or not"}, wait_sec=10)
        async for part in job:
            print("partial", part["word"])
        print("result", await job)

        print("result", await session.request("count", {"text": "to be"}, wait_sec=10))

        try:
            await session.request("spell", {"text": ""}, wait_sec=10)
        except NodeJobError as error:
            print("failed", error.code)

        long = session.request("spell", {"text": "word " * 10_000}, wait_sec=10)
        await anext(aiter(long))
        long.cancel()
        try:
            await long
        except NodeJobError as error:
            print("ended", error.code)


if __name__ == "__main__":
    asyncio.run(main())
