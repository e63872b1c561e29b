"""How services like this one fail, by class, and the table of a run: which classes were provoked,
on which ground, and what came of it.

A test says which classes it provokes: `@pytest.mark.fault("F26")`. The table is made from the
reports of a run alone, so it cannot say what was not run. `make torture` prints it; with RECORD=1
it also goes into docs/reliability.md.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import pytest

FAULTS: Final = {
    "F01": "Several instances fire one slot",
    "F02": "A slot is missed",
    "F03": "Too many missed slots stop a task for good",
    "F04": "Wrong arithmetic of slots makes a hot loop",
    "F05": "A flood of make-up runs after downtime",
    "F06": "An outage longer than the look-back is dropped in silence",
    "F07": "Killed between taking and doing",
    "F08": "A slow rescuer takes away a live holder's new claim",
    "F09": "Running for ever after a crash",
    "F10": "Rescue by age doubles live work",
    "F11": "Frozen, or cut off, while holding work",
    "F12": "A late worker ends what is another's by now",
    "F13": "A lock without a fence",
    "F14": "A poisonous job comes again for ever",
    "F15": "A storm of retries",
    "F16": "A slow target takes all workers",
    "F17": "Future work is held by a lease",
    "F18": "Clock change: a gap skips, an overlap doubles",
    "F19": "Clock change at midnight, a date only in a gap",
    "F20": "The clock steps back",
    "F21": "The clock steps forward",
    "F22": "A duration becomes negative",
    "F23": "Clocks of instances disagree",
    "F24": "Zone rules change",
    "F25": "Cron fields that explode or never match",
    "F26": "Acknowledged before it is on disk",
    "F27": "A torn, empty or vanished file, then a silent start from nothing",
    "F28": "The folder is not synced after a rename",
    "F29": "A moment without any file",
    "F30": "A failed sync is ignored or repeated",
    "F31": "The disk is full",
    "F32": "The database is locked",
    "F33": "The log grows without bound",
    "F34": "History grows for ever",
    "F35": "A claim locks every row it sorts",
    "F36": "Deadlocks and gap locks",
    "F37": "A lost update",
    "F38": "A time type that rounds",
    "F39": "COMMIT without an answer",
    "F40": "Recovery itself is interrupted",
    "F41": "A session lock is lost with its connection",
    "F42": "Bloat under an old snapshot",
    "F43": "A cancelled caller leaves a connection off by one",
    "F44": "A background loop dies unseen",
    "F45": "Redis loses what it acknowledged: wiped, failed over, killed",
    "F46": "A script with keys in two slots of a cluster",
    "F47": "Slots of a cluster move, a master dies",
    "F48": "A replica that never finished its first sync",
    "F49": "A stream is trimmed under what is pending",
    "F50": "A socket that is half open",
    "F51": "A slow reader fills the memory",
    "F52": "Slow or idle connections take all there are",
    "F53": "Deep or huge JSON",
    "F54": "A target answers without end, in drips, with garbage",
}

NOT_PROVOKED: Final[dict[str, str]] = {}
"""Classes without a test, and why."""

GROUNDS: Final = ("sqlite", "json", "mariadb", "postgres", "redis", "none")
_PURE: Final = ("tests/unit/", "tests/outbound/", "tests/properties/test_cron")
_BLOCK: Final = re.compile(r"(<!-- torture -->\n).*?(<!-- end -->)", re.DOTALL)

DOCS: Final = Path(__file__).parents[2] / "docs"


class Provoked(NamedTuple):
    """One test that ran: a class it provokes, where, and how it ended."""

    fault: str
    ground: str
    outcome: str
    """passed, failed or skipped."""


def ground_of(nodeid: str) -> str:
    """Where a test ran: the store or server that it names, SQLite if it names none."""
    text = nodeid.lower()
    if text.startswith(_PURE):
        return "none"
    for word, ground in (
        ("mariadb", "mariadb"),
        ("mysql", "mariadb"),
        ("postgres", "postgres"),
        ("cluster", "redis"),
        ("redis", "redis"),
        ("json", "json"),
    ):
        if word in text:
            return ground
    return "sqlite"


def note_faults(items: Iterable[pytest.Item]) -> None:
    """Let the report of each test carry the classes it provokes."""
    for item in items:
        for mark in item.iter_markers("fault"):
            for name in mark.args:
                if name not in FAULTS:
                    raise pytest.UsageError(f"{item.nodeid} names an unknown class: {name}")
                item.user_properties.append(("fault", name))


def read_reports(reports: Iterable[pytest.TestReport]) -> list[Provoked]:
    """What a run provoked. A test counts once, by its worst phase."""
    worst: dict[str, pytest.TestReport] = {}
    order = {"failed": 0, "skipped": 1, "passed": 2}
    for report in reports:
        before = worst.get(report.nodeid)
        if before is None or order[report.outcome] < order[before.outcome]:
            worst[report.nodeid] = report
    return [
        Provoked(value, ground_of(report.nodeid), report.outcome)
        for report in worst.values()
        for name, value in report.user_properties
        if name == "fault" and isinstance(value, str)
    ]


def make_table(provoked: Sequence[Provoked], figures: Sequence[str], now: datetime) -> str:
    """The table in Markdown: a number is how many tests passed."""
    counts = Counter(provoked)
    lines = [
        f"Run on {now:%Y-%m-%d} (UTC). {_sum_up(provoked)}",
        "",
        "| class | what happens | " + " | ".join(GROUNDS) + " |",
        "|---|---|" + "---|" * len(GROUNDS),
    ]
    for fault, words in FAULTS.items():
        cells = [_cell(counts, fault, ground) for ground in GROUNDS]
        if any(cells):
            lines.append(f"| {fault} | {words} | {' | '.join(cells)} |")
        else:
            reason = NOT_PROVOKED.get(fault, "its tests were not in this run")
            lines.append(f"| {fault} | {words}: not run ({reason}) |" + " |" * len(GROUNDS))
    if figures:
        lines += ["", "Sizes and figures of the run:", ""]
        for line, times in Counter(figures).items():
            lines.append(f"- {line}" + (f" ({times} times)" if times > 1 else ""))
    return "\n".join(lines) + "\n"


def _sum_up(provoked: Sequence[Provoked]) -> str:
    ends = Counter(one.outcome for one in provoked)
    classes = len({one.fault for one in provoked if one.outcome != "skipped"})
    return (
        f"{classes} of {len(FAULTS)} classes provoked; "
        f"{ends['passed']} passed, {ends['failed']} failed, {ends['skipped']} skipped."
    )


def _cell(counts: Counter[Provoked], fault: str, ground: str) -> str:
    passed, failed, skipped = (
        counts[Provoked(fault, ground, end)] for end in ("passed", "failed", "skipped")
    )
    words = [str(passed)] if passed else []
    words += [f"**{failed} failed**"] if failed else []
    words += [f"{skipped} skipped"] if skipped else []
    return ", ".join(words)


def report_run(reporter: pytest.TerminalReporter) -> None:
    """Print the table of this run, if it was asked for, and record it if it should be."""
    place = os.environ.get("KSANA_TORTURE")
    if not place:
        return
    reports = [
        report
        for kind in ("passed", "failed", "skipped", "error")
        for report in reporter.stats.get(kind, [])
        if isinstance(report, pytest.TestReport)
    ]
    noted = Path(os.environ.get("KSANA_FIGURES", os.devnull))
    figures = noted.read_text(encoding="utf-8").splitlines() if noted.is_file() else []
    table = make_table(read_reports(reports), figures, datetime.now(UTC))
    reporter.section("faults")
    reporter.write(table)
    Path(place).write_text(table, encoding="utf-8")
    if os.environ.get("RECORD") == "1":
        for page in (DOCS / "reliability.md", DOCS / "zh" / "reliability.md"):
            record(page, table)


def record(page: Path, table: str) -> None:
    """Put a table into the place it has on a page."""
    text = page.read_text(encoding="utf-8")
    page.write_text(_BLOCK.sub(lambda found: found[1] + table + found[2], text), encoding="utf-8")
