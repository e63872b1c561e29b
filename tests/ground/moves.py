"""The legal moves of every entity, taken out of `domain/lifecycle` one at a time.

    python -m tests.ground.moves                 all of them
    python -m tests.ground.moves RUN JOB         of these entities
    python -m tests.ground.moves --list          only name them

For each, the tests of its surface that ask for the move run without it, until one fails (see
`mutants`). Tests that compare tables with the lifecycle are not asked: a surface must miss the move
in what it does. What no test notices is reported, and the exit status is 1.
"""

import argparse
import sys
from functools import partial

import msgspec

# Nothing else of the program: tables that are made from the lifecycle when a module is loaded must
# be made in the fork, without the move.
from ksana.domain import lifecycle
from tests.ground import mutants

SURFACES = {
    "tasks": ("TASK", "RUN"),
    "queue": ("JOB", "LEASE"),
    "governance": ("GOV_JOB", "memory", "experience", "cognition"),
    "nodes": ("NODE_JOB",),
}

TESTS = (
    "tests/conformance/store",
    "tests/conformance/fabric",
    "tests/engine",
    "tests/api",
    "tests/nodes",
    "tests/properties/test_queue_model.py",
    "tests/properties/test_runs_model.py",
    "tests/properties/test_governance_simulation.py",
)
"""Tests of what the surfaces do."""

EXPLAINED = {
    "RUN: SCHEDULED -> SKIPPED": "the contract (C12) names it; a slot is judged before its run is "
    "written, so one that is skipped is SKIPPED from the beginning, and nobody asks for the move",
}
"""Moves that nobody makes, each with its reason."""


def list_moves() -> list[tuple[lifecycle.Lifecycle, str, str]]:
    """Every (entity, from, to), whichever event leads there."""
    return [
        (entity, old, new)
        for entity in lifecycle.ALL
        for old, new in dict.fromkeys((old, new) for old, _, new in entity.moves)
    ]


def name_of(entity: lifecycle.Lifecycle, old: str, new: str) -> str:
    """How a move is written down."""
    return f"{entity.entity}: {old} -> {new}"


def apply(entity: lifecycle.Lifecycle, old: str, new: str) -> None:
    """Have the lifecycle lack the move."""
    left = tuple(move for move in entity.moves if (move[0], move[2]) != (old, new))
    msgspec.structs.force_setattr(entity, "moves", left)
    msgspec.structs.force_setattr(entity, "pairs", entity.pairs - {(old, new)})


def watch(recorder: mutants.Recorder) -> None:
    """Have the recorder told of every move that is asked for."""

    class Watched(frozenset[tuple[str, str]]):
        entity: lifecycle.Lifecycle

        def __contains__(self, pair: object) -> bool:
            if isinstance(pair, tuple):
                recorder.touch(name_of(self.entity, *pair))
            return super().__contains__(pair)

    for entity in lifecycle.ALL:
        watched = Watched(entity.pairs)
        watched.entity = entity
        msgspec.structs.force_setattr(entity, "pairs", watched)


def main() -> int:
    """Take out what was asked for; tell what nobody noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.ground.moves")
    parser.add_argument("wanted", nargs="*", help="entities or surfaces; all if none is named")
    parser.add_argument("--list", action="store_true", help="only name the moves")
    options = parser.parse_args()
    wanted = {one for name in options.wanted for one in SURFACES.get(name, (name,))}
    moves = [move for move in list_moves() if not wanted or move[0].entity in wanted]
    if options.list:
        mutants.say("\n".join(name_of(*move) for move in moves))
        return 0
    made = [
        mutants.Mutant(
            name=name_of(*move), text="", mark=name_of(*move), apply=partial(apply, *move)
        )
        for move in moves
    ]
    return mutants.judge("moves", made, mutants.TestMap("moves", watch), TESTS, EXPLAINED)


if __name__ == "__main__":
    sys.exit(main())
