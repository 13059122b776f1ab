"""Arguments of the application in a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.options import SettingsError
from app.ray_launcher.arguments import ApiArguments, Arguments, parse_arguments
from engine.errors import ConfigError

FILE = Path(__file__).resolve().parents[3] / "deploy" / "ray" / "carousel.yaml"


def test_the_file_for_serve_deploy_has_valid_arguments():
    """And names a builder that exists."""
    [application] = yaml.safe_load(FILE.read_text())["applications"]
    arguments = parse_arguments(application["args"])
    assert arguments.name == "carousel" and arguments.engines.limit > arguments.engines.min
    module, name = application["import_path"].split(":")
    assert callable(getattr(__import__(module, fromlist=[name]), name))


def test_a_number_of_api_processes_stands_for_their_defaults():
    """All fields can be given instead."""
    assert parse_arguments({"model": "m", "apis": 3}).api == ApiArguments(num=3)
    apis = {"num": 2, "port": 9000, "host": "127.0.0.1", "options": {"max_tokens_limit": 5}}
    with pytest.raises(ConfigError, match=r"apis\.options\.max_tokens_limit is not an option of these processes"):
        parse_arguments({"model": "m", "apis": apis})
    apis["options"] = {"metrics_key": "k"}
    assert parse_arguments({"model": "m", "apis": apis}).api.options == {"metrics_key": "k"}


def test_an_engine_on_a_cpu_has_as_many_threads_as_cores():
    """Unless it is told otherwise, or computes on a GPU."""

    def threads(**engines: Any) -> int | None:
        return parse_arguments({"model": "m", "engines": engines}).engine_values.get("threads")

    assert (threads(), threads(num_cpus=4), threads(num_cpus=0.5)) == (1, 4, 1)
    assert (threads(num_gpus=1, num_cpus=4), threads(num_cpus=4, options={"threads": 2})) == (None, 2)


def test_a_placement_reserves_the_resources_of_each_engine():
    """It needs some, and its size belongs to what the engines are started with."""

    def placed(**engines: Any) -> Arguments:
        return parse_arguments({"model": "m", "engines": {"placement": "STRICT_SPREAD"} | engines})

    bundle = placed(num_gpus=0.5, resources={"rack": 1}).engines.bundle
    assert bundle == {"CPU": 1, "GPU": 0.5, "rack": 1}
    assert placed(max=2).generation != placed(max=3).generation
    with pytest.raises(ConfigError, match=r"engines\.placement needs engines with resources"):
        placed(num_cpus=0)
    with pytest.raises(ConfigError, match=r"Invalid enum value 'NEAR' - at `\$\.engines\.placement`"):
        placed(placement="NEAR")


def test_processes_are_replaced_only_by_arguments_that_concern_them():
    """Not by another number of them."""
    first = parse_arguments({"model": "m", "apis": 2}).generation
    assert parse_arguments({"model": "m", "apis": 3, "engines": {"min": 2, "max": 4}}).generation == first
    others = [
        {"model": "n"},
        {"model": "m", "engines": {"num_cpus": 2}},
        {"model": "m", "engines": {"options": {"max_num_seqs": 4}}},
        {"model": "m", "apis": {"port": 9000}},
    ]
    generations = {parse_arguments(each).generation for each in others}
    assert len(generations) == len(others) and first not in generations


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "missing required field `model`"),
        ({"engine": {}}, "unknown field `engine`"),
        ({"engines": {"min": 0}}, r">= 1 - at `\$.engines.min`"),
        ({"engines": {"min": 3, "max": 2}}, "engines.max must be at least engines.min, got 2"),
        ({"engines": {"options": {"listen": "a:1"}}}, "engines.options.listen cannot be given: the launcher sets it"),
        ({"engines": {"options": {"port": 80}}}, "engines.options.port is not an option of these processes"),
        ({"engines": {"options": {"max_num_seqs": 0}}}, "max_num_seqs must be at least 1, got 0"),
        ({"apis": {"options": {"engines": "a:1"}}}, "apis.options.engines cannot be given: the launcher sets it"),
        ({"apis": {"options": {"max_num_seqs": 4}}}, "apis.options.max_num_seqs is not an option of these processes"),
        ({"apis": {"num": 2, "port": 65535}}, "apis.port must leave room for 2 ports, but the last one would be 65536"),
        ({"name": "a b"}, "name must be letters, digits, _ and -, at most 63, got 'a b'"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(args: dict[str, Any], message: str):
    """By name."""
    with pytest.raises((ConfigError, SettingsError), match=message):
        parse_arguments(args if not args or "engine" in args else {"model": "m", **args})
