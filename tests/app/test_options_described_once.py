"""An option is described once: flag, variable, line of the file, bounds and manual come from one annotated field."""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import pytest

from app.options import OPTIONS, add_arguments, manual_table, options_of, parse
from app.settings import LIMITS, Settings, SettingsError
from docs.option_tables import MANUAL, with_tables
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.options import Option, at_least, at_most, declared_options
from tests.conftest import ROOT


class Extended(Settings, frozen=True, kw_only=True):
    """Settings with two further options."""

    max_uploads: Annotated[
        int, Option(LIMITS, "maximum uploads of a client", bounds=(at_least(1), at_most(9)), alias="upload_limit")
    ] = 3
    upload_format: Annotated[Literal["zip", "tar"] | None, Option("Uploads", "format", "of the file")] = None


class ExtendedEngine(EngineConfig, frozen=True, kw_only=True):
    """Engine configuration with one further option."""

    upload_share: Annotated[float, Option("Uploads", "share of uploads", bounds=(at_most(1),))] = 0.5


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return str(tmp_path / "model")


def help_of(settings: type[Settings]) -> str:
    parser = argparse.ArgumentParser()
    add_arguments(parser, settings)
    return " ".join(parser.format_help().split())


def test_a_declared_option_has_a_flag_with_group_help_default_and_variable(model: str):
    """Nothing but the field names it."""
    text = "--max-uploads INT maximum uploads of a client; default: 3 [CAROUSEL_MAX_UPLOADS]"
    assert text in help_of(Extended) and text not in help_of(Settings)
    assert "Uploads: --upload-format {zip,tar} format; default: of the file" in help_of(Extended)
    assert parse([model, "--max-uploads", "5"], {}, Extended).max_uploads == 5
    assert parse([model], {}, Extended).max_uploads == 3


def test_a_declared_option_has_a_variable_and_a_line_of_the_file(model: str, tmp_path: Path):
    """With the precedence of all options; a value of another type is refused by the source's name."""
    file = tmp_path / "carousel.toml"
    file.write_text('max_uploads = 6\nupload_format = "zip"\n')
    given = ["--config", str(file)]
    settings = parse([model, *given], {}, Extended)
    assert (settings.max_uploads, settings.upload_format) == (6, "zip")
    assert parse([model, *given], {"CAROUSEL_MAX_UPLOADS": "7"}, Extended).max_uploads == 7
    assert parse([model], {"CAROUSEL_UPLOAD_LIMIT": "8"}, Extended).max_uploads == 8
    with pytest.raises(SettingsError, match="CAROUSEL_MAX_UPLOADS must be of type int, got 'many'"):
        parse([model], {"CAROUSEL_MAX_UPLOADS": "many"}, Extended)
    file.write_text("max_uploads = true\n")
    with pytest.raises(SettingsError, match=r"carousel\.toml: max_uploads must be of type int, got True"):
        parse([model, *given], {}, Extended)
    with pytest.raises(SettingsError, match="CAROUSEL_MAX_UPLOADS is not an option"):
        parse([model], {"CAROUSEL_MAX_UPLOADS": "7"})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("MAX_UPLOADS", "0", "max_uploads must be at least 1, got 0"),
        ("MAX_UPLOADS", "10", "max_uploads must be at most 9, got 10"),
        ("UPLOAD_FORMAT", "rar", "upload_format must be one of zip, tar, got 'rar'"),
    ],
)
def test_a_declared_option_is_validated(model: str, variable: str, value: str, message: str):
    """The bounds and choices are those of the declaration."""
    with pytest.raises(SettingsError, match=message):
        parse([model], {f"CAROUSEL_{variable}": value}, Extended)


def test_a_declared_option_is_in_the_tables_of_the_manual():
    """`make docs` writes them."""
    tables = manual_table(options_of(Extended))
    assert "| `--max-uploads` | 3 | maximum uploads of a client |" in tables
    assert "| `--upload-limit` | 3 | same as `--max-uploads` |" in tables
    assert "### Uploads\n\n| option | default | |\n|--|--|--|\n| `--upload-format` | of the file | format |" in tables


def test_the_engine_validates_its_declared_options_itself():
    """It does not depend on the server for that."""
    assert [option.key for option in declared_options(ExtendedEngine)][-1] == "upload_share"
    with pytest.raises(ConfigError, match="upload_share must be at most 1, got 2"):
        ExtendedEngine(model="none", upload_share=2.0).validate()
    with pytest.raises(ConfigError, match=r"scheduling_policy must be one of carousel, .* got 'lottery'"):
        EngineConfig(model="none", scheduling_policy="lottery").validate()


def test_the_tables_of_the_manual_are_up_to_date():
    """After a change of an option, run `make docs`."""
    text = MANUAL.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run `make docs`"


def test_every_flag_has_exactly_one_declaration():
    """Each option and each second name adds one flag, and each switch a second one that turns it off."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = Counter(flag for action in parser._actions for flag in action.option_strings)
    own = {"-h", "--help", "--config"}
    switches = {f"--no-{option.name}" for option in OPTIONS if option.kind is bool}
    assert set(flags) == {f"--{option.name}" for option in OPTIONS} | switches | own
    assert set(flags.values()) == {1}
    assert set(Counter(option.key for option in OPTIONS).values()) == {1}


def test_every_setting_is_an_option_or_derived_from_one():
    """No field is left out of the command line by mistake."""
    hints = get_type_hints(Settings, include_extras=True) | get_type_hints(EngineConfig, include_extras=True)
    undeclared = {name for name, hint in hints.items() if not hasattr(hint, "__metadata__")}
    assert undeclared == {"engine", "host_memory_share", "keys_file_tenants", "model", "model_warning"}


def test_no_other_module_of_the_server_names_an_option_s_variable():
    """Apart from the positional arguments' and from Kubernetes' variable, names are made from the declarations."""
    variables = {option.variable for option in OPTIONS} - {"CAROUSEL_PORT"}
    spelled = {
        (file.relative_to(ROOT).as_posix(), node.value)
        for file in (ROOT / "app").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in variables
    }
    assert {file for file, _ in spelled} <= {"app/child_environment.py", "app/cli/keys_command.py"}, spelled
