"""GET /v1/requests/{id}: what the cache had of a prompt, on the real application with a fake engine."""

from __future__ import annotations

from typing import Any

from app.cli.explain import timeline_lines
from tests.app.engine_client import test_client
from tests.app.routes.test_http import http, http_with_keys, make, ready, tenant_of_key  # noqa: F401  (fixtures)

TEXT = "It is 10:{} in the morning."


def timeline(client: Any, prompt: str, key: str = "", **more: object) -> dict[str, Any]:
    """Return the timeline of a completion of `prompt`."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2} | more, headers=headers)
    assert answer.status_code == 200, answer.text
    account: dict[str, Any] = client.get(f"/v1/requests/{answer.headers['x-request-id']}", headers=headers).json()
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == account["cached_tokens"]
    return account


def test_the_text_that_differs_is_named_to_its_owner(http_with_keys):  # noqa: F811
    """Another key's requests are not compared."""
    first = timeline(http_with_keys, TEXT.format(21), "alice")
    assert first["cache"]["reason"] == "unknown" and first["cache"]["kept_seconds"] is None
    second = timeline(http_with_keys, TEXT.format(22), "alice")
    note = second["cache"]
    assert (note["continues"], note["differs_at"], note["reason"]) == (first["id"], len("It is 10:2"), None)
    assert (note["before"], note["after"]) == ("0:21 i", "0:22 i")
    assert note["expected_tokens"] == second["cached_tokens"] == 8
    assert f'differs from that of request {first["id"]} at token 10: "0:21 i" became "0:22 i"' in "\n".join(
        timeline_lines(second)
    )
    assert timeline(http_with_keys, TEXT.format(23), "bob")["cache"]["reason"] == "unknown"


def test_clients_without_keys_are_not_shown_texts_of_each_other(http):  # noqa: F811
    """They get positions of full pages."""
    timeline(http, "Anybody's text is 10:21 long")
    note = timeline(http, "Anybody's text is 10:22 long")["cache"]
    assert (note["continues"], note["before"], note["after"], note["differs_at"]) == (None, "", "", 20)


def test_tokens_that_come_back_from_host_memory_count_as_cached(monkeypatch):
    """The usage has them, and the note has no reason: nothing was computed again."""
    monkeypatch.setattr(test_client, "PAGES", 16)
    prompt = "A conversation of 28 tokens."
    with make(tenants=(tenant_of_key("alice"), tenant_of_key("bob"))) as client:
        ready(client)
        timeline(client, prompt, "alice", prompt_cache_key="conversation")
        timeline(client, "x" * 60, "bob")
        answer = timeline(client, f"{prompt} It goes on.", "alice")
        assert answer["cached_tokens"] == answer["cache"]["expected_tokens"] == len(prompt)
        assert answer["cache"]["reason"] is None
        assert client.app.state.service.client.members[0].load.counters.restored_tokens == len(prompt)


def test_a_request_without_a_slot_has_no_note(http):  # noqa: F811
    """Nor has one that was refused."""
    answer = http.post("/v1/completions", json={"prompt": "unlike any other", "max_tokens": 2, "deadline_ms": 1})
    assert http.get(f"/v1/requests/{answer.headers['x-request-id']}").json()["cache"] is None
