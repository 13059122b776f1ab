"""Options of `carousel engine`, and those with which `carousel serve` uses engines elsewhere."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main, make_parser
from app.engine_client.engine_sources import engine_source
from app.engine_options import EngineSettings, resolve_engine
from app.options import resolve
from app.remote_settings import DnsName, RayService
from app.settings import SettingsError
from engine.errors import ConfigError
from engine.network import Address

LISTEN = {"listen": "127.0.0.1:9400", "token_file": "token"}
ENGINES = {"engines": "10.0.0.2:9400, [::1]:9401", "token_file": "token"}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return str(tmp_path / "model")


def engine(model: str, environment: dict[str, str] | None = None, **flags: Any) -> EngineSettings:
    return resolve_engine({"model": model, **flags}, environment or {})


def test_an_engine_takes_the_options_of_engines_and_its_own(model: str, tmp_path: Path):
    """From flags, variables and the file."""
    file = tmp_path / "engine.toml"
    file.write_text('token_file = "token"\nmax_num_seqs = 6\n')
    settings = engine(model, {"CAROUSEL_ORPHAN_GRACE": "5"}, config=file, listen="0.0.0.0:9400", dtype="float32")
    assert (settings.listen, settings.token_file, settings.orphan_grace) == (Address("0.0.0.0", 9400), "token", 5.0)
    assert (settings.engine.max_num_seqs, settings.engine.dtype, settings.engine.model) == (6, "float32", model)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"token_file": "token"}, "listen is required"),
        ({"listen": "127.0.0.1:9400"}, "token_file is required"),
        (LISTEN | {"listen": "9400"}, "listen must be HOST:PORT, such as .* got '9400'"),
        (LISTEN | {"tls_key": "key"}, "tls_key requires tls_cert"),
        (LISTEN | {"orphan_grace": -1.0}, "orphan_grace must be at least 0, got -1"),
        (LISTEN | {"drain_seconds": float("inf")}, "drain_seconds must be finite, got inf"),
        (LISTEN | {"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        (LISTEN | {"port": 80}, "port is not an option"),
    ],
)
def test_an_engine_refuses_what_it_cannot_honour(model: str, flags: dict[str, Any], message: str):
    """By the option's name."""
    with pytest.raises((SettingsError, ConfigError), match=message):
        engine(model, **flags)


def test_an_engine_has_no_tenants(model: str, tmp_path: Path):
    """A file of a server is refused."""
    file = tmp_path / "carousel.toml"
    file.write_text('[tenants.anna]\nkey = "a-key-of-a-tenant"\n')
    with pytest.raises(SettingsError, match="tenants is not an option of `carousel engine`"):
        engine(model, config=file, **LISTEN)


def test_a_server_uses_engines_elsewhere(model: str, tmp_path: Path):
    """Each is a member of its own, named by its address."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("a token of some engines")
    settings = resolve({"model": model, **ENGINES, "token_file": token}, {})
    assert settings.engines == (Address("10.0.0.2", 9400), Address("::1", 9401))
    source = engine_source(settings)
    assert list(asyncio.run(source.engines())) == ["engine 10.0.0.2:9400", "engine [::1]:9401"]
    assert engine_source(resolve({"model": model}, {})) is None


def test_a_name_stands_for_several_engines(model: str, tmp_path: Path):
    """They may come and go, at the same port."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("a token of some engines")
    settings = resolve({"model": model, "engines": "dns://localhost:9400", "token_file": token}, {})
    assert settings.engines == DnsName("localhost", 9400)
    [engine] = asyncio.run(engine_source(settings).engines())
    assert engine in ("engine 127.0.0.1:9400", "engine [::1]:9400")


def test_a_ray_cluster_has_engines(model: str, monkeypatch: pytest.MonkeyPatch):
    """Of the service with a name, or of the one with the default name. The cluster has the token too."""
    for text, service in (
        ("ray://auto", RayService("auto", "carousel")),
        ("ray://10.0.0.2:6379/fast", RayService("10.0.0.2:6379", "fast")),
    ):
        settings = resolve({"model": model, "engines": text}, {})
        assert settings.engines == service
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape("requires the package ray: pip install '.[ray]' in the checkout")):
        engine_source(settings)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"engines": "10.0.0.2:9400"}, "engines requires token_file"),
        (ENGINES | {"engines": "10.0.0.2"}, "engines must be HOST:PORT, such as .* got '10.0.0.2'"),
        (ENGINES | {"engines": "a:1,b:2,"}, "engines must be HOST:PORT, such as .* got ''"),
        (ENGINES | {"engines": "dns://name"}, "engines after dns:// must be HOST:PORT, such as .* got 'name'"),
        (ENGINES | {"engines": "ray://auto"}, "token_file cannot be combined with engines ray://auto/carousel"),
        ({"engines": "ray://auto", "engines_ca": "ca"}, "engines_ca cannot be combined with engines ray://"),
        ({"engines": "ray://head"}, "engines after ray:// must be HOST:PORT, such as .* got 'head'"),
        ({"engines": "ray://auto/a b"}, "must be auto or HOST:PORT, with /NAME .* got 'auto/a b'"),
        (ENGINES | {"engines": "a:1,a:1"}, "engines must be different addresses, got 'a:1,a:1'"),
        (ENGINES | {"dtype": "float32"}, "dtype cannot be combined with engines: it is an option of `carousel engine`"),
        (ENGINES | {"replicas": 2}, "replicas cannot be combined with engines"),
        ({"token_file": "token"}, "token_file requires engines"),
        ({"engines_ca": "ca"}, "engines_ca requires engines"),
    ],
)
def test_a_server_refuses_options_that_exclude_each_other(model: str, flags: dict[str, Any], message: str):
    """By name; those of an engine belong to its own command."""
    with pytest.raises(ConfigError, match=message):
        resolve({"model": model, **flags}, {})


def test_the_parser_has_an_engine_s_options_only_for_its_command():
    """The server starts without importing them."""
    text = " ".join(make_parser(["engine"]).parse_args(["engine", "m", "--listen", "h:1"]).__dict__)
    assert "listen" in text
    with pytest.raises(SystemExit):
        make_parser(["serve"]).parse_args(["serve", "--listen", "h:1"])


def test_a_token_that_others_can_read_ends_the_command(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With status 2 and the command that corrects it, before the model is loaded."""
    token = tmp_path / "token"
    token.write_text("a token in a readable file")
    token.chmod(0o644)
    assert main(["engine", model, "--listen", "127.0.0.1:0", "--token-file", str(token)]) == 2
    assert f"run chmod 600 {token}" in capsys.readouterr().err


def test_an_option_that_several_api_processes_cannot_honour_is_refused(model: str):
    """By name; one process takes it."""
    with pytest.raises(ConfigError, match=r"^reuse_port cannot be combined with api_processes \(2\)"):
        resolve({"model": model, "api_processes": 2, "reuse_port": True}, {})
    assert resolve({"model": model, "api_processes": 1, "reuse_port": True}, {}).api_processes == 1
    assert resolve({"model": model, "api_processes": 2, "store": "a.db"}, {}).store == "a.db"
