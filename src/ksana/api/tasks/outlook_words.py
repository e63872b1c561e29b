"""What the API's description says of the members of the ledger, and of what is
to come."""

from typing import Final

from ksana.api.core.words import SHAPE, Word, Words, at

_EVERY: Final = {"kind": "every", "every": "5m"}
_SPAN: Final = {"from": "2026-02-21T00:00:00Z", "to": "2026-02-21T01:00:00Z"}

_LEDGER: Final[Words] = {
    "LedgerQuery.task_id": Word("Only this task, a deleted one too.", 7),
    "LedgerQuery.cursor": Word("A `next_cursor`, with the same window.", "7.1767225600000000"),
    "LedgerShown.next_cursor": Word("Send it as `cursor` to go on; null at the end.", "7"),
    "expected": Word("Slots of the schedule, as it was in force.", 24),
    "fired": Word("Slots that became a run.", 21),
    "by_status": Word("Those runs by status.", {"SUCCESS": 20, "FAILED": 1}),
    "skipped": Word("Slots that did not, by the reason.", {"MISFIRE_SKIP": 2}),
    "forgotten": Word("Slots whose runs are older or more than what is kept.", 0),
    "pending": Word("Slots that are about to be decided, or to come.", 1),
    "missing": Word("Slots without a record and without a reason: always 0.", 0),
    "LedgerShown.total": Word("The sums of this page.", SHAPE),
    "tasks": Word("The tasks of this page.", []),
    "LedgerRow.name": Word("The task's name.", "nightly"),
    "LedgerRow.deleted": Word("Whether the task is deleted.", False),
    "known_from": at("What the task was before is not known any more, and not counted."),
}

_BACKFILL: Final[Words] = {
    "BackfillBody.from": at("The first slot may be at this time."),
    "BackfillBody.to": at("The last slot is before this time; now if absent."),
    "BackfillBody.limit": Word("How many slots at most.", 100),
    "BackfillBody.dry_run": Word("Only say what would be fired.", True),
    "max_age": Word("Slots older than this are left alone; null for no bound.", "24h"),
    "per_minute": Word("How many runs are let in a minute, at most.", 60),
    "CatchUp.count": Word("How many slots at most, the newest.", 10),
    "CatchUpQuery.count": Word("How many slots `catch_up` would make up; absent: none.", 10),
    "EnableBody.catch_up": Word("What is made up; null for nothing.", {"count": 10}),
    "catch_up": Word("What is made up of the slots that passed; null if nothing was asked.", None),
    "dry_run": Word("True: nothing was fired.", False),
    "Backfilled.from": at("From which slot on, after the caps."),
    "Backfilled.to": at("Before which slot, after the caps."),
    "in_range": Word("Slots that the schedule has there.", 24),
    "recorded": Word("Slots looked at that have a run already.", 4),
    "Backfilled.fires": Word("Slots that are fired.", 20),
    "Backfilled.first": at("The first of them."),
    "Backfilled.last": at("The last of them."),
    "Backfilled.slots": Word("The first twenty of them.", []),
    "ends_at": at("When the last of them is let in, at the earliest."),
    "next_from": at("Where to go on; null at the end."),
    "FilledSlot.slot": at("The slot."),
    "starts_at": at("When it is let in, at the earliest."),
    "BackfillStopped.canceled": Word("How many runs were cancelled.", 3),
}

