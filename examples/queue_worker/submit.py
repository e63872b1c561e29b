"""Submit some jobs for the worker beside this file, wait for them, and print how they ended."""

import asyncio
import os

from ksana.client import Job, JobStatus, NewJob, QueueClient


async def wait_for(client: QueueClient, job: Job) -> JobStatus:
    """Look at a job until it has ended."""
    while True:
        status = await client.get_job(job.job_id)
        if status.job.is_finished:
            return status
        await asyncio.sleep(0.1)


async def main() -> None:
    """Six pictures of 30 units and one small job that need not wait behind them."""
    async with QueueClient(
        os.environ.get("KSANA_URL", "http://127.0.0.1:7100"), os.environ.get("KSANA_API_KEY")
    ) as client:
        pictures = await client.submit_batch(
            [
                NewJob(
                    addon_id="visuals",
                    job_type="render_image",
                    cost_units=30,
                    payload={"prompt": f"a lake, take {n}"},
                )
                for n in range(6)
            ]
        )
        words = await client.submit(
            "visuals", "count_words", {"text": "to be or not to be"}, priority="HIGH"
        )
        snapshot = await client.snapshot()
        print(f"capacity: {snapshot.capacity.used} of {snapshot.capacity.total} units in use")
        for job in [words, *pictures]:
            status = await wait_for(client, job)
            assert status.result is not None
            print(f"{status.job.job_type} {status.job.state}: {status.result.result_data}")


if __name__ == "__main__":
    asyncio.run(main())
