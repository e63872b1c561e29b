"""Reads a run by the client that was generated from the API's description, types checked."""

import sys

from ksana_generated import AuthenticatedClient
from ksana_generated.api.runs import get_api_v1_runs_id
from ksana_generated.api.tasks import get_api_v1_tasks_id
from ksana_generated.models import Error, RunDetail, TaskDetail


def main(url: str, key: str, run_id: str) -> None:
    client = AuthenticatedClient(base_url=url, token=key)
    run = get_api_v1_runs_id.sync(run_id, client=client)
    assert isinstance(run, RunDetail)
    task = get_api_v1_tasks_id.sync(run.task_id, client=client)
    assert isinstance(task, TaskDetail)
    missing = get_api_v1_runs_id.sync("999999", client=client)
    assert isinstance(missing, Error)
    lasted = run.end_time.timestamp() - run.created_at.timestamp() if run.end_time else -1.0
    first = run.attempts[0]
    told = (run.status, first.attempt, lasted >= 0, task.schedule.kind.value, missing.code)
    sys.stdout.write("|".join(str(one) for one in told))


main(*sys.argv[1:])
