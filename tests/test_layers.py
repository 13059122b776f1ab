"""Import rules between folders, checked on the source files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

ROOT = Path(__file__).resolve().parent.parent

# folder -> modules that no file below it may import
FORBIDDEN = {
    "kernels": ("app", "engine", "starlette", "uvicorn", "transformers"),
    "engine": ("app", "starlette", "uvicorn", "asyncio", "pydantic", "tokenizers"),
    "engine/scheduling": ("torch", "numpy", "time", "random", "kernels", "engine.execution", "engine.engine"),
    "engine/kv_disk": ("torch", "kernels", "engine.execution", "engine.engine", "engine.scheduling.scheduler"),
    "engine/model_files": ("engine.execution", "engine.scheduling", "numpy", "gguf"),
    "engine/execution": ("engine.scheduling.scheduler", "engine.scheduling.policy", "engine.scheduling.queue"),
    "app": (
        "torch",
        "kernels",
        "engine.execution",
        "engine.build",
        "engine.warm_up",
        "engine.scheduling",
        "requests",
        "llguidance",
    ),
    "app/protocols": ("starlette", "app.routes", "app.engine_client.client", "app.service"),
}


# Rooms of app/ (docs/architecture.md), each of which imports only those before it.
ROOMS = (
    "errors", "resources", "child_environment", "streams", "admission", "conversations", "text", "mcp",
    "remote_settings", "network_settings", "settings", "options", "engine_options", "engine_client", "store",
    "generation", "observe", "http", "protocols", "prompts", "service", "request_changes", "routes", "restoring",
    "adoption", "recovery", "server", "cli", "ray_launcher", "llm", "__main__",
)  # fmt: skip


def imports(file: Path) -> set[str]:
    """Return every module that an import statement of `file` names, including the names imported from it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_a_folder_imports_only_lower_layers(folder: str):
    """The order is app -> engine -> kernels; scheduling is pure; execution does not depend on policies."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imports(file)
        for forbidden in FORBIDDEN[folder]
        if name == forbidden or name.startswith(f"{forbidden}.")
    ]
    # The engine client's in-process mode runs the same worker; the worker itself imports its builder lazily.
    assert wrong == []


def test_the_api_process_never_loads_torch():
    """The API process starts fast, and no forward pass can block its event loop."""
    import subprocess
    import sys

    code = "import sys, app.cli.serve; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=HANG_SECONDS).returncode == 0


def module_imports(file: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules of the tree that `file` imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules.keys()) or {node.module}
    return found & modules.keys()


def test_no_modules_import_each_other():
    """Neither at the top, nor in functions or for type checkers alone."""
    files = [file for folder in ("app", "engine", "kernels") for file in (ROOT / folder).rglob("*.py")]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    left = {name: module_imports(file, names) - {name} for name, file in names.items()}
    while leaves := {name for name, imported in left.items() if not imported}:
        left = {name: imported - leaves for name, imported in left.items() if name not in leaves}
    assert left == {}, "these import each other, or modules that do"


def test_rooms_import_only_earlier_rooms():
    """Every file of app/ belongs to a room of the list."""
    wrong = []
    for file in (ROOT / "app").rglob("*.py"):
        room = file.relative_to(ROOT / "app").with_suffix("").parts[0]
        if room == "__init__":
            continue
        imported = {name.split(".")[1] for name in imports(file) if name.startswith("app.")}
        later = imported & set(ROOMS[ROOMS.index(room) + 1 :])
        wrong += [f"{file.relative_to(ROOT)} imports {name}" for name in later]
    assert wrong == []
