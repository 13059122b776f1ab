"""The unit files and the stages of the image agree with the program that they start."""

from __future__ import annotations

import argparse
import configparser
import json
import re
import shlex
import subprocess
import tomllib

import pytest

from app.__main__ import make_parser
from app.cli.listener import BACKLOG
from app.settings import Settings
from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
INSTRUCTIONS = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


def parse(arguments: list[str]) -> argparse.Namespace:
    return make_parser(arguments).parse_args(arguments)


def unit(name: str) -> configparser.ConfigParser:
    read = configparser.ConfigParser(interpolation=None)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string((DEPLOY / name).read_text())
    return read


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage of the image, with their arguments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.M).replace("\\\n", "")
    found: list[list[tuple[str, str]]] = []
    for line in filter(None, text.splitlines()):
        word, arguments = line.split(maxsplit=1)
        assert word in INSTRUCTIONS, line
        if word == "FROM":
            found.append([])
        found[-1].append((word, arguments))
    return found


def commands(stage: list[tuple[str, str]]) -> str:
    return " ".join(arguments for word, arguments in stage if word == "RUN")


def test_the_unit_starts_the_server_and_waits_for_it():
    """Its command line is one that the program accepts, and it may drain for longer than it does by default."""
    service = unit("carousel.service")["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/carousel")
    assert str(parse(arguments).config) == "/etc/carousel.toml"
    assert service["Type"] == "notify"
    assert (
        float(service["TimeoutStopSec"])
        > Settings.__struct_defaults__[
            Settings.__struct_fields__.index("drain_timeout") - len(Settings.__struct_fields__)
        ]
    )
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID", "keys are read again"
    assert service["Restart"] == "on-failure"


def test_the_socket_holds_connections_while_the_server_restarts():
    """As many as the server's own socket would, at the default port."""
    socket = unit("carousel.socket")["Socket"]
    assert socket["ListenStream"] == "127.0.0.1:8000"
    assert int(socket["Backlog"]) == BACKLOG


def test_the_image_has_kernels_and_no_compiler():
    """The first stage compiles them, in the cache folder that the second one reads."""
    build, run = stages()
    assert re.search(r"\bg\+\+", commands(build)) and "carousel build-kernels" in commands(build)
    assert "g++" not in commands(run)
    (cache,) = {arguments for word, arguments in build if word == "ENV"}
    environment = " ".join(arguments for word, arguments in run if word == "ENV")
    assert cache.startswith("XDG_CACHE_HOME=") and cache in environment
    copied = [arguments for word, arguments in run if word == "COPY"]
    assert f"--from=build {cache.partition('=')[2]} {cache.partition('=')[2]}" in copied
    assert parse(["build-kernels"])


def test_the_image_starts_the_server_for_other_containers():
    """As an ordinary user, in a version of Python that the package allows, with options that the program accepts."""
    _, run = stages()
    words = dict(run)
    arguments = json.loads(words["ENTRYPOINT"]) + json.loads(words["CMD"])
    assert arguments[0] == "carousel" and parse(arguments[1:]).host == "0.0.0.0"
    assert f"--uid {words['USER']} " in commands(run) and int(words["USER"]) > 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    minor = int(re.match(r"docker.io/library/python:3\.(\d+)-slim", words["FROM"])[1])  # type: ignore[index]
    assert minor >= int(re.match(r">=3\.(\d+)", project["requires-python"])[1])  # type: ignore[index]


def test_the_image_is_built_of_the_files_that_the_package_needs():
    """No more are sent to the builder: neither models nor the history."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = [line[1:] for line in lines if line.startswith("!")]
    assert lines[1] == "*" and all((ROOT / path).exists() for path in sent)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["packages"], *wheel["force-include"], project["project"]["readme"], "pyproject.toml"]
    needed += re.findall(r"--constraint (\S+)", commands(stages()[0]))
    assert [path for path in needed if not any(f"{path}/".startswith(f"{each}/") for each in sent)] == []


@pytest.mark.parametrize(("device", "has_compiler"), [("cpu", False), ("cuda", True)])
def test_only_an_image_for_gpus_has_a_c_compiler(device: str, has_compiler: bool):
    """Triton needs one to start kernels; further packages are installed in any image that asks for them."""
    (script,) = (arguments for word, arguments in stages()[1] if word == "RUN" and "apt-get" in arguments)
    script = script.replace("apt-get update", "true").replace("apt-get install", "echo")
    script = script.replace("rm -rf /var/lib/apt/lists/*", "true")

    def installed(packages: str) -> list[str]:
        environment = {"DEVICE": device, "PACKAGES": packages}
        output = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True)
        return [word for word in output.stdout.split() if not word.startswith("--")]

    assert installed("") == (["gcc", "libc6-dev"] if has_compiler else [])
    assert installed("wget")[:1] == ["wget"]


@pytest.mark.parametrize("word", sorted(INSTRUCTIONS))
def test_every_known_instruction_is_used(word: str):
    """The list above has no others."""
    assert any(word == used for stage in stages() for used, _ in stage)
