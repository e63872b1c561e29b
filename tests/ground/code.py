"""Small faults in the program's code, put in place one at a time.

    python -m tests.ground.code                          all rooms
    python -m tests.ground.code domain                   one room
    python -m tests.ground.code ksana.domain.retry       one module, or what begins so
    python -m tests.ground.code --sample 200 --seed 7    a choice of all, spread evenly
    python -m tests.ground.code domain --tests tests/unit    ask the pure tests only
    python -m tests.ground.code domain --list            only name them
    python -m tests.ground.code domain --report          what is known, without running anything

For each fault the tests of the room that run its line run with it until one fails: first those
that noticed another fault of its function, then the shortest. The tests are collected once; each
fault is a fork of that process, so that it costs as long as its tests take, and whatever it breaks
ends with it. Which tests run a line is found out once and remembered until the test's file changes.
A fault that was noticed is not tried again until its function changes; one that was not, is. All
this lies in build/mutants/, so a run that was interrupted goes on where it was. Faults that change
nothing one can see are in EXPLAINED. The exit status is 1 if any other was unnoticed, or more than
`--least` allows.
"""

import argparse
import gc
import hashlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.ground import code_map
from tests.ground.code_map import Known
from tests.ground.explained import EXPLAINED
from tests.ground.forks import in_a_fork, run_until_failure
from tests.ground.mutants import ELSEWHERE, FOLDER, ROOT, WITHOUT_SERVERS, load, save, say
from tests.ground.python_faults import Fault, list_caches, list_faults, list_modules, put_in_place

ROOMS: dict[str, tuple[str, ...]] = {
    "domain": ("tests/unit", "tests/properties/test_cron_oracle.py", "tests/engine", "tests/api"),
    "engine": ("tests/unit", "tests/engine", "tests/api", "tests/nodes"),
    "service": ("tests/unit", "tests/api", "tests/engine", "tests/nodes"),
    "client": ("tests/client",),
}
"""The tests that are asked, the nearest first."""

ON_REAL_TIME = ("tests/client", "tests/nodes")
"""Tests that wait by the clock on the wall: on a busy machine one may fail by itself, so a fault
must make it fail twice."""

