"""What the API's description says of the members of the ledger."""

from typing import Final

from ksana.api.core.words import SHAPE, Word, Words, at

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

OUTLOOK: Final[Words] = {**_LEDGER}
