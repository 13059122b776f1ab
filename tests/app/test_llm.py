"""The Python API: a model in a program, without HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.engine_client.client import EngineUnavailable
from app.errors import ApiError
from app.llm import LLM
from app.settings import SettingsError

PROMPTS = ["Count from 1 to 5:", "Tell me a story about a fox.", "Hello!"]
PARAMS = {"max_tokens": 24, "temperature": 0.8, "seed": 3}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The bundled model with few slots."""
    with LLM(max_num_seqs=4) as running:
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
    pieces = llm.stream(PROMPTS[1], {"max_tokens": 900, "ignore_eos": True})
    assert next(pieces)
    pieces.close()
    assert llm.generate(PROMPTS[:1], PARAMS)[0]
    assert llm._client.in_flight == 0


def test_more_prompts_than_the_queue_takes_are_all_completed(llm: LLM):
    """The bounded queue of the service refuses none of them."""
    assert len(llm.generate(["Hello!"] * 1100, {"max_tokens": 1})) == 1100


def test_closing_ends_a_stream_that_is_read_elsewhere():
    """Its reader gets an error instead of waiting forever."""
    running = LLM(max_num_seqs=2, kernels="torch")
    pieces = running.stream(PROMPTS[1], {"max_tokens": 900, "ignore_eos": True})
    assert next(pieces)
    running.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        for _ in pieces:
            pass


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
