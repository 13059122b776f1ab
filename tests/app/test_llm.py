"""The Python API: a model in a program, without HTTP."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import app.llm
from app.engine_client.client import EngineUnavailable
from app.errors import ApiError
from app.llm import LLM
from app.protocols.messages import Message
from app.settings import SettingsError
from app.text import packaged_model
from app.text.model_folder import ModelNotFound

PROMPTS = ["Count from 1 to 5:", "Tell me a story about a fox.", "Hello!"]
PARAMS = {"max_tokens": 24, "temperature": 0.8, "seed": 3}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The bundled model with few slots."""
    with LLM("demo", max_num_seqs=4) as running:
        yield running


def test_prompts_give_the_same_texts_together_and_alone(llm: LLM):
    """A single prompt is a list of one."""
    texts = llm.generate(PROMPTS, PARAMS)
    assert len(texts) == 3 and all(texts)
    assert [llm.generate(prompt, PARAMS)[0] for prompt in PROMPTS] == texts


def test_a_stream_gives_the_text_in_pieces(llm: LLM):
    """No piece is empty, and their concatenation is the whole text."""
    pieces = list(llm.stream(PROMPTS[1], PARAMS))
    assert len(pieces) > 3 and all(pieces) and "".join(pieces) == llm.generate(PROMPTS[1], PARAMS)[0]


def test_a_closed_stream_frees_its_slot(llm: LLM):
    """The request ends, and other prompts are served."""
    pieces = llm.stream(PROMPTS[1], {"max_tokens": 900, "ignore_eos": True, "seed": 1})
    assert next(pieces)
    pieces.close()
    assert llm.generate(PROMPTS[:1], PARAMS)[0]
    assert llm._client.in_flight == 0


def test_more_prompts_than_the_queue_takes_are_all_completed(llm: LLM):
    """The bounded queue of the service refuses none of them."""
    assert len(llm.generate(["Hello!"] * 1100, {"max_tokens": 1})) == 1100


def test_closing_ends_a_stream_that_is_read_elsewhere():
    """Its reader gets an error instead of waiting forever."""
    running = LLM("demo", max_num_seqs=2, kernels="torch")
    pieces = running.stream(PROMPTS[1], {"max_tokens": 900, "ignore_eos": True, "seed": 1})
    assert next(pieces)
    running.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        for _ in pieces:
            pass
    with pytest.raises(EngineUnavailable, match="closed"):
        running.generate("Hello!")
    with pytest.raises(EngineUnavailable, match="closed"):
        next(running.stream("Hello!"))


async def test_closing_ends_texts_that_are_awaited_elsewhere():
    """They fail with an error; a cancellation would look like one of the caller."""
    running = LLM("demo", max_num_seqs=2, kernels="torch")
    params = {"max_tokens": 900, "ignore_eos": True, "seed": 1}
    awaited = asyncio.create_task(running.agenerate("Hello!", params))
    pieces = running.astream(PROMPTS[1], params)
    assert await anext(pieces)
    await asyncio.to_thread(running.close)
    with pytest.raises(EngineUnavailable, match="closed"):
        await awaited
    with pytest.raises(EngineUnavailable, match="closed"):
        async for _ in pieces:
            pass


async def test_a_cancelled_reader_ends_its_request(llm: LLM, monkeypatch):
    """Also while it waits for a piece: it ends as cancelled, not with another error."""
    begun, ended = threading.Event(), threading.Event()

    async def wait_forever(*_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(llm._service, "generate", wait_forever)
    reading = asyncio.create_task(anext(llm.astream("Hello!")))
    assert await asyncio.to_thread(begun.wait, 10)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await asyncio.to_thread(ended.wait, 10)


async def test_asyncio_programs_get_the_same_texts(llm: LLM):
    """Whole and streamed, without blocking the caller's loop."""
    assert await llm.agenerate(PROMPTS, PARAMS) == llm.generate(PROMPTS, PARAMS)
    pieces = [piece async for piece in llm.astream(PROMPTS[0], PARAMS)]
    assert "".join(pieces) == llm.generate(PROMPTS[0], PARAMS)[0]


MESSAGES = [{"role": "user", "content": "Hello!"}]


async def test_conversations_are_answered_with_the_chat_template(llm: LLM):
    """One or several, whole, streamed and in asyncio programs, with the same texts."""
    [answer] = llm.chat(MESSAGES, PARAMS)
    assert answer and answer != llm.generate("Hello!", PARAMS)[0]
    assert llm.chat([MESSAGES, MESSAGES], PARAMS) == [answer, answer]
    assert "".join(llm.stream(MESSAGES, PARAMS)) == answer
    assert await llm.achat(MESSAGES, PARAMS) == [answer]


def test_a_wrong_message_is_refused_by_name(llm: LLM):
    """As over HTTP."""
    with pytest.raises(ApiError, match=r"messages\.0\.role"):
        llm.chat([{"role": "nobody", "content": "Hello!"}])


@pytest.mark.parametrize(
    "conversation", ["Hello!", [5], [("user", "Hello!")], [Message(role="user", content="Hello!")]]
)
def test_a_conversation_of_another_type_is_refused_by_name(llm: LLM, conversation: Any):
    """A text is not taken for a list of prompts."""
    with pytest.raises(ApiError, match=r"^messages"):
        llm.chat(conversation)


def test_messages_are_no_prompt(llm: LLM):
    """`chat` reads them."""
    with pytest.raises(ApiError, match=r"^prompt"):
        llm.generate(MESSAGES)  # type: ignore[arg-type]


def test_no_prompts_give_no_texts_and_iterators_are_read(llm: LLM):
    """Iterators of prompts, of messages and of conversations."""
    assert llm.generate([]) == llm.chat([]) == []
    assert llm.generate(iter(PROMPTS[:1]), PARAMS) == llm.generate(PROMPTS[0], PARAMS)  # type: ignore[arg-type]
    assert llm.chat(iter(MESSAGES), PARAMS) == llm.chat([iter(MESSAGES)], PARAMS)  # type: ignore[arg-type, list-item]


@pytest.mark.parametrize("params", [{"n": 2}, {"temperature": 3}, {"stream": True}, {"best": 1}])
def test_a_parameter_that_cannot_be_honoured_is_refused_by_name(llm: LLM, params: dict):
    """As over HTTP."""
    (name,) = params
    with pytest.raises(ApiError, match=name):
        llm.generate("Hello!", params)


def test_an_unknown_model_is_refused():
    """With the reason, and without an engine."""
    with pytest.raises(SettingsError, match="no such folder"):
        LLM("./nowhere")


def test_without_the_default_model_the_log_names_the_reason(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The bundled model is loaded in its place."""

    def unreachable(name: str, revision: str | None) -> Path:
        raise ModelNotFound(f"model {name!r} cannot be fetched: no network")

    monkeypatch.setattr(packaged_model, "fetched_models", lambda: tmp_path)
    monkeypatch.setattr(app.llm, "download_model", unreachable)
    with LLM(max_num_seqs=2) as running:
        assert "cannot be fetched: no network" in caplog.text
        assert running.generate("Hello!", PARAMS) == llm.generate("Hello!", PARAMS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seq": 8}, "max_num_seq is not an option; did you mean max_num_seqs?"),
        ({"max_num_seqs": "many"}, "max_num_seqs must be of type int, got 'many'"),
        ({"max_queue": 1.5}, "max_queue must be of type int, got 1.5"),
        ({"enforce_eager": 2}, "enforce_eager must be of type bool, got 2"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused_by_name(options: dict, message: str):
    """Unknown names, and values of another type."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        LLM("demo", **options)