MOST_SECONDS = 4.0
"""The tests asked about one fault take at most so much of the processor together when nothing is
wrong."""
SPARE_SECONDS = 20.0
SPARE_CPU_SECONDS = 3.0
"""What is waited beyond several times the usual: whoever takes longer does not end."""
SAVE_SECONDS = 5.0
QUICK_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Files in memory, where the system has that: nothing is waited for a disk."""
ALIKE = 3
"""So many cases of one test are asked before another test is."""


class Judge:
    """A plugin that takes the place of pytest's loop over the tests."""

    def __init__(
        self, floor: str, rooms: tuple[str, ...], faults: list[Fault], seconds: float, workers: int
    ) -> None:
        self._seconds = seconds
        self._workers = workers
        self._rooms = rooms
        self._faults = faults
        self._items: dict[str, pytest.Item] = {}
        self._known: dict[str, Known] = {}
        self._killers: dict[str, Counter[str]] = {}
        self._sound: dict[str, bool] = {}
        self._path = FOLDER / f"code-{floor}-noticed.json"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from tests.ground import quick_store  # not before the tests' own conftest

        quick_store.make_quick(Path(tempfile.mkdtemp(prefix="mutants-")))
        make_folder(session.config)
        self._items = {item.nodeid: item for item in session.items}
        known = code_map.record(FOLDER / "code-lines.json", session.items)
        self._known = {name: known[name] for name in self._items if name in known}
        noticed: dict[str, str] = load(self._path)
        for fault in self._faults:
            if by := noticed.get(key_of(fault)):
                self._note_killer(fault, by)
        left = [fault for fault in self._faults if not noticed.get(key_of(fault))]
        began = saved_at = time.monotonic()
        tried = 0
        for fault, by in self._try_all(left):
            noticed[key_of(fault)] = by
            tried += 1
            if not by:
                say(f"UNNOTICED  {fault}")
            if time.monotonic() - saved_at > SAVE_SECONDS:
                save(self._path, noticed)
                saved_at = time.monotonic()
        save(self._path, noticed)
        minutes = (time.monotonic() - began) / 60
        say(f"tried {tried} in {minutes:.1f} minutes: {tried / max(minutes, 0.01):.0f} a minute")
        return True

    def _try_all(self, faults: list[Fault]) -> Iterator[tuple[Fault, str]]:
        """Each fault with the test that noticed it, by so many forks at once."""
        list_caches()
        gc.collect()
        gc.freeze()
        reads, writes = os.pipe()
        workers = []
        for nth in range(self._workers):
            child = os.fork()
            if not child:
                try:
                    os.close(reads)
                    for at in range(nth, len(faults), self._workers):
                        line = json.dumps([at, self._find_notice(faults[at])]) + "\n"
                        os.write(writes, line.encode())
                finally:
                    os._exit(0)
            workers.append(child)
        os.close(writes)
        with os.fdopen(reads) as lines:
            for line in lines:
                at, by = json.loads(line)
                yield faults[at], by
        for child in workers:
            os.waitpid(child, 0)

    def _find_notice(self, fault: Fault) -> str:
        """The test that fails with the fault, or nothing."""
        names = self._choose(fault)
        while names:
            by = self._run(names, fault)
            if by == "nobody":
                return ""
            if by == "timeout" and self._run(names, None) == "timeout":
                names.pop()  # it is the machine that is slow
            elif by not in names:
                return by
            elif not self._is_sound(by) or (
                by.startswith(ON_REAL_TIME) and self._run([by], fault) == "nobody"
            ):
                names.remove(by)
            else:
                self._note_killer(fault, by)
                return by
        return ""

    def _run(self, names: list[str], fault: Fault | None) -> str:
        """Run tests until one fails, with the fault or without."""
        items = [self._items[name] for name in names]

        def run() -> str:
            if fault is not None:
                try:
                    put_in_place(fault)
                except (SyntaxError, ValueError) as error:
                    return f"cannot be: {error}"
            return run_until_failure(items)

        usual = sum(self._known[name].seconds for name in names)
        cpu = sum(self._known[name].cpu_seconds for name in names)
        return in_a_fork(run, SPARE_SECONDS + 5 * usual, SPARE_CPU_SECONDS + 5 * cpu)

    def _is_sound(self, name: str) -> bool:
        """Whether a test passes when nothing is wrong. One that does not is not asked again."""
        if name not in self._sound:
            self._sound[name] = self._run([name], None) == "nobody"
            if not self._sound[name]:
                say(f"FAILS AS IT IS, left out: {name}")
                self._known.pop(name)
        return self._sound[name]

    def _note_killer(self, fault: Fault, name: str) -> None:
        self._killers.setdefault(fault.mark, Counter())[name] += 1

    def _choose(self, fault: Fault) -> list[str]:
        killers = [name for name, _ in self._killers.get(fault.mark, Counter()).most_common()]
        return choose(fault, self._known, self._rooms, self._seconds, killers)


def choose(
    fault: Fault,
    known: dict[str, Known],
    rooms: tuple[str, ...],
    most_seconds: float = MOST_SECONDS,
    killers: Iterable[str] = (),
) -> list[str]:
    """The tests that run a fault's line: first those named, then for each way through its function
    one after the other, those of the nearest room first, in it the shortest, as many as fit into so
    many seconds. Of a test with many cases a few at a time."""
    rank = {name: place for place, name in enumerate(killers)}
    near = sorted(
        (rank.get(name, len(rank)), place, test.cpu_seconds, name)
        for name, test in known.items()
        if test.runs(fault.module, fault.first, fault.last)
        for place, room in enumerate(rooms)
        if name.startswith(room)
    )
    cases: Counter[str] = Counter()
    ways: Counter[int] = Counter()
    turns = []
    for first, place, seconds, name in near:
        case, way = name.partition("[")[0], known[name].way_through(*fault.span)
        turns.append((first, cases[case] // ALIKE, ways[way], place, seconds, name))
        cases[case] += 1
        ways[way] += 1
    chosen: list[str] = []
    left = most_seconds
    for *_, seconds, name in sorted(turns):
        if seconds <= left or not chosen:
            left -= seconds
            chosen.append(name)
    return chosen


def make_folder(config: pytest.Config) -> None:
    """Make the folder of the tests' files before any fork: a fork that makes it removes what it
    finds there, the files of a fork beside it too."""
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]


def key_of(fault: Fault) -> str:
    """Under which a fault is remembered: its function's text is part of it."""
    digest = hashlib.blake2b(fault.source.encode(), digest_size=8).hexdigest()
    return f"{fault} | {digest}"


def judge(judge: Judge, rooms: tuple[str, ...]) -> None:
    """Collect the tests once, then try the faults."""
    os.chdir(ROOT)
    # Examples that are the same every time; a failing one is not made smaller.
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    quiet = ["-q", "-s", "--timeout", "60", "-p", "no:xdist", "-p", "no:cacheprovider"]
    chosen = ["-k", WITHOUT_SERVERS, "-m", "not slow", "--no-header"]
    chosen += [f"--ignore={file}" for file in sorted(ELSEWHERE)]
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=QUICK_FOLDER) as folder:
        where = ["--basetemp", f"{folder}/tests", "-o", "tmp_path_retention_policy=none"]
        pytest.main([*rooms, *quiet, *chosen, *where], plugins=[judge])


