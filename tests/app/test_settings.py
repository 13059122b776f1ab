"""Sources of options and their precedence."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from app.admission.tenants import tenant_of_key
from app.options import OPTIONS, add_arguments, parse, resolve
from app.settings import SettingsError
from engine.config import EngineConfig
from engine.errors import ConfigError


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


def test_precedence_is_flag_environment_file_default(model: str, tmp_path: Path):
    """A source is used where those of higher precedence have no value."""
    file = tmp_path / "carousel.toml"
    file.write_text('port = 1\nmax_num_seqs = 1\nhost = "1.1.1.1"\npage_size = 8\n')
    environment = {"CAROUSEL_PORT": "2", "CAROUSEL_MAX_NUM_SEQS": "2"}
    settings = parse([model, "--config", str(file), "--port", "3"], environment)
    assert (settings.port, settings.engine.max_num_seqs, settings.host) == (3, 2, "1.1.1.1")
    assert settings.engine.page_size == 8
    assert settings.engine.swap_space == EngineConfig(model="x").swap_space


def test_the_model_and_an_option_with_two_names_follow_the_same_order(model: str, tmp_path: Path):
    """CAROUSEL_MODEL overrides the file's model, and a flag with vLLM's name overrides the file's value under ours."""
    file = tmp_path / "carousel.toml"
    file.write_text('model = "/nowhere"\nmemory_fraction = 0.5\n')
    settings = parse(["--config", str(file), "--gpu-memory-utilization", "0.7"], {"CAROUSEL_MODEL": model})
    assert (settings.engine.model, settings.engine.memory_fraction) == (model, 0.7)


def test_the_model_name_defaults_to_the_folder_s(model: str):
    """Clients see `--served-model-name`."""
    assert parse([model], {}).model_name == "some-model"
    assert parse([model, "--served-model-name", "nice"], {}).model_name == "nice"
    assert parse([], {"CAROUSEL_MODEL": model}).model_name == "some-model"


def test_switches_can_be_turned_off_everywhere(model: str, tmp_path: Path):
    """The forms are --no-…, words in the environment, and false in TOML."""
    file = tmp_path / "c.toml"
    file.write_text("enable_prefix_caching = false\n")
    assert parse([model], {}).engine.enable_prefix_caching
    assert not parse([model, "--no-enable-prefix-caching"], {}).engine.enable_prefix_caching
    assert not parse([model], {"CAROUSEL_ENABLE_PREFIX_CACHING": "false"}).engine.enable_prefix_caching
    assert not parse([model, "--config", str(file)], {}).engine.enable_prefix_caching


def test_several_keys_are_separated_by_commas(model: str):
    """Each key is a tenant."""
    assert parse([model, "--api-key", "one,two"], {}).tenants == (tenant_of_key("one"), tenant_of_key("two"))


@pytest.mark.parametrize(("given", "path"), [("", ""), ("/", ""), ("/llm", "/llm"), ("/llm/v-2/", "/llm/v-2")])
def test_a_root_path_is_normalized(model: str, given: str, path: str):
    """A trailing slash is removed."""
    assert parse([model, "--root-path", given], {}).root_path == path


def test_allowed_hosts_are_separated_by_commas(model: str):
    """Case and spaces do not matter."""
    assert parse([model, "--allowed-hosts", "LLM.example, ::1,*"], {}).allowed_hosts == ("llm.example", "::1", "*")


def test_allowed_origins_are_normalized_to_the_form_of_browsers(model: str):
    """Origins of apps and extensions are included, and a trailing slash is removed."""
    given = "https://Chat.example/, http://localhost:3000, app://obsidian.md, http://[::1]:80"
    expected = ("https://chat.example", "http://localhost:3000", "app://obsidian.md", "http://[::1]:80")
    assert parse([model, "--allowed-origins", given], {}).allowed_origins == expected


