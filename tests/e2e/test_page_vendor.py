"""Files that the page loads are in the tree: pinned copies, no other host, no inline code."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "static"
VENDOR = STATIC / "vendor"


def is_declaration(path: Path) -> bool:
    """Return whether a file declares the types of a library."""
    return path.name.endswith((".d.ts", ".d.mts"))


def test_vendored_files_are_the_pinned_ones() -> None:
    """Every vendored file has its line in HASHES.sha256 and matches it."""
    pinned = {}
    for line in (VENDOR / "HASHES.sha256").read_text().splitlines():
        digest, name = line.split()
        pinned[name.removeprefix("./")] = digest
    found = {
        str(path.relative_to(VENDOR)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path.name not in ("README.md", "HASHES.sha256") and not is_declaration(path)
    }
    assert found == pinned


def test_types_are_those_of_the_vendored_versions() -> None:
    """The development dependencies that hold the types of a library have the version of the vendored file."""
    dependencies = json.loads((ROOT / "package.json").read_text())["devDependencies"]
    packages = {"highlight": "highlight.js", "lit": "lit-html"}
    versions = re.findall(r"^\| (\w+) \| \S+ \| (\d+\.\d+\.\d+) \|", (VENDOR / "README.md").read_text(), re.M)
    assert versions
    for folder, version in versions:
        if not any(map(is_declaration, (VENDOR / folder).iterdir())):
            continue  # a script that no module of the page imports
        assert dependencies[packages.get(folder, folder)] == version


@pytest.mark.parametrize("folder", sorted(path.name for path in VENDOR.iterdir() if path.is_dir()))
def test_each_library_has_its_licence_and_is_listed(folder: str) -> None:
    """A LICENSE is beside it, and the README names its source and version."""
    assert (VENDOR / folder / "LICENSE").is_file()
    assert re.search(rf"^\| {folder} \| \S+ \| \d+\.\d+\.\d+ \|", (VENDOR / "README.md").read_text(), re.M)


# Previews have policies of their own, which let scripts run and reach nothing.
TEMPLATES = sorted(path for path in (ROOT / "templates").glob("*.html") if not path.name.startswith("preview"))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_hold_no_inline_code(template: Path) -> None:
    """The content security policy would refuse inline scripts, styles, style attributes and handlers."""
    text = template.read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))


def test_nothing_is_loaded_from_another_host() -> None:
    """No module, style or template has a foreign URL, except for the SVG namespace."""
    own = [path for folder in ("js", "css") for path in (STATIC / folder).rglob("*") if path.is_file()]
    for path in [*own, *STATIC.glob("*.svg"), *(ROOT / "templates").glob("*.html")]:
        assert not re.findall(
            r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w-]+\.[\w.]+",
            re.sub(r"^\s*(//|\*|/\*).*$", "", path.read_text(), flags=re.M),
        ), path


def test_modules_are_small_and_state_their_responsibility() -> None:
    """A module begins with a line about its responsibility and has at most 280 lines."""
    for path in (STATIC / "js").rglob("*.js"):
        lines = path.read_text().splitlines()
        assert re.match(r"// [A-Z]", lines[0]), path
        assert len(lines) <= 280, path
