"""The JSON file store (T19-T22), and the way from a JSON file into another store (T23)."""

from ksana.store.jsonfile.importing import find_import, import_document, is_unused
from ksana.store.jsonfile.store import JsonStore, check_file, json_path, open_store

__all__ = [
    "JsonStore",
    "check_file",
    "find_import",
    "import_document",
    "is_unused",
    "json_path",
    "open_store",
]