def report(floor: str, faults: list[Fault]) -> tuple[int, int]:
    """Print the score and what nobody noticed: how many were tried, and how many of them are
    neither noticed nor explained."""
    noticed: dict[str, str] = load(FOLDER / f"code-{floor}-noticed.json")
    by = {fault: noticed[key_of(fault)] for fault in faults if key_of(fault) in noticed}
    tried = [fault for fault in by if not by[fault].startswith("cannot be")]
    unseen = [fault for fault in tried if not by[fault]]
    left = [fault for fault in unseen if str(fault) not in EXPLAINED]
    for fault in left:
        say(f"  line {fault.line}  {fault}")
    say(
        f"{floor}: {len(tried)} faults tried of {len(faults)}, {len(tried) - len(unseen)} noticed "
        f"({100 * (1 - len(unseen) / max(1, len(tried))):.1f} %), "
        f"{len(unseen) - len(left)} explained, {len(left)} unnoticed"
    )
    return len(tried), len(left)


def choose_faults(wanted: list[str], sample: int | None, seed: int) -> dict[str, list[Fault]]:
    """The faults of rooms, modules or whatever begins so, by floor; of all of them together a
    choice, if one is asked for: one at random of each so many that follow each other, so that every
    file has its share."""
    found: list[Fault] = []
    for name in wanted:
        floor = name.split(".")[1] if "." in name else name
        faults = [fault for module in list_modules(floor) for fault in list_faults(module)]
        found += [one for one in faults if name == floor or str(one).startswith(name)]
    if sample is not None:
        count, chance = min(sample, len(found)), random.Random(seed)
        ends = [nth * len(found) // max(1, count) for nth in range(count + 1)]
        # Whole numbers: neighbours that share an edge could be given the same fault.
        found = [found[chance.randrange(low, high)] for low, high in itertools.pairwise(ends)]
        chance.shuffle(found)  # a run that is interrupted has tried some of every file
    by_floor: dict[str, list[Fault]] = {}
    for fault in found:
        by_floor.setdefault(fault.module.split(".")[1], []).append(fault)
    return by_floor


def main() -> int:
    """Try what was asked for; tell what nobody noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.ground.code")
    parser.add_argument("wanted", nargs="*", help="rooms or modules; all if none is named")
    parser.add_argument("--list", action="store_true", help="only name the faults")
    parser.add_argument("--report", action="store_true", help="only tell what is known")
    parser.add_argument("--tests", nargs="+", help="ask only these")
    parser.add_argument("--sample", type=int, help="a choice of so many, spread evenly")
    parser.add_argument("--seed", type=int, default=1, help="which choice")
    parser.add_argument(
        "--seconds", type=float, default=MOST_SECONDS, help="of tests asked about one fault"
    )
    parser.add_argument("--workers", type=int, default=1, help="forks at once")
    parser.add_argument("--least", type=float, default=100.0, help="percent that satisfy")
    options = parser.parse_args()
    chosen = choose_faults(options.wanted or list(ROOMS), options.sample, options.seed)
    tried = unnoticed = 0
    for floor, faults in chosen.items():
        if options.list:
            say("\n".join(map(str, faults)))
            continue
        if not options.report:
            rooms = tuple(options.tests or ROOMS[floor])
            judge(Judge(floor, rooms, faults, options.seconds, options.workers), rooms)
        counts = report(floor, faults)
        tried, unnoticed = tried + counts[0], unnoticed + counts[1]
    return 1 if 100 * (1 - unnoticed / max(1, tried)) < options.least else 0


if __name__ == "__main__":
    sys.exit(main())
