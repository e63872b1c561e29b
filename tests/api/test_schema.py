"""The API against its own OpenAPI: whatever is sent, no 5xx, and every answer as declared."""

import pytest

from tests.ground.process import Program
from tests.ground.schema import check_every_operation, schema_at


@pytest.mark.spec("X8", "X9")
def test_every_operation_keeps_its_own_schema(program: Program) -> None:
    schema = schema_at(program.start().url("/openapi.json"))
    # A stream has no end to wait for; it has tests of its own.
    check_every_operation(schema, skip=lambda operation: operation.path.endswith("/stream"))
