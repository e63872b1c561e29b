"""Builds the wheel of `ksana-client` from the modules of the server's tree.

`ksana/client` becomes `ksana_client`. The modules of `ksana/base` that it imports, and the frames
of the node protocol, become `ksana_client/base` and `ksana_client/domain`. Only the import lines
change. Whatever else a module of the client would import from `ksana` fails the build: the SDK must
not pull the server.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("..") / "src" / "ksana"
PACKAGE = "ksana_client"
MODULES = (
    *("base", "base.clock", "base.ids", "base.instant"),
    *("domain", "domain.nodes", "domain.nodes.frames", "domain.nodes.records"),
)
"""What the client imports besides itself. A package is its `__init__`."""
_IMPORT = re.compile(r"^(\s*)(from|import) ksana(\.[\w.]+)?( import .*)?$", re.MULTILINE)


class CustomBuildHook(BuildHookInterface):
    """Writes the renamed modules to a folder of their own and has that folder packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        target = Path(self._folder.name)
        source = Path(self.root) / SOURCE
        for module in sorted((source / "client").glob("*.py")):
            (target / module.name).write_text(_rename(module), encoding="utf-8")
        for name in MODULES:
            place = Path(*name.split("."))
            is_package = (source / place).is_dir()
            place = place / "__init__.py" if is_package else place.with_suffix(".py")
            (target / place).parent.mkdir(exist_ok=True)
            (target / place).write_text(_rename(source / place), encoding="utf-8")
        (target / "py.typed").touch()
        build_data["force_include"][str(target)] = PACKAGE
        build_data["force_include"][str(source.parents[1] / "LICENSE")] = f"{PACKAGE}/LICENSE"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()


def _rename(module: Path) -> str:
    def rename(found: re.Match[str]) -> str:
        indent, verb, path, rest = found[1], found[2], found[3] or "", found[4] or ""
        if path == ".client" or path.startswith(".client."):
            return f"{indent}{verb} {PACKAGE}{path.removeprefix('.client')}{rest}"
        if verb == "from" and path.removeprefix(".") in MODULES:
            return f"{indent}from {PACKAGE}{path}{rest}"
        raise ValueError(f"{module}: {found[0].strip()!r} would pull the server into the client")

    return _IMPORT.sub(rename, module.read_text(encoding="utf-8"))