_SIMULATE: Final[Words] = {
    "SimulateBody.tasks": Word("The tasks to try.", [{"task": {"schedule": _EVERY}}]),
    "SimulateBody.from": at("When it begins; now if absent."),
    "lasts": Word("How long it goes on.", "24h"),
    "outages": Word("Spans in which no instance runs.", [_SPAN]),
    "capacity": Word("Calls that may be under way together; no bound if absent.", 10),
    "TriedTask.task": Word("The task, as one is made.", SHAPE),
    "takes": Word("How long one call takes.", "30s"),
    "fails": Word("Spans in which its target fails.", [_SPAN]),
    "SpanBody.from": at("Its first instant."),
    "SpanBody.to": at("Its end, not included.", "2026-02-21T01:00:00Z"),
    "Simulated.from": at("When it began."),
    "Simulated.to": at("How far it came.", "2026-02-22T00:00:00Z"),
    "cut": Word("Whether it ended early, after as many steps as it may make.", False),
    "most_calls": Word("Calls that were under way together, at most.", 3),
    "most_ready": Word("Runs that waited for capacity, at most.", 0),
    "Simulated.tasks": Word("What became of each task's slots.", []),
    "runs": Word("The runs, in the order they were decided.", []),
    "runs_left_out": Word("Runs that are counted but not listed.", 0),
    "TriedSums.name": Word("The task's name.", "nightly"),
    "TriedSums.fired": Word("Slots that became a run.", 21),
    "TriedSums.attempts": Word("Calls that were begun.", 24),
    "most_active": Word("Its runs that were active together, at most.", 1),
    "most_waiting": Word("Its runs that waited for their turn, at most.", 2),
    "longest_wait_sec": Word("The longest time from a slot to its first call.", 30.0),
    "TriedRun.task": Word("Which of the tasks, from 0.", 0),
    "TriedRun.status": Word("Where it stood at the end.", "SUCCESS"),
    "TriedRun.attempts": Word("Its calls.", []),
    "decided_at": at("When the slot was decided."),
    "TriedRun.ended_at": at("When it ended; null if it had not."),
    "end": Word("How the call ended.", "SUCCESS"),
}

_FORECAST: Final[Words] = {
    "hours": Word("How many hours to look ahead.", 24),
    "bucket": Word("The width of a span: 1m, 15m or 1h.", "1h"),
    "ForecastQuery.from": at("From when on; now if absent. Spans begin at whole minutes or hours."),
    "ForecastQuery.host": Word("Only firings at this host.", "example.com"),
    "ForecastShown.from": at("The start of the first span."),
    "ForecastShown.to": at("The end of the last one.", "2026-02-22T00:00:00Z"),
    "bucket_sec": Word("The width of a span in seconds.", 3600),
    "firings": Word("Firings in all.", 288),
    "counts": Word("Firings in each span.", [12, 12]),
    "hosts": Word("The hosts with the most firings.", []),
    "elsewhere": Word("Firings at hosts that are not listed.", 0),
    "HostShown.host": Word("The host; `@queue` and `@node` for jobs.", "example.com"),
    "mean_sec": Word("How long runs took lately, in seconds; null if not known.", 0.4),
    "busy_sec": Word("How long all the firings take together.", 115.2),
    "busiest": Word("The tasks with the most firings.", []),
    "TaskAhead.name": Word("The task's name.", "nightly"),
    "TaskAhead.host": Word("The host that it calls.", "example.com"),
    "tasks_counted": Word("Armed tasks that were counted.", 120),
    "suggestions": Word("The tasks.", []),
    "SpreadShown.name": Word("The task's name.", "nightly"),
    "SpreadShown.host": Word("The host that it calls.", "example.com"),
    "together": Word("How many tasks fire there in the same second.", 12),
    "SpreadShown.now": Word("Its expression now.", "0 0 3 * * *"),
    "SpreadShown.cron_expr": Word("Its expression with H for the minute.", "0 H 3 * * *"),
    "becomes": Word("What that becomes for it.", "0 37 3 * * *"),
    "complete": Word("Whether those are all; else the first ones by id.", True),
}

_SERIES: Final[Words] = {
    "range": Word("How far back: 1h, 6h, 24h or 7d.", "24h"),
    "RunSeriesShown.from": at("The start of the first span."),
    "succeeded": Word("Runs that succeeded, in each span.", [12, 11]),
    "failed": Word("Runs that failed or timed out, in each span.", [0, 1]),
    "RunSeriesShown.skipped": Word("Slots that were skipped, in each span.", [0, 0]),
    "canceled": Word("Runs that were cancelled, in each span.", [0, 0]),
    "misfired": Word("Slots that nobody was there for, in each span.", [0, 0]),
    "RunSeriesShown.mean_sec": Word("How long successes took on average.", [0.2, None]),
}

_RESUME: Final[Words] = {
    "disabled_at": at("Since when it is disabled; null if it is enabled."),
    "passed": Word("Slots that passed since; they are not made up.", 12),
    "first_passed": at("The first of them."),
    "last_passed": at("The last of them."),
    "fires": Word("Runs that enabling it starts at once.", 0),
    "ResumePreview.next_run_at": at("The slot that it is armed for then."),
    "fires_at": at("When that slot fires, its jitter included."),
}

OUTLOOK: Final[Words] = {**_LEDGER, **_BACKFILL, **_SIMULATE, **_FORECAST, **_SERIES, **_RESUME}
