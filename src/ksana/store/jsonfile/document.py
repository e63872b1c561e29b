"""The text of `jobs.json`: read into jobs, good and bad, and put together again from pieces that
are encoded once.

    {"version": 1, "updated_at": T, "jobs": [ … ], "last_task_id": N, "keys": [ … ]}

`last_task_id` stands there only while the highest id ever given is not among the jobs, `keys` only
when API keys exist. Members we do not know, and jobs that cannot be read, are written back as they
were.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from ksana.base.errors import InvalidError, SetupError
from ksana.base.ids import new_uuid
from ksana.base.instant import Instant, format_instant, parse_instant
from ksana.domain.tasks.records import Task
from ksana.domain.tasks.timer_document import (
    MAX_TASK_ID,
    StoredTimer,
    TimerDefaults,
    place,
    read_timer,
    write_head,
    write_tail,
)
from ksana.ports.store import ApiKey

VERSION: Final = 1
JOBS_IN_A_PART: Final = 256
_OURS: Final = frozenset({"version", "updated_at", "jobs", "last_task_id", "keys"})
_BOM: Final = b"\xef\xbb\xbf"
_encode = msgspec.json.Encoder().encode


class UnreadableError(Exception):
    """The file is not a document of ours: torn, empty, or something else altogether."""


class BadJob(msgspec.Struct, frozen=True):
    """A job that cannot be armed: its text as it stands, its name, and what is wrong."""

    text: bytes
    label: str
    reason: str


class Document(msgspec.Struct, frozen=True):
    """What a file held. Ids are given out and unique, tasks in the order of ids."""

    timers: list[tuple[int, str, StoredTimer]]
    bad: list[BadJob]
    updated_at: Instant | None = None
    last_task_id: int = 0
    keys: list[ApiKey] = []
    unknown: dict[str, bytes] = {}

    def list_tasks(self, alive_at: Instant, now: Instant) -> list[Task]:
        """The jobs as tasks, placed in time."""
        return [
            place(stored, task_id, job_id, alive_at, now) for task_id, job_id, stored in self.timers
        ]


EMPTY: Final = Document([], [])


class _Label(msgspec.Struct, frozen=True):
    id: Any = None
    name: Any = None
    task_id: Any = None


def parse_document(content: bytes, now: Instant, defaults: TimerDefaults) -> Document:
    """Read a file's text. Raise UnreadableError, or SetupError for a version that only a newer
    program knows."""
    try:
        members = msgspec.json.decode(content.removeprefix(_BOM), type=dict[str, msgspec.Raw])
        version = msgspec.json.decode(members.get("version", b"1"), type=int)
        if version > VERSION:
            raise SetupError(
                f"jobs.json has version {version}, this program knows {VERSION}: use a newer ksana"
            )
        if "jobs" not in members:
            raise UnreadableError("it has no member jobs")
        texts = [bytes(raw) for raw in msgspec.json.decode(members["jobs"], type=list[msgspec.Raw])]
        updated = msgspec.json.decode(members.get("updated_at", b'""'), type=str)
        last_task_id = msgspec.json.decode(members.get("last_task_id", b"0"), type=int)
        keys = msgspec.json.decode(members.get("keys", b"[]"), type=list[ApiKey])
        updated_at = parse_instant(updated) if updated else None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise UnreadableError(str(error)) from None
    unknown = {name: bytes(raw) for name, raw in members.items() if name not in _OURS}
    timers, bad = _read_jobs(texts, now, defaults)
    named = [
        task_id for task_id in (_label(job.text).task_id for job in bad) if _is_task_id(task_id)
    ]
    highest = max([last_task_id, *named, *(timer.task_id or 0 for timer in timers)], default=0)
    placed = _give_ids(timers, highest)
    return Document(
        placed, bad, updated_at, max([highest, *(entry[0] for entry in placed)]), keys, unknown
    )


def _read_jobs(
    texts: list[bytes], now: Instant, defaults: TimerDefaults
) -> tuple[list[StoredTimer], list[BadJob]]:
    timers: list[StoredTimer] = []
    bad: list[BadJob] = []
    job_ids: set[str] = set()
    names: set[str] = set()
    for text in texts:
        try:
            timer = read_timer(text, now, defaults)
            if timer.job_id in job_ids:
                raise InvalidError(f"an earlier job has the id {timer.job_id} too", field="id")
            if timer.dialect == "C" and timer.definition.name in names:
                raise InvalidError(
                    f"an earlier task has the name {timer.definition.name!r} too", field="name"
                )
        except InvalidError as error:
            bad.append(BadJob(text, _describe(text), error.message))
            continue
        if timer.job_id:
            job_ids.add(timer.job_id)
        if timer.dialect == "C":
            names.add(timer.definition.name)
        timers.append(timer)
    return timers, bad


def _give_ids(timers: list[StoredTimer], highest: int) -> list[tuple[int, str, StoredTimer]]:
    """A job without a number, or a copy that kept its original's, gets the next free one."""
    taken: set[int] = set()
    placed = []
    for timer in timers:
        task_id = timer.task_id
        if task_id is None or task_id in taken:
            highest = task_id = highest + 1
        taken.add(task_id)
        placed.append((task_id, timer.job_id or new_uuid(), timer))
    return sorted(placed, key=lambda entry: entry[0])


