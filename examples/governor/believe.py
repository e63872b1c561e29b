"""Register two uncertain cognitions and watch what becomes of them.

One is supported by what the governor finds. Of the other nothing is found: it is looked at twice,
which is its budget, and then it is stale, until a person looks at it.
"""

import asyncio
import os
from datetime import timedelta

from ksana.client import GovernanceClient

BELIEFS = {"sky": "the sky is blue", "rain": "it rains"}


async def main() -> None:
    url = os.environ.get("KSANA_URL", "http://127.0.0.1:7100")
    async with GovernanceClient(url, os.environ.get("KSANA_API_KEY")) as client:
        for name, text in BELIEFS.items():
            await client.put_object(
                "cognition",
                name,
                status="needs_revalidate",
                epistemic_state="uncertain",
                auto_verify_budget=2,
                data={"text": text},
            )
            await client.enqueue("cognition", name, "revalidate", timedelta(), priority="high")
        async with asyncio.timeout(60):
            for name in BELIEFS:
                print(name, await settle(client, name))
        print("why:", (await client.explain_object("cognition", "rain"))["summary"])


async def settle(client: GovernanceClient, name: str) -> str:
    """Wait until it is decided, and say what was decided."""
    while True:
        belief = await client.get_object("cognition", name)
        if belief.status != "needs_revalidate":
            checks = f"looked at {belief.verify_count} times"
            return f"is {belief.status}, {belief.epistemic_state}, {checks}"
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main())
