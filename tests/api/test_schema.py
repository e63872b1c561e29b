"""The API against its own OpenAPI: whatever is sent, no 5xx, and every answer as declared."""

from zlib import crc32

import pytest

from tests.ground.process import Program
from tests.ground.schema import check_every_operation, schema_at

PARTS = 4
"""Some ninety operations take minutes: in parts, so that they are shared among the workers."""


@pytest.mark.timeout(480)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.spec("X8", "X9")
def test_every_operation_keeps_its_own_schema(program: Program, part: int) -> None:
    schema = schema_at(program.start().url("/openapi.json"))

    def is_passed_over(operation: object) -> bool:
        path = f"{operation.method} {operation.path}"  # type: ignore[attr-defined]
        # A stream has no end to wait for; it has tests of its own.
        return path.endswith("/stream") or crc32(path.encode()) % PARTS != part

    assert check_every_operation(schema, skip=is_passed_over) > 0