def _label(text: bytes) -> _Label:
    try:
        return msgspec.json.decode(text, type=_Label)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Label()


def _is_task_id(value: object) -> bool:
    return isinstance(value, int) and 0 < value < MAX_TASK_ID


def _describe(text: bytes) -> str:
    label = _label(text)
    named = label.id or label.name
    return repr(named)[:80] if named else text[:40].decode("utf-8", "replace")


def encode_head(task: Task) -> bytes:
    """A job's text up to the members that firings change."""
    text = msgspec.json.format(_encode(write_head(task)), indent=2)
    return text.replace(b"\n", b"\n    ").removesuffix(b"\n    }")


def encode_tail(
    last_run_at: Instant | None,
    next_run_at: Instant | None,
    last_status: str,
    last_error: str,
    runs_fired: int | None,
) -> bytes:
    """The rest of a job's text."""
    members = write_tail(last_run_at, next_run_at, last_status, last_error, runs_fired)
    lines = b"".join(
        b',\n      "%b": %b' % (name.encode(), _encode(value)) for name, value in members.items()
    )
    return lines + b"\n    }"


def encode_tail_of(task: Task) -> bytes:
    """The rest of a task's text, from the task itself."""
    shown = task.next_slot_at if task.fire_at is not None else None
    count = task.runs_fired if task.definition.options.max_runs is not None else None
    return encode_tail(task.last_run_at, shown, task.last_status, task.last_error, count)


def encode_keys(keys: list[ApiKey]) -> bytes:
    """API keys: hashes, no secrets."""
    return msgspec.json.format(_encode(keys), indent=2).replace(b"\n", b"\n  ")


def assemble(updated_at: Instant, jobs: list[bytes], more: Mapping[str, bytes]) -> Iterator[bytes]:
    """A whole file, in parts of a few hundred jobs: joining all of it at once would cost more than
    writing it."""
    yield b'{\n  "version": %d,\n  "updated_at": "%b",\n  "jobs": [' % (
        VERSION,
        format_instant(updated_at).encode(),
    )
    between = b",\n    "
    for first in range(0, len(jobs), JOBS_IN_A_PART):
        yield (between if first else b"\n    ") + between.join(jobs[first : first + JOBS_IN_A_PART])
    rest = b"".join(b",\n  %b: %b" % (_encode(name), text) for name, text in more.items())
    yield b"%b%b\n}\n" % (b"\n  ]" if jobs else b"]", rest)
