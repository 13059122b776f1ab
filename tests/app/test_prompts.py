"""Prompts: the thread in which a conversation is rendered, and truncation."""

from __future__ import annotations

import threading

import pytest

from app.admission.thread_queue import NO_CALLER
from app.errors import ApiError
from app.generation.request import ChatPrompt, GenerationRequest
from app.http.json_body import MAX_INLINE_BYTES
from app.prompts import CHARACTERS_PER_TOKEN, PREDICTION_CHARACTERS, Prompts, opens_reasoning
from app.text.text_model import TextModel
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import format_by_name
from tests.app.text_models import byte_level
from tests.engine.scheduling.test_scheduler_machine import model_info

LONG = "a" * (MAX_INLINE_BYTES + 1)


@pytest.mark.parametrize(
    ("fields", "variables", "is_inline"),
    [
        ({}, None, True),
        ({"content": LONG}, None, False),
        ({"name": LONG}, None, False),
        ({"reasoning_content": LONG}, None, False),
        ({}, {"style": LONG, "count": 3}, False),
    ],
)
async def test_a_conversation_with_long_texts_is_not_rendered_on_the_event_loop(
    monkeypatch, fields: dict, variables: dict | None, is_inline: bool
):
    """Control tokens are searched in every text of a caller, and the template may write any of them."""
    text, threads = byte_level(), []
    render = text.render_chat

    def recorded(*arguments, **options) -> str:
        threads.append(threading.get_ident())
        return render(*arguments, **options)

    monkeypatch.setattr(text, "render_chat", recorded)
    prompts = Prompts(text, lambda: pytest.fail("the model is not needed"))
    await prompts.render(
        ChatPrompt(turns=[{"role": "user", "content": "hi", **fields}], variables=variables), NO_CALLER
    )
    assert (threads == [threading.get_ident()]) is is_inline


@pytest.mark.parametrize(
    ("rendered", "message", "is_open"),
    [
        ("[assistant]<think>\n", None, True),
        ("[assistant]", None, False),
        ("", "<think>Hm", True),
        ("", "<think>Hm</think>Yes", False),
        ("", "Yes", False),
        ("", "", False),
    ],
)
def test_an_answer_continues_a_reasoning_block_that_its_prompt_has_opened(
    rendered: str, message: str | None, is_open: bool
):
    """Some templates open the block themselves, and a message that is continued may have begun one."""
    form = format_by_name("hermes")
    assert form is not None
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": message or ""}]
    prompt = ChatPrompt(turns=turns, continue_final_message=message is not None)
    assert opens_reasoning(form, prompt, rendered) is is_open


@pytest.mark.parametrize(("max_tokens", "room"), [(None, 700), (5, 795), (10_000, 700)])
async def test_a_truncated_prompt_leaves_room_for_the_answer(max_tokens: int | None, room: int):
    """An eighth of the context or pool, or the limit of the answer if that is less."""
    prompts = Prompts(byte_level(), lambda: model_info(200, 1, 4, max_model_len=1000))
    turns = [{"role": "user", "content": letter * 94} for letter in "abcdfgijkmno"]  # 100 tokens each
    request = GenerationRequest(
        prompt=ChatPrompt(turns=turns), sampling={}, max_tokens=max_tokens, truncates_prompt=True
    )
    ids = (await prompts.prepare(request, NO_CALLER)).ids
    assert room - 100 <= len(ids) <= room
    assert byte_level().decode(ids).endswith("o" * 94)


def joined_contents() -> TextModel:
    """Return a model with a template that adds nothing to the contents."""
    return TextModel(byte_level().tokenizer, "{% for m in messages %}{{ m.content }}{% endfor %}", {}, frozenset())


