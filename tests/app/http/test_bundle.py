"""Modules and style sheets joined into one file; syntax that the bundler does not support is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.http.bundle import BundleError, bundle


def write(root: Path, **files: str) -> Path:
    """Write modules, given by their names without suffix."""
    for name, text in files.items():
        (root / f"{name}.js").write_text(text)
    return root


def test_each_module_is_evaluated_once_after_its_imports(tmp_path: Path):
    """A module that two others import appears once, before both."""
    write(
        tmp_path,
        main='import { left } from "./left.js";\nimport { right } from "./right.js";\nleft(right);\n',
        left='import { base } from "./base.js";\nexport const left = () => base;\n',
        right='import { base as b } from "./base.js";\nexport function right() { return b; }\n',
        base="export class base {}\n",
    )
    text = bundle(tmp_path, "main.js")
    assert [line[3:] for line in text.splitlines() if line.startswith("// ")] == [
        "base.js",
        "left.js",
        "right.js",
        "main.js",
    ]
    assert 'const { "base": b } = $base_js;' in text
    assert 'return { "right": right };' in text
    assert "import" not in text
    assert "export" not in text


def test_defaults_lists_and_aliases_are_exported(tmp_path: Path):
    """Vendored libraries write exports at the end of a minified line, before a source map comment, which is dropped."""
    write(
        tmp_path,
        main='import A from "./lib.js";\nimport {\n  use as apply,\n} from "./lib.js";\napply(A);\n',
        lib="var x=1,y=2;export{x as default,y as use};\n//# sourceMappingURL=lib.js.map\n",
    )
    text = bundle(tmp_path, "main.js")
    assert 'return { "default": x, "use": y };' in text
    assert 'const { "default": A } = $lib_js;' in text
    assert 'const { "use": apply } = $lib_js;' in text
    assert "sourceMappingURL" not in text


def test_a_minified_line_of_imports_is_read(tmp_path: Path):
    """Each of its imports becomes a constant, and the licence after it is kept."""
    write(
        tmp_path,
        main='import { use } from "./lib.js";\nuse();\n',
        lib='import{a as s,b as t}from"./a.js";import{c}from"./c.js";\n'
        "/**\n * @license X\n */\nconst u=s(t,c);export{u as use};\n",
        a="const x=1,y=2;export{x as a,y as b};\n",
        c="class z{}export{z as c};\n",
    )
    text = bundle(tmp_path, "main.js")
    assert 'const { "a": s, "b": t } = $a_js;const { "c": c } = $c_js;\n/**\n * @license X\n */\nconst u' in text
    assert "import" not in text


def test_addresses_are_relative_to_the_bundle(tmp_path: Path):
    """Files that a module loads on demand are named relative to the folder of the entry."""
    (tmp_path / "deep").mkdir()
    write(tmp_path, main='import { load } from "./deep/load.js";\nload();\n')
    loads = (
        'export const load = () => [import("./x.js"), import("../../y.js"), new URL("../z.css", import.meta.url)];\n'
    )
    (tmp_path / "deep" / "load.js").write_text(loads)
    text = bundle(tmp_path, "main.js")
    assert '[import("./deep/x.js"), import("../y.js"), new URL("./z.css", import.meta.url)]' in text


@pytest.mark.parametrize(
    ("module", "fault"),
    [
        ("export let a = 1;", "export let a = 1;"),
        ("export default function () {}", "export default function"),
        ('export * from "./c.js";', "export *"),
        ('import * as c from "./c.js";\nexport const a = c;', "import * as c"),
        ('import "./c.js";\nexport const a = 1;', 'import "./c.js"'),
        ('import { c } from "./c.js"; export const a = c;', "import { c }"),
        ("export const a = import.meta.env;", "import.meta.env"),
        ("export const b = 1;", "main.js imports a, which a.js does not export"),
        ('import { x } from "./main.js";\nexport const a = x;', "main.js imports a.js imports main.js"),
    ],
)
def test_other_syntax_is_refused_by_name(tmp_path: Path, module: str, fault: str):
    """No bundle is better than one that works differently from its modules."""
    write(tmp_path, main='import { a } from "./a.js";\na();\n', a=module, c="export const c = 1;")
    with pytest.raises(BundleError) as error:
        bundle(tmp_path, "main.js")
    assert fault in str(error.value)


def test_style_sheets_are_joined_in_order(tmp_path: Path):
    """Each import is replaced with its file, and a file whose addresses would change their meaning is refused."""
    (tmp_path / "page.css").write_text('@import "a.css";\n@import "b.css";\n')
    (tmp_path / "a.css").write_text("a {}\n")
    (tmp_path / "b.css").write_text("b {}\n")
    assert bundle(tmp_path, "page.css") == "/* a.css */\na {}\n\n/* b.css */\nb {}\n\n"
    (tmp_path / "b.css").write_text("b { background: url(b.png) }\n")
    with pytest.raises(BundleError, match=r"b\.css"):
        bundle(tmp_path, "page.css")


def test_comments_that_fill_lines_are_left_out_and_licences_kept(tmp_path: Path):
    """Code after a comment, and text that looks like one within a line, stays."""
    lines = [
        "// About this.",
        "/*! @license X */",
        "/**",
        " * Adds.",
        " * @param {number} a",
        " */",
        "const add = (a) => /** @type {number} */ (a) + 1; // one more",
        "  /** @type {number} */ (add(1));",
        'add("// no comment", 2 /* two */);',
        "//# sourceMappingURL=x.map",
    ]
    write(tmp_path, main="\n".join(lines))
    assert bundle(tmp_path, "main.js").strip().splitlines() == ["// main.js", lines[1], *lines[6:9]]
