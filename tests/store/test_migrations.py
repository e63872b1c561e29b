"""A migration that was released is never edited: a store that has it would not get the change."""

import pytest

from ksana.store.sql.core.migrate import Migration, list_migrations

RELEASED = {
    "0001_house": "24141e16bac8d4fcb2efcf94bc4b09b54d2788c8e8ea5fa071d8e53c792b5c71",
    "0002_tasks": "7a4540c5fafbf9d9a26b1ebf587a852892a832cd6626fa15b4271378aad648d9",
    "0003_queue": "2e31fc19612ae8f4045f8a5b64fc5c731c3e460eb92bd27d9d7f9eac318940d9",
    "0004_queue_hours": "8c08b193371019e0656772422685ba857029bac9102e02c610c88b42aa79a60d",
    "0005_begun": "4335901b21f8028539e514ff0ce6facedefe47f491624c7d05bf3726668d8470",
    "0006_core": "99fa6a2dbd83912021651945b92957c004c9cb28bc76cbc10ca023b5baa8d3af",
}
"""Checksums of the files. A new migration is added here with its release; none is changed."""


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_migration_is_as_it_was(name: str) -> None:
    found = {migration.full_name: migration.checksum for migration in list_migrations()}
    assert found[name] == RELEASED[name], "write a new migration instead of editing this one"


def test_comments_and_line_breaks_do_not_count() -> None:
    one = Migration(version=1, name="x", text="-- why\nCREATE TABLE t (\n  a INT\n);\n")
    same = Migration(version=1, name="x", text="-- because\nCREATE TABLE t ( a INT );")
    other = Migration(version=1, name="x", text="CREATE TABLE t (a BIGINT)")
    assert one.checksum == same.checksum != other.checksum


def test_no_two_migrations_have_one_number() -> None:
    versions = [migration.version for migration in list_migrations()]
    assert len(set(versions)) == len(versions)
