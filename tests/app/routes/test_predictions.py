"""Predictions of clients through the API: tokens that were tried, in the usage of whole and streamed answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.engine_client.client import EngineClient
from app.server import create_app
from app.settings import Settings
from engine.config import EngineConfig
from engine.scheduling.speculation import Speculation
from tests.app.engine_client.test_client import fake_engine
from tests.app.routes.test_http import ready
from tests.app.text_models import byte_level
from tests.fakes import text_alone

PROMPT = [1, 2, 3, 4]
TOKENS = 24
RIGHT = text_alone(PROMPT, 0, TOKENS)
IDS = {"right": RIGHT, "partly right": [*RIGHT[:3], *[1] * TOKENS], "unrelated": [1] * TOKENS}
COUNTS = {"partly right": (2, 5), "unrelated": (0, 0), "": (0, 0)}
Complete = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def all_drafts_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Speculation, "_can_pay", lambda speculation, decodes: True)
    monkeypatch.setattr(
        Speculation,
        "_rows",
        lambda speculation, decodes, peers, drafts: {each: len(draft.tokens) for each, draft in drafts.items()},
    )


def make(monkeypatch: pytest.MonkeyPatch, **options: Any) -> TestClient:
    """Return a client of a server whose tokenizer reads the names in `IDS` as those tokens."""
    text = byte_level()
    encode = text.encode
    monkeypatch.setattr(text, "encode", lambda read, **more: IDS.get(read) or encode(read, **more))
    settings = Settings(engine=EngineConfig(model="fake"), model_name="fake")
    engine = EngineClient(EngineConfig(**{"model": "fake", "max_num_seqs": 4, "page_size": 4} | options), fake_engine)
    app = create_app(settings, engine, text)
    return TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)


def details(client: TestClient, prediction: str | list[dict[str, str]] | None, **fields: Any) -> dict[str, int]:
    """Return the completion token details of a completion."""
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, **fields}
    if prediction is not None:
        body["prediction"] = {"type": "content", "content": prediction}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return answer.json()["usage"]["completion_tokens_details"]
    blocks = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return json.loads(blocks[-1])["usage"]["completion_tokens_details"]


def counted(accepted: int, rejected: int) -> dict[str, int]:
    return {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": rejected,
    }


@pytest.mark.parametrize("stream", [{}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_the_usage_has_the_tokens_that_were_tried(monkeypatch: pytest.MonkeyPatch, stream: dict[str, Any]):
    """In whole and in streamed answers, and only with a prediction."""
    with make(monkeypatch) as client:
        ready(client)
        for prediction, (accepted, rejected) in COUNTS.items():
            assert details(client, prediction, **stream) == counted(accepted, rejected)
        parts = [{"type": "text", "text": "partly "}, {"type": "text", "text": "right"}]
        assert details(client, parts, **stream) == counted(*COUNTS["partly right"])
        right = details(client, "right", **stream)
        assert right == counted(right["accepted_prediction_tokens"], 0) != counted(0, 0)
        assert details(client, None, **stream) == {"reasoning_tokens": 0}


def test_the_counts_of_all_choices_are_summed(monkeypatch: pytest.MonkeyPatch):
    """Each choice has drafts of its own; one that begins later in the prediction is found by two tokens."""
    same = text_alone(PROMPT, 1, TOKENS)
    monkeypatch.setitem(IDS, "second", [*same[:3], *[1] * TOKENS])
    monkeypatch.setitem(IDS, "both", [*RIGHT[:3], *[1] * TOKENS, 9, *same[:3], *[1] * TOKENS])
    for name, counts in (("partly right", (2, 5)), ("second", (2, 5)), ("both", (3, 10))):
        with make(monkeypatch) as client:  # without earlier answers, whose drafts replace short matches
            ready(client)
            assert details(client, name, n=3) == counted(*counts)


def test_a_request_without_speculation_has_zeros(monkeypatch: pytest.MonkeyPatch):
    """Its prediction is accepted without effect."""
    with make(monkeypatch) as client:
        ready(client)
        assert details(client, "right", speculation=False) == counted(0, 0)
        assert details(client, "right", speculation=True) != counted(0, 0)


def test_without_speculation_the_usage_has_zeros(monkeypatch: pytest.MonkeyPatch):
    """The prediction is accepted without effect."""
    with make(monkeypatch, speculation="off") as client:
        ready(client)
        assert details(client, "right") == counted(0, 0)


def test_a_prediction_has_no_other_effect(monkeypatch: pytest.MonkeyPatch):
    """Neither text nor prompt differ, nor what the prefix cache has of the prompt."""
    with make(monkeypatch) as client:
        ready(client)
        fields = {"prompt": PROMPT * 4, "max_tokens": TOKENS, "seed": 1}
        prediction = {"type": "content", "content": "right"}
        answers = [
            client.post("/v1/completions", json=body).json()
            for body in (fields, fields, fields | {"prediction": prediction})
        ]
    _, without, predicted = answers
    assert predicted["choices"] == without["choices"]
    for count in ("prompt_tokens", "completion_tokens", "prompt_tokens_details"):
        assert predicted["usage"][count] == without["usage"][count]


def test_the_timeline_has_the_drafts_of_each_choice(monkeypatch: pytest.MonkeyPatch):
    """Each step yields one token and its accepted drafts."""
    with make(monkeypatch) as client:
        ready(client)
        prediction = {"type": "content", "content": "partly right"}
        body = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "n": 2, "prediction": prediction}
        answer = client.post("/v1/completions", json=body)
        first, second = client.get(f"/v1/requests/{answer.headers['x-request-id']}").json()["choices"]
    assert first["drafts"]["drafted"]["prediction"] == 7 and first["drafts"]["accepted"]["prediction"] == 2
    assert first["drafts"]["tokens"] == TOKENS
    assert first["drafts"]["steps"] == TOKENS - sum(first["drafts"]["accepted"].values())
    assert second["drafts"] is None or second["drafts"]["tokens"] == TOKENS