def test_the_help_states_the_defaults():
    """The help of every option with a default contains it."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    help_texts = {action.dest: action.help for action in parser._actions}
    assert "default: 300.0 [" in help_texts["resume_ttl"] and "default: 32 [" in help_texts["max_num_seqs"]
    assert "default: off [" in help_texts["enforce_eager"] and "default: info [" in help_texts["log_level"]
    without_default = {
        "api_key",
        "root_path",
        "allowed_hosts",
        "allowed_origins",
        "chat_template",
        "prefill_chunk",
        "gpu_memory_utilization",
    }
    assert [o.key for o in OPTIONS if o.key not in without_default and "default" not in help_texts[o.key]] == []


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("prot = 1", "'prot'; did you mean port"),
        ("max-num-seqs = 4", "'max-num-seqs'; did you mean max_num_seqs"),
        ('port = "many"', "port"),
        ("port = 1.5", "port"),
        ("port = true", "port"),
        ("port = [1]", "port"),
        ('host = ["1.1.1.1"]', "host"),
        (f"resume_ttl = 1{400 * '0'}", "resume_ttl"),
        ('dtype = "float8"', "dtype"),
        ("not toml", "c.toml"),
        ('host = "\xff"', "c.toml"),  # in Latin-1, which is not UTF-8
    ],
)
def test_a_bad_file_is_refused_by_name(model: str, tmp_path: Path, content: str, names: str):
    """Unknown options are never ignored silently."""
    file = tmp_path / "c.toml"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(SettingsError, match=names):
        parse([model, "--config", str(file)], {})


@pytest.mark.parametrize(
    ("arguments", "environment", "names"),
    [
        (["/nowhere"], {}, "/nowhere"),
        (["./nowhere/x"], {}, "nowhere"),
        ([], {"CAROUSEL_PORT": "x"}, "CAROUSEL_PORT"),
        ([], {"CAROUSEL_PORT": "tcp://10.0.0.7:8000"}, "CAROUSEL_PORT .* Kubernetes"),
        ([], {"CAROUSEL_API_KEYS": "secret"}, "CAROUSEL_API_KEYS is not an option; did you mean CAROUSEL_API_KEY"),
        ([], {"CAROUSEL_CONFIG": "/nowhere.toml"}, "/nowhere.toml"),
        (["--max-num-seqs", "0"], {}, "max_num_seqs"),
        (["--port", "99999"], {}, "port"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "64"], {}, "max_num_batched_tokens"),
        (["--memory-fraction", "1.5"], {}, "memory_fraction"),
        (["--memory-fraction", "0.5", "--gpu-memory-utilization", "0.6"], {}, "gpu_memory_utilization"),
        (["--max-queue", "0"], {}, "max_queue"),
        (["--max-body", "-1"], {}, "max_body"),
        (["--resume-ttl", "nan"], {}, "resume_ttl"),
        (["--watchdog-timeout", "4"], {}, "watchdog_timeout"),
        (["--price-per-hour", "-1"], {}, "price_per_hour"),
        (["--price-per-hour", "inf"], {}, "price_per_hour"),
        (["--swap-space", "nan"], {}, "swap_space"),
        (["--swap-space", "inf"], {}, "swap_space"),
        (["--root-path", "llm"], {}, "root_path"),
        (["--root-path", "//llm"], {}, "root_path"),
        (["--root-path", "/a b"], {}, "root_path"),
        (["--root-path", "/schlüssel"], {}, "root_path"),
        (["--api-key", "one,schlüssel"], {}, "api_key: key 2"),
        (["--allowed-hosts", " ,"], {}, "allowed_hosts"),
        (["--requests-per-minute", "-1"], {}, "requests_per_minute"),
        (["--max-connections", "0"], {}, "max_connections must be at least 1"),
        (["--max-connections-per-address", "-1"], {}, "max_connections_per_address must be at least 0"),
        (["--max-websockets", "-1"], {}, "max_websockets must be at least 0"),
        (["--metrics-key", "two words"], {}, "metrics_key must be printable"),
        (["--metrics-key", "k", "--api-key", "k"], {}, "metrics_key must not be"),
        (["--metrics-key", "k", "--operator-key", "k"], {}, "metrics_key must not be"),
        (["--websocket-idle-timeout", "0"], {}, "websocket_idle_timeout"),
        (["--max-queue-share", "0"], {}, "max_queue_share"),
        (["--max-queue-share", "nan"], {}, "max_queue_share"),
        (["--max-queue-share", "1.5"], {}, "max_queue_share"),
        (["--allowed-hosts", "a.example,https://b.example"], {}, "allowed_hosts: 'https://b.example'"),
        (["--allowed-origins", ","], {}, "allowed_origins"),
        (["--allowed-origins", "a.example"], {}, "allowed_origins: 'a.example'"),
        (["--allowed-origins", "https://a.example/chat"], {}, "allowed_origins: 'https://a.example/chat'"),
        (["--allowed-origins", "null"], {}, "allowed_origins: 'null'"),
    ],
)
def test_a_bad_value_is_refused_by_name(model: str, arguments, environment, names: str):
    """The refusal comes before anything expensive."""
    if not arguments or arguments[0].startswith("--"):
        arguments = [model, *arguments]
    with pytest.raises((SettingsError, ConfigError), match=names):
        parse(arguments, environment)


def test_the_environment_may_name_the_file(model: str, tmp_path: Path):
    """A flag overrides it."""
    files = [tmp_path / name for name in ("a.toml", "b.toml")]
    for number, file in enumerate(files):
        file.write_text(f"port = {9000 + number}")
    environment = {"CAROUSEL_CONFIG": str(files[0])}
    assert parse([model], environment).port == 9000
    assert parse([model, "--config", str(files[1])], environment).port == 9001


def test_kubernetes_variables_of_a_service_named_carousel_are_ignored(model: str):
    """Kubernetes sets such variables in every container beside the service."""
    parse([model], {"CAROUSEL_SERVICE_HOST": "10.0.0.7", "CAROUSEL_PORT_8000_TCP_ADDR": "10.0.0.7"})


def test_every_engine_option_is_a_field_of_the_engine_s_configuration():
    """Every flag has a field, and no field lacks its flag, except for the share that `--replicas` gives."""
    fields = set(EngineConfig.__struct_fields__) - {"model", "host_memory_share"}
    assert {option.key for option in OPTIONS if option.engine} == fields


@pytest.mark.parametrize(
    ("name", "files", "advice"),
    [
        ("model.safetensors", None, "is a file: a GGUF file, a folder with config.json"),
        ("folder", ["a.GGUF", "b.gguf"], "has 2 GGUF files; serve one of them: a.GGUF, b.gguf"),
        ("folder", ["mmproj-a.gguf"], "has no config.json in .*: a GGUF file, a folder"),
        ("folder", ["README.md"], "has no config.json in .*: a GGUF file, a folder"),
    ],
)
def test_an_unsupported_model_format_is_refused_with_an_alternative(
    tmp_path: Path, name: str, files: list[str] | None, advice: str
):
    """Several GGUF files in a folder are listed."""
    model = tmp_path / name
    if files is None:
        model.touch()
    else:
        model.mkdir()
        for file in files:
            (model / file).touch()
    with pytest.raises(SettingsError, match=advice):
        parse([str(model)])


@pytest.mark.parametrize("names", [("a.gguf",), ("mmproj-a.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf")])
def test_a_folder_of_one_gguf_model_is_that_file(tmp_path: Path, names: tuple[str, ...]):
    """Of several shards the first is opened, which names the others; image encoders are no models."""
    for name in names:
        (tmp_path / name).touch()
    for given in (tmp_path, tmp_path / names[-2 if len(names) > 1 else 0]):
        settings = parse([str(given)])
        assert (settings.engine.model, settings.model_name) == (str(tmp_path / names[-2:][0]), Path(names[-2:][0]).stem)


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path: Path):
    """Ollama names its files by their digests."""
    file = tmp_path / "sha256-0f3c"
    file.write_bytes(b"GGUF\3")
    assert parse([str(file)]).engine.model == str(file)


def test_a_program_may_give_paths_as_objects(tmp_path: Path):
    """A `Path` means the same as its text."""
    template = tmp_path / "chat.jinja"
    template.write_text("x")
    assert resolve({"model": "demo", "chat_template": template}, {}).chat_template == "x"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--max-body", "10000000"],
            r"at least 8 times max_body \(80,000,000 bytes\), got 67,108,864; raise it",
        ),
        (["--max-tenant-body-memory", "300000000"], "max_body_memory must be at least max_tenant_body_memory"),
    ],
)
def test_the_memory_of_bodies_has_room_for_the_largest_one(model: str, flags: list[str], message: str):
    """The error states the needed amount, and the option to change."""
    with pytest.raises(SettingsError, match=message):
        parse([model, *flags], {})
    assert parse([model, "--max-body", "8388608"], {}).max_body == 8 << 20
