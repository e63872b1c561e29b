"""The table item → tests: `python -m tests.ground.conformance [--require X T …] [--names]`.

Collects the tests without running them. Fails when a test names an item that does not exist, or
when an item of a required surface has no test.
"""

import argparse
import contextlib
import io
import sys
from collections.abc import Iterable, Sequence

import pytest

from tests.ground.contract import ITEMS, SURFACES

Proofs = dict[str, list[str]]


class SpecCollector:
    """A pytest plugin that notes which tests prove which item."""

    def __init__(self) -> None:
        self.proofs: Proofs = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("spec"):
                for name in mark.args:
                    self.proofs.setdefault(name, []).append(item.nodeid)


def collect(paths: Sequence[str] = ()) -> Proofs:
    """Collect the tests under `paths` (all if none) and tell who proves what."""
    collector = SpecCollector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-qq", "-p", "no:xdist", *paths], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"{output.getvalue()}\nthe tests could not be collected")
    return collector.proofs


def unknown_items(proofs: Proofs) -> list[str]:
    return sorted(set(proofs) - set(ITEMS))


def missing_items(proofs: Proofs, surfaces: Iterable[str] = SURFACES) -> list[str]:
    wanted = set(surfaces)
    return [item for item in ITEMS if item[0] in wanted and item not in proofs]


def table(proofs: Proofs, *, has_names: bool) -> str:
    """The table as text: one line per item."""
    lines = ["item   tests"]
    for item in ITEMS:
        tests = proofs.get(item, [])
        lines.append(f"{item:<6} {len(tests) or '-':>5}")
        if has_names:
            # One line per function, however many parameters it runs with.
            lines += [
                f"         {name}"
                for name in dict.fromkeys(test.partition("[")[0] for test in tests)
            ]
    return "\n".join(lines)


def summary(proofs: Proofs) -> str:
    """One line per surface: how many of its items have a test, and which have none."""
    lines = []
    for surface, title in SURFACES.items():
        items = [item for item in ITEMS if item[0] == surface]
        missing = missing_items(proofs, surface)
        lines.append(f"{surface} {title:<11} {len(items) - len(missing):>2} of {len(items)}")
        if missing:
            lines.append(f"  without a test: {' '.join(missing)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make conformance", description="Which tests prove which item of the contract."
    )
    parser.add_argument(
        "--require",
        nargs="*",
        default=[],
        choices=list(SURFACES),
        help="surfaces that must be complete",
    )
    parser.add_argument("--names", action="store_true", help="list the tests of each item")
    parser.add_argument("paths", nargs="*", help="tests to look at (all)")
    options = parser.parse_args()
    proofs = collect(options.paths)
    out = sys.stdout
    out.write(f"{table(proofs, has_names=options.names)}\n\n{summary(proofs)}\n")
    faults = [f"no such item: {item} ({', '.join(proofs[item])})" for item in unknown_items(proofs)]
    faults += [
        f"required, without a test: {item}" for item in missing_items(proofs, options.require)
    ]
    out.write("".join(f"\n{fault}" for fault in faults) + ("\n" if faults else ""))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
