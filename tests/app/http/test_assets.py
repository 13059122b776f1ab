"""Static files: compression, caching, versions, and the bundles of the pages."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from app.http.assets import ENTRIES, bundled, version
from app.resources import static_dir
from tests.app.routes.test_http import make

CSS = "css/base.css"
BUNDLE = "css/engine-page.bundle.css"


@pytest.fixture(scope="module")
def http():
    return make()


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("identity", False), ("br", False)],
)
def test_text_is_compressed_for_clients_that_accept_it(http, accepted: str, is_compressed: bool):
    """The content is the same either way, and Vary informs caches."""
    answer = http.get(f"/static/{CSS}", headers={"Accept-Encoding": accepted})
    assert answer.content == (static_dir() / CSS).read_bytes()
    assert (answer.headers.get("content-encoding") == "gzip") == is_compressed
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["content-type"].startswith("text/css")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_compressed_file_is_smaller_and_has_its_own_etag(http):
    """A client that has it gets 304, and the plain file has another ETag."""
    gzipped, plain = (http.get(f"/static/{CSS}", headers={"Accept-Encoding": each}) for each in ("gzip", "identity"))
    assert int(gzipped.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert gzipped.headers["etag"] != plain.headers["etag"]
    for answer, accepted in ((gzipped, "gzip"), (plain, "identity")):
        headers = {"Accept-Encoding": accepted, "If-None-Match": answer.headers["etag"]}
        again = http.get(f"/static/{CSS}", headers=headers)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == answer.headers["etag"]


def test_only_an_address_with_the_current_version_is_cached_for_ever(http):
    """Files without a version or with another one are current and must be revalidated."""
    cached = {
        prefix: http.get(f"/static/{prefix}{CSS}").headers["cache-control"]
        for prefix in ("", f"{version()}/", "0123456789ab/")
    }
    assert [name for name, value in cached.items() if "immutable" in value] == [f"{version()}/"]


@pytest.mark.parametrize(
    ("range_header", "status"),
    [("bytes=0-9", 206), ("bytes=99999999-", 416), ("lines=1-2", 400), ("bytes=9-1", 400)],
)
def test_a_range_is_of_the_plain_file_and_a_bad_one_is_not_cached(http, range_header: str, status: int):
    """No part of a compressed file is sent, and no refusal is cached."""
    answer = http.get(f"/static/{version()}/{CSS}", headers={"Range": range_header, "Accept-Encoding": "gzip"})
    assert answer.status_code == status
    assert "content-encoding" not in answer.headers
    assert ("immutable" in answer.headers["cache-control"]) == (status == 206)
    if status == 206:
        assert answer.content == (static_dir() / CSS).read_bytes()[:10]


def test_a_missing_file_is_not_cached(http):
    """This holds with and without the version in the path."""
    for path in (f"/static/{version()}/js/none.js", "/static/none.js"):
        assert http.get(path).status_code == 404


def test_fonts_have_their_type(http):
    """The type does not depend on the MIME database of the system."""
    assert http.get("/static/vendor/katex/fonts/KaTeX_Main-Regular.woff2").headers["content-type"] == "font/woff2"


@pytest.mark.parametrize(
    ("page", "entries"),
    [("/", ["css/chat-page.css", "js/main.js"]), ("/engine", ["css/engine-page.css", "js/engine/main.js"])],
)
def test_a_page_asks_for_one_bundle_of_modules_and_one_of_styles(http, page: str, entries: list[str]):
    """Both use versioned addresses, and only the script that runs before the first paint is loaded besides."""
    found = re.findall(r'(?:src|rel="stylesheet" href)="/static/(\w+)/([^"]+)"', http.get(page).text)
    assert [path for _, path in found] == ["js/theme.js", *map(bundled, entries)]
    assert {each for each, _ in found} == {version()}


@pytest.mark.parametrize("entry", sorted(ENTRIES))
@pytest.mark.parametrize("accepted", ["gzip", "identity"])
def test_a_bundle_is_compressed_cached_and_typed_as_files_are(http, entry: str, accepted: str):
    """It has the type and the headers of its entry, and a client that has it gets 304."""
    path, headers = f"/static/{version()}/{bundled(entry)}", {"Accept-Encoding": accepted}
    answer, file = http.get(path, headers=headers), http.get(f"/static/{version()}/{entry}", headers=headers)
    assert len(answer.content) > len(file.content)
    for name in ("content-type", "content-encoding", "vary", "cache-control", "x-content-type-options"):
        assert answer.headers.get(name) == file.headers.get(name), name
    again = http.get(path, headers={**headers, "If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_only_entries_have_bundles_and_only_for_reading(http):
    """Other files have no bundle, and other methods get the same response as for a file."""
    assert http.get("/static/css/base.bundle.css").status_code == 404
    assert http.post(f"/static/{BUNDLE}").status_code == http.post(f"/static/{CSS}").status_code == 405


def test_a_library_on_demand_is_not_in_a_bundle(http):
    """The bundle refers to such files by address and does not contain them, so that no module exists twice."""
    text = http.get("/static/js/main.bundle.js").text
    bundled_paths = set(re.findall(r"^// (\S+\.m?js)$", text, re.M))
    code = re.sub(r"/\*\*.*?\*/", "", text, flags=re.S)
    addresses = {f"js/{path}" for path in re.findall(r'(?:import|new URL)\("([^"]+)"', code)}
    assert {PurePosixPath(path).name for path in addresses} == {
        "highlight.min.js",
        "katex.min.js",
        "katex.min.css",
        "import_worker.js",
    }
    assert all((static_dir() / path).is_file() for path in addresses)
    assert "vendor/marked/marked.esm.js" in bundled_paths
    assert not any("katex" in path or "highlight" in path for path in bundled_paths)


def test_a_bundle_follows_a_changed_file(http, tmp_path, monkeypatch):
    """A file that is edited while the server runs appears in the bundle in its current form."""
    (tmp_path / "css").mkdir()
    (tmp_path / "css" / "engine-page.css").write_text('@import "a.css";\n')
    assets = next(route.app for route in http.app.routes if getattr(route, "path", "") == "/static")
    monkeypatch.setattr(assets, "all_directories", [tmp_path])
    for text in ("a {}\n", "b { }\n"):
        (tmp_path / "css" / "a.css").write_text(text)
        assert text in http.get(f"/static/{BUNDLE}").text


def test_compression_follows_a_changed_file(http, tmp_path, monkeypatch):
    """A file that is edited while the server runs is served in its current form."""
    (tmp_path / "a.css").write_text("a" * 100)
    assets = next(route.app for route in http.app.routes if getattr(route, "path", "") == "/static")
    monkeypatch.setattr(assets, "all_directories", [tmp_path])
    assert http.get("/static/a.css").text == "a" * 100
    (tmp_path / "a.css").write_text("b" * 101)
    answer = http.get("/static/a.css", headers={"Accept-Encoding": "gzip"})
    assert answer.text == "b" * 101