@pytest.mark.parametrize(("attempts", "fits"), [(1, False), (16, True)])
async def test_turns_with_few_tokens_are_dropped_in_a_bounded_number_of_attempts(
    monkeypatch, attempts: int, fits: bool
):
    """Their part in the text is larger than that in the tokens, so that the first attempts drop too few."""
    monkeypatch.setattr("app.prompts.MAX_TRUNCATIONS", attempts)
    text, rendered = joined_contents(), []
    render = text.render_chat
    monkeypatch.setattr(text, "render_chat", lambda *given, **more: rendered.append(1) or render(*given, **more))
    prompts = Prompts(text, lambda: model_info(5000, 1, 1, max_model_len=5000))
    turns = [{"role": "user", "content": "hell"}] * 600 + [{"role": "user", "content": "a" * 4375}]
    request = GenerationRequest(prompt=ChatPrompt(turns=turns), sampling={}, truncates_prompt=True)
    ids = (await prompts.prepare(request, NO_CALLER)).ids
    assert (len(ids) == 4375) is fits and len(rendered) <= attempts + 1


async def test_the_text_of_a_grammar_is_limited(monkeypatch):
    """Tools of half that length may have one that is too long. It is written in a thread, and its author is told."""
    monkeypatch.setattr("app.prompts.MAX_GRAMMAR_CHARACTERS", 10_000)
    text, model = byte_level(), model_info(10**6, 1, 4, max_model_len=10**6)
    parameters = {"properties": {"x": {"enum": [f"{'x' * 40} {i}" for i in range(200)]}}}
    tools = ToolUse((Tool("f", parameters=parameters),), choice="required")
    prompt = ChatPrompt(turns=[{"role": "user", "content": "hi"}], tools=tools)
    request = GenerationRequest(prompt=prompt, sampling={})
    with pytest.raises(ApiError, match=r"tools: its grammar has \d\d,\d{3} characters, and at most 10,000") as refused:
        await Prompts(text, lambda: model).prepare(request, NO_CALLER)
    assert (refused.value.status, refused.value.param) == (400, "tools")


@pytest.mark.parametrize("prompt", ["hi", [1, 2], ChatPrompt(turns=[{"role": "user", "content": "hi"}])])
async def test_a_prediction_is_cut_to_the_context_and_no_part_of_the_prompt(prompt):
    """Of a text that is far too long only the beginning is tokenized."""
    text = byte_level()
    prompts, encoded = Prompts(text, lambda: model_info(200, 1, 4, max_model_len=100)), []
    encode = text.encode
    plain = await prompts.prepare(GenerationRequest(prompt=prompt, sampling={}), NO_CALLER)
    text.encode = lambda read, **more: encoded.append(read) or encode(read, **more)
    for prediction, ids in (("a b", encode("a b")), ("ab" * 10**6, encode("ab" * 50)), ("", [])):
        request = GenerationRequest(prompt=prompt, sampling={}, prediction=prediction)
        prepared = await prompts.prepare(request, NO_CALLER)
        assert prepared.prediction == tuple(ids) and prepared.ids == plain.ids
    assert max(map(len, encoded)) == CHARACTERS_PER_TOKEN * 100


async def test_a_long_prediction_is_tokenized_in_parts_until_the_context_is_full():
    """Each part has few tokens, and a text of long tokens ends early, too."""
    text = byte_level()
    size = 2 * PREDICTION_CHARACTERS + 5
    prompts, encoded = Prompts(text, lambda: model_info(size, 1, 1, max_model_len=size)), []
    encode = text.encode
    text.encode = lambda read, **more: encoded.append(len(read)) or encode(read, **more)
    for prediction, parts in (("é" * size, 2), ("e" * 2 * size, 3), ("abc", 1)):
        encoded.clear()
        request = GenerationRequest(prompt=[1, 2], sampling={}, prediction=prediction)
        assert (await prompts.prepare(request, NO_CALLER)).prediction == tuple(encode(prediction)[:size])
        assert len(encoded) == parts and max(encoded) <= PREDICTION_CHARACTERS
