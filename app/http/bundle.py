"""Join the ES modules, or the style sheets, of a page into one file, so that a first load is a few requests.

There is no JavaScript parser here. Modules are written in a subset of the syntax that regular expressions can read, and
anything outside it raises `BundleError`. Imports are `import { a, b as c } from "./x.js"` or `import a from "./x.js"`;
exports are `export` before a function, a class or a `const`, or a list `export { a, b as c }`. Each begins its line,
except that in minified files a list may follow a semicolon or brace, and a line may hold several imports and nothing
else. Modules must not import each other in a cycle.

Each module becomes a function that is called once, after those that it imports, and returns its exports. Imports are
copies of these values, which is why `export let` is refused.

Comments that fill whole lines are left out, except for licences (`/*!` and `@license`); they are a fifth of the
compressed size. So no line inside of a template literal may begin like a comment.

A module that is imported on demand stays a file of its own, and must not import a module that is in a bundle: it would
get a second copy of it. A worker has copies of its own in any case.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

IMPORT = re.compile(
    r"""(?:^|(?<=;))import(?:\s*\{([^}]*)\}\s*|\s+([\w$]+)\s+)from\s*["'](\.{1,2}/[^"']+)["']"""
    r"""(?:;(?=import\b)|;?[ \t]*$)""",
    re.M,
)
EXPORTED = re.compile(r"^export (?=(?:async )?(?:function\*? ?|class |const )([\w$]+))", re.M)
EXPORT_LIST = re.compile(r"(?:^|(?<=[;}]))export\s*\{([^}]*)\};?[ \t]*$", re.M)
LEFT_OVER = re.compile(r"""^(?:import\b(?!\()|export\b).*|(?<!["'], )import\.meta.*""", re.M)
# import("./x.js") and new URL("./x.css", import.meta.url)
ADDRESS = re.compile(r"""(\b(?:import|new URL)\()["'](\.{1,2}/[^"']+)["'](?=\)|, import\.meta\.url\))""")
COMMENT = re.compile(r"^[ \t]*(?://[^\n]*|/\*(?!!|\*\s+\* @license)(?:(?!\*/).)*\*/[ \t]*)(?:\n|\Z)", re.M | re.S)
STYLE_IMPORT = re.compile(r'^@import "([\w./-]+)";$', re.M)


class BundleError(ValueError):
    """A file holds syntax that the bundler does not read."""


def bundle(root: Path, entry: str) -> str:
    """Return the text of the bundle of a module or style sheet, which is a path below `root`."""
    return _styles(root, entry) if entry.endswith(".css") else _Modules(root, entry).text()


class _Modules:
    """The modules that an entry imports, each wrapped in a function, in the order in which they are evaluated."""

    def __init__(self, root: Path, entry: str) -> None:
        self.root = root
        self.folder = posixpath.dirname(entry)
        self.exports: dict[str, set[str]] = {}
        self.parts: list[str] = []
        self._add(entry, ())

    def text(self) -> str:
        return "".join(self.parts)

    def _add(self, path: str, importers: tuple[str, ...]) -> None:
        if path in importers:
            raise BundleError(f"{' imports '.join([*importers, path])}: modules in a bundle must not form a cycle")
        if path in self.exports:
            return
        source = (self.root / path).read_text(encoding="utf-8")
        for _, _, target in IMPORT.findall(source):
            self._add(_resolve(path, target), (*importers, path))
        body, exports = self._body(path, source)
        self.exports[path] = set(exports)
        if importers:
            returned = ", ".join(f"{_quoted(name)}: {local}" for name, local in exports.items())
            body = f"const {_variable(path)} = (() => {{\n{body}\nreturn {{ {returned} }};\n}})();"
        self.parts.append(f"// {path}\n{body}\n")

    def _body(self, path: str, source: str) -> tuple[str, dict[str, str]]:
        """Return a module's statements without import and export, and its exports: each name and the local one."""
        exports = {name: name for name in EXPORTED.findall(source)}
        for names in EXPORT_LIST.findall(source):
            exports |= {public: local for local, public in _names(names)}
        body = EXPORT_LIST.sub("", EXPORTED.sub("", COMMENT.sub("", source)))
        body = IMPORT.sub(lambda found: self._constants(path, *found.groups()), body)
        body = ADDRESS.sub(lambda found: f'{found[1]}"{self._from_entry(path, found[2])}"', body)
        if left := LEFT_OVER.search(body):
            raise BundleError(f"{path}: this import or export cannot be bundled: {left[0][:80]}")
        return body, exports

    def _constants(self, path: str, names: str | None, default: str | None, target: str) -> str:
        """Return the declaration that replaces an import."""
        imported = _resolve(path, target)
        wanted = [("default", default)] if default else _names(names or "")
        for name, _ in wanted:
            if name not in self.exports[imported]:
                raise BundleError(f"{path} imports {name}, which {imported} does not export")
        taken = ", ".join(f"{_quoted(name)}: {local}" for name, local in wanted)
        return f"const {{ {taken} }} = {_variable(imported)};"

    def _from_entry(self, path: str, target: str) -> str:
        relative = posixpath.relpath(_resolve(path, target), self.folder)
        return relative if relative.startswith("../") else f"./{relative}"


def _styles(root: Path, entry: str) -> str:
    """Return a style sheet that consists of imports, each replaced with the file that it names."""

    def content(found: re.Match[str]) -> str:
        path = _resolve(entry, found[1])
        text = (root / path).read_text(encoding="utf-8")
        if "@import" in text or "url(" in text:
            raise BundleError(f"{path}: @import and url() cannot be bundled")
        return f"/* {path} */\n{COMMENT.sub('', text)}"

    return STYLE_IMPORT.sub(content, (root / entry).read_text(encoding="utf-8"))


def _names(listed: str) -> list[tuple[str, str]]:
    """Return the pairs of a list `a, b as c`: each name and its alias, which is the same name if there is none."""
    pairs = [part.split() for part in listed.split(",") if part.strip()]
    return [(words[0], words[-1]) for words in pairs]


def _resolve(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _variable(path: str) -> str:
    return "$" + re.sub(r"\W", "_", path)


def _quoted(name: str) -> str:
    return f'"{name}"'
