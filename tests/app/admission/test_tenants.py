"""Tenants in the configuration file, and their permissions."""

from __future__ import annotations

import pytest

from app.admission.tenants import key_digest
from app.options import parse
from app.settings import SettingsError
from engine.types import ServiceClass

DIGEST = key_digest("k")


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


def read(tmp_path, model: str, text: str, *flags: str):
    path = tmp_path / "carousel.toml"
    path.write_text(text)
    return parse([model, "--config", str(path), *flags], {}).tenants


def test_a_tenant_has_a_name_a_weight_and_limits(tmp_path, model):
    """All fields of the table are read."""
    text = '[tenants.night]\nkey = "k"\nweight = 0.5\ntiers = ["flex"]\ndeadline_ms = 5\nmax_queue = 7\n'
    (tenant,) = read(tmp_path, model, text)
    assert (tenant.name, tenant.weight, tenant.deadline_ms, tenant.max_queue) == ("night", 0.5, 5, 7)
    assert tenant.digest == key_digest("k") and tenant.id == tenant.digest[:16]
    assert tenant.highest_class is ServiceClass.BATCH
    assert not tenant.may(ServiceClass.STANDARD)


def test_further_keys_are_tenants_of_their_own(tmp_path, model):
    """A key that is in the file too keeps its settings."""
    tenants = read(tmp_path, model, '[tenants.a]\nkey = "one"\nweight = 3\n', "--api-key", "one,two")
    assert [(t.digest, t.weight) for t in tenants] == [(key_digest("one"), 3.0), (key_digest("two"), 1.0)]


def test_a_table_may_have_the_digest_of_a_key_in_place_of_the_key(tmp_path, model):
    """Both forms give the same tenant."""
    tables = (f'key_sha256 = "{DIGEST}"', 'key = "k"')
    first, second = [read(tmp_path, model, f"[tenants.a]\n{table}\n") for table in tables]
    assert first == second


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[tenants.a]\nweight = 1\n", "tenants.a must have either key or key_sha256, but has neither"),
        (f'[tenants.a]\nkey = "k"\nkey_sha256 = "{DIGEST}"\n', "either key or key_sha256, but has both"),
        ('[tenants.a]\nkey_sha256 = "abc"\n', "tenants.a.key_sha256 must be 64"),
        (f'[tenants.a]\nkey_sha256 = "{DIGEST.upper()}"\n', "tenants.a.key_sha256"),
        (f'[tenants.a]\nkey_sha256 = "{DIGEST}"\n[tenants.b]\nkey = "k"\n', "same key"),
        (f'[tenants.a]\ndigest = "{DIGEST}"\n', "digest"),
        ('[tenants.a]\nkey = ""\n', "tenants.a.key"),
        ('[tenants.a]\nkey = "schlüssel"\n', "tenants.a.key must be printable ASCII"),
        ('[tenants.a]\nkey = "two words"\n', "tenants.a.key"),
        ('[tenants.a]\nkey = "k"\nweight = 0\n', "weight"),
        ('[tenants.a]\nkey = "k"\nweight = nan\n', "weight"),
        ('[tenants.a]\nkey = "k"\ntiers = ["gold"]\n', "tiers"),
        ('[tenants.a]\nkey = "k"\ntiers = []\n', "tiers"),
        ('[tenants.a]\nkey = "k"\ndeadline_ms = 0\n', "deadline_ms"),
        ('[tenants.a]\nkey = "k"\nmax_queue = -1\n', "max_queue"),
        ('[tenants.a]\nkey = "k"\nmax_concurrency = -1\n', "tenants.a.max_concurrency"),
        ('[tenants.a]\nkey = "k"\nmax_websockets = -1\n', "tenants.a.max_websockets must be at least 0"),
        ('[tenants.a]\nkey = "k"\nwebsocket_idle_timeout = 0.5\n', "websocket_idle_timeout must be at least 1"),
        ('[tenants.a]\nkey = "k"\nwebsocket_idle_timeout = nan\n', "websocket_idle_timeout must be at least 1"),
        ('[tenants.a]\nkey = "k"\ncolour = "red"\n', "colour"),
        ("[tenants.a]\nkey = 5\n", "tenants.a"),
        ('[tenants.a]\nkey = "k"\n[tenants.b]\nkey = "k"\n', "same key"),
        ('tenants = "all"\n', "tenants"),
        ("[tenants]\na = 5\n", "tenants.a"),
    ],
)
def test_an_invalid_tenant_is_refused_by_name(tmp_path, model, text: str, names: str):
    """The error names the tenant and the limit."""
    with pytest.raises(SettingsError, match=names):
        read(tmp_path, model, text)
