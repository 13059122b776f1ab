"""Names of models, and the default."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.__main__ import main
from app.options import parse, resolve
from app.resources import demo_model
from app.settings import SettingsError
from app.text import model_folder, packaged_model
from app.text.model_folder import Download, ModelNotFound, find_model

NAME = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of fetched models, which does not exist yet."""
    folder = tmp_path / "models"
    monkeypatch.setattr(packaged_model, "fetched_models", lambda: folder)
    return folder


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with models in ./demo and in ./smollm2-135m-instruct."""
    for name in ("demo", NAME):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fetched() -> Path:
    """Make the file of the default model, and return it."""
    file = packaged_model.DEFAULT_MODEL.file
    file.parent.mkdir(parents=True)
    file.touch()
    return file


def unreachable(name: str, revision: str | None) -> Path:
    """Fail to download a model."""
    raise ModelNotFound(f"model {name!r} cannot be fetched: no network")


def refuse(name: str, revision: str | None) -> Path:
    """Fail the test, in which nothing may be downloaded."""
    raise AssertionError(name)


@pytest.mark.parametrize("source", [{"model": "demo"}, {"config": "carousel.toml"}])
def test_demo_names_the_bundled_model_rather_than_a_folder(working_folder: Path, source: dict):
    """A folder of that name is reached by a path, as is one with the default model's name."""
    (working_folder / "carousel.toml").write_text('model = "demo"\n')
    settings = resolve(source, {})
    assert (settings.engine.model, settings.model_name) == (str(demo_model()), "carousel-demo")
    for name in ("demo", NAME):
        settings = resolve({"model": f"./{name}"}, {})
        assert Path(settings.engine.model).resolve() == working_folder / name
        assert settings.model_name == name


@pytest.mark.parametrize("model", [None, NAME])
def test_the_default_model_is_fetched_once(models: Path, working_folder: Path, model: str | None):
    """A fetched one is found without any download, and clients see its name."""

    def download(name: str, revision: str | None) -> Path:
        assert (name, revision) == (NAME, None)
        return fetched()

    file = packaged_model.DEFAULT_MODEL.file
    assert file.is_relative_to(models)
    for available in (download, refuse, None):
        settings = resolve({"model": model}, {}, download=available)
        assert (settings.engine.model, settings.model_name) == (str(file), NAME)
        assert settings.model_warning == ""


@pytest.mark.parametrize(
    ("download", "reason"), [(unreachable, "cannot be fetched: no network"), (None, "has not been fetched")]
)
def test_without_the_default_model_the_bundled_one_is_served_with_a_warning(download: Download | None, reason: str):
    """The warning has the reason and the remedy; the model given by name is an error instead."""
    settings = resolve({}, {}, download=download)
    assert (settings.engine.model, settings.model_name) == (str(demo_model()), "carousel-demo")
    assert settings.model_warning == (
        f"the small bundled demo model is served instead of the default one: model {NAME!r} {reason}; "
        "`carousel fetch`, in a checkout also `make model`, tries again"
    )
    with pytest.raises(SettingsError, match=f"^model {NAME!r} {reason}$"):
        resolve({"model": NAME}, {}, download=download)


def test_options_are_checked_before_anything_is_downloaded():
    """A mistake in an option does not wait for a download."""
    with pytest.raises(SettingsError, match="port must be"):
        resolve({"port": 70_000}, {}, download=refuse)


def test_no_model_is_fetched_for_another_one(working_folder: Path):
    """Folders, and the bundled model, need no download."""
    for model in ("demo", "./demo", str(working_folder / NAME)):
        assert resolve({"model": model}, {"CAROUSEL_MODEL": NAME}, download=refuse).model_warning == ""
    assert parse([], {"CAROUSEL_MODEL": "demo"}).model_name == "carousel-demo"


def test_carousel_fetch_prints_the_folder_or_the_reason(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The exit status is 0 or 1; long steps are reported on standard error."""
    for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    assert main(["fetch"]) == 1
    steps, error = capsys.readouterr().err.splitlines()
    assert steps.startswith("Fetching SmolLM2-135M-Instruct (93 MB")
    assert error.startswith(f"carousel: model {NAME!r} cannot be fetched: pip: No matching distribution found")
    assert main(["fetch", "owner/name/x"]) == 1
    assert capsys.readouterr().err == (
        "carousel: model 'owner/name/x': no such folder, and not a hub name (owner/name)\n"
    )
    monkeypatch.setattr(model_folder, "_fetch_default", fetched)
    assert main(["fetch"]) == 0
    assert capsys.readouterr().out == f"{NAME} is in {packaged_model.DEFAULT_MODEL.file}\n"


@pytest.mark.parametrize("model", [None, NAME, "demo", "./demo"])
def test_a_revision_is_refused_for_a_model_that_is_not_on_the_hub(working_folder: Path, model: str | None):
    """Such models have no revisions; the option is not ignored."""
    with pytest.raises(SettingsError, match=r"^revision 'v2' needs a model on the hub \(owner/name\), got '"):
        resolve({"model": model, "revision": "v2"}, {}, download=refuse)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("owner/name", "owner/name"),
        ("hf.co/owner/name:q4_k_m", "owner/name:Q4_K_M"),
        ("owner/name:b/File.gguf", "owner/name:b/File.gguf"),
    ],
)
def test_clients_see_the_hub_name_of_a_downloaded_file(tmp_path: Path, given: str, name: str):
    """With the quantisation in capitals, unless --served-model-name is given; the revision is passed on."""
    file = tmp_path / "model.gguf"
    file.touch()
    asked = []

    def download(name: str, revision: str | None) -> Path:
        asked.append((name, revision))
        return file

    settings = resolve({"model": given, "revision": "v2"}, {}, download=download)
    assert (settings.engine.model, settings.model_name, settings.revision) == (str(file), name, "v2")
    assert asked == [(name, "v2")]
    assert resolve({"model": given, "served_model_name": "x"}, {}, download=download).model_name == "x"


def test_a_local_path_is_above_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also one with a colon."""
    folder = tmp_path / "owner" / "name:Q4_K_M"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve({"model": "owner/name:Q4_K_M"}, {}, download=refuse).engine.model == "owner/name:Q4_K_M"


@pytest.mark.parametrize("name", ["missing.gguf", "folder/missing.gguf", "/a/b/missing.GGUF"])
def test_a_missing_file_is_not_looked_for_on_the_hub(name: str):
    """A name of two parts that ends as a file's is a file."""
    with pytest.raises(ModelNotFound, match=rf"^model '{name}': no such file; on the hub, a file is owner/name:FILE"):
        find_model(name, lambda *_: pytest.fail("nothing may be downloaded"))
