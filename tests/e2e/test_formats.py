"""Formats, tools, echo and prompt lists over HTTP, against a real server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest

from tests.limits import HANG_SECONDS

MESSAGES = [{"role": "user", "content": "Write a table of three planets."}]
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "planet": {"$ref": "#/$defs/name"},
        "moons": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["rock", "gas"]},
    },
    "required": ["planet", "moons", "kind"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 12}},
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "planet", "schema": SCHEMA}}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "maxLength": 10}, "limit": {"enum": [1, 5]}},
                "required": ["word", "limit"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "stop_search"}},
]


def post(server: Any, path: str, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(f"{server.url}/v1/{path}", json=fields, timeout=HANG_SECONDS).json()
    return answer


def chat(server: Any, **fields: Any) -> dict[str, Any]:
    return post(server, "chat/completions", **({"messages": MESSAGES, "max_tokens": 120} | fields))


def streamed(server: Any, **fields: Any) -> tuple[dict[str, Any], str]:
    """Return the message that a client joins from a stream, and the reason for its end."""
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    finish = ""
    body = {"messages": MESSAGES, "max_tokens": 120, "stream": True} | fields
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=HANG_SECONDS) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            message["content"] += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls", []):
                if piece["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(piece)
                else:
                    assert set(piece) == {"index", "function"}
                    message["tool_calls"][-1]["function"]["arguments"] += piece["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    return message, finish


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_satisfies_its_schema(server, temperature: float):
    """Streamed and whole it is the same text."""
    fields = FORMAT | {"temperature": temperature, "seed": 5}
    choice = chat(server, **fields)["choices"][0]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    message, finish = streamed(server, **fields)
    assert (message["content"], finish) == (choice["message"]["content"], "stop")


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"choice": ["Saturn", "Neptune"]}, r"Saturn|Neptune"),
        ({"regex": r"^[A-Z][a-z]{2,8}: \d+/\d+$"}, r"[A-Z][a-z]{2,8}: \d+/\d+"),
        ({"grammar": 'start: item ("," item){2}\nitem: /[a-z]{1,6}/'}, r"[a-z]{1,6},[a-z]{1,6},[a-z]{1,6}"),
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_other_formats_are_enforced_too(server, form: dict, pattern: str, path: str):
    """In conversations and in completions."""
    import re

    prompt = {"messages": MESSAGES} if path.startswith("chat") else {"prompt": "The planets are"}
    choice = post(server, path, **prompt, max_tokens=60, temperature=1.0, seed=2, structured_outputs=form)["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    assert choice["finish_reason"] == "length" or re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "find"}}], ids=["required", "named"]
)
def test_a_required_call_satisfies_its_schema(server, choice):
    """Streamed and whole it is the same call, with an id of its own."""
    fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 1.0, "seed": 3}
    whole = chat(server, **fields)["choices"][0]
    [call] = whole["message"]["tool_calls"]
    assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] is None
    tool = next(tool["function"] for tool in TOOLS if tool["function"]["name"] == call["function"]["name"])
    jsonschema.validate(json.loads(call["function"]["arguments"]), tool.get("parameters", {"maxProperties": 0}))
    message, finish = streamed(server, **fields)
    assert finish == "tool_calls" and [c["function"] for c in message["tool_calls"]] == [call["function"]]
    result = {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "nothing"}]}
    history = [*MESSAGES, whole["message"], result]
    after = chat(server, messages=history, tools=TOOLS, tool_choice="none", max_tokens=5)
    assert after["choices"][0]["message"]["content"]


def test_a_cut_call_has_its_arguments_as_far_as_they_came(server):
    """And the reason length."""
    choice = chat(server, tools=TOOLS, tool_choice="required", max_tokens=14, temperature=0)["choices"][0]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"structured_outputs": {"regex": "(?=a)"}}, "look-around"),
        ({"structured_outputs": {}}, "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "exactly one"),
        (FORMAT | {"structured_outputs": {"regex": "a"}}, "cannot be combined"),
        (FORMAT | {"ignore_eos": True}, "ignore_eos"),
        ({"structured_outputs": {"choice": ["ab"]}, "min_tokens": 50}, "no further token"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "no tool 'x'"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "two tools"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"if": {}}}}],
                "tool_choice": "required",
            },
            "tools: the parameters of tool f: if at the root cannot be enforced",
        ),
        ({"guided_json": {}}, "use structured_outputs"),
        ({"n_predict": 3}, "use max_tokens"),
    ],
)
def test_a_format_or_tool_that_cannot_be_enforced_is_refused(server, fields: dict, message: str):
    """The message names the parameter or the keyword."""
    error = chat(server, **fields)["error"]
    assert message in error["message"] and error["type"] == "invalid_request_error", error


def test_an_answer_without_a_next_token_names_only_parameters_that_were_sent(server):
    """A bias, which can contradict a format too, was not."""
    error = chat(server, structured_outputs={"choice": ["ab"]}, min_tokens=50)["error"]
    assert error["code"] == "no_token_allowed"
    assert error["message"].endswith("no further token together with min_tokens"), error


def test_a_tool_that_must_be_called_is_named_rather_than_an_unused_format(server):
    """The answer is a call, which has no format."""
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "not": {"required": ["a"]}}}
    tools = [{"type": "function", "function": function}]
    error = chat(server, **FORMAT, tools=tools, tool_choice="required")["error"]
    assert error["param"] == "tools"
    assert error["message"].startswith("tools: the parameters of tool f: not at the root cannot be enforced")


def test_several_prompts_are_answered_as_each_alone(server):
    """Choice c of prompt p has the index p * n + c, streamed or whole."""
    prompts: list[Any] = ["Count from 1 to 5:", "Hello", [5, 6, 7]]
    fields = {"max_tokens": 8, "temperature": 0.8, "seed": 4, "n": 2}
    alone = [post(server, "completions", prompt=prompt, **fields) for prompt in prompts[:2]]
    together = post(server, "completions", prompt=prompts[:2], **fields)
    texts = [choice["text"] for each in alone for choice in each["choices"]]
    assert [choice["text"] for choice in together["choices"]] == texts
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2, 3]
    totals = [sum(each["usage"][key] for each in alone) for key in ("prompt_tokens", "completion_tokens")]
    assert [together["usage"][key] for key in ("prompt_tokens", "completion_tokens")] == totals
    joined = [""] * 4
    body = {"prompt": prompts[:2], **fields, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=HANG_SECONDS) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                joined[choice["index"]] += choice["text"]
    assert joined == texts


def test_an_echoed_prompt_has_its_log_probabilities(server):
    """They equal those of the same tokens when they are generated; without new tokens the prompt alone is returned."""
    prompt = "Once upon a time"
    fields = {"temperature": 0, "logprobs": 2, "logit_bias": {"0": -100, "2": -100}}
    generated = post(server, "completions", prompt=prompt, max_tokens=6, **fields)["choices"][0]
    assert generated["finish_reason"] == "length"
    text = prompt + generated["text"]
    echoed = post(server, "completions", prompt=text, max_tokens=0, echo=True, logprobs=2)["choices"][0]
    assert echoed["text"] == text
    listed, expected = echoed["logprobs"], generated["logprobs"]
    assert listed["token_logprobs"][0] is None and listed["top_logprobs"][0] is None
    count = len(expected["tokens"])
    assert listed["tokens"][-count:] == expected["tokens"]
    assert listed["token_logprobs"][-count:] == pytest.approx(expected["token_logprobs"], abs=0.05)
    at = zip(listed["text_offset"], listed["tokens"], strict=True)
    assert all(text.startswith(token, offset) for offset, token in at)


def test_best_of_returns_the_likeliest_choices(server):
    """In order, without log-probabilities that were not requested."""
    fields = {"prompt": "Tell me a story about", "max_tokens": 6, "temperature": 1.0, "seed": 1}
    every = post(server, "completions", **fields, n=4, logprobs=0)["choices"]

    def mean(choice: dict[str, Any]) -> float:
        values = choice["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    best = post(server, "completions", **fields, n=2, best_of=4)["choices"]
    assert [choice["text"] for choice in best] == [c["text"] for c in sorted(every, key=mean, reverse=True)[:2]]
    assert all(choice["logprobs"] is None for choice in best)


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_prompt_logprobs_list_the_prompt(server, path: str):
    """In vLLM's shape: the first token has none, others are found by id; beside the choices of a chat."""
    is_chat = path.startswith("chat")
    prompt = {"messages": MESSAGES} if is_chat else {"prompt": "Count from 1 to 5:"}
    answer = post(server, path, **prompt, max_tokens=2, prompt_logprobs=2)
    listed = (answer if is_chat else answer["choices"][0])["prompt_logprobs"]
    assert listed[0] is None and len(listed) == answer["usage"]["prompt_tokens"]
    assert all({"logprob", "rank", "decoded_token"} == set(entry) for row in listed[1:] for entry in row.values())


def test_special_tokens_and_stops_are_shown_on_request(server):
    """Both are left out by default."""
    fields = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0}
    text = post(server, "completions", **fields)["choices"][0]["text"].strip()
    fields["stop"] = [text[3:5]]
    plain = post(server, "completions", **fields)["choices"][0]["text"]
    shown = post(server, "completions", **fields, include_stop_str_in_output=True)["choices"][0]["text"]
    assert shown == plain + text[3:5]
    chatted = {"messages": MESSAGES, "temperature": 0, "max_tokens": 200}
    without = chat(server, **chatted)["choices"][0]["message"]["content"]
    shown = chat(server, **chatted, skip_special_tokens=False, include_stop_str_in_output=True)
    assert shown["choices"][0]["message"]["content"] == without + "<|im_end|>"


def test_reasoning_is_closed_at_its_limit_and_counted(server):
    """The demo model does not reason, so its answers have no reasoning tokens and are not changed."""
    plain = chat(server, temperature=0)
    limited = chat(server, temperature=0, thinking_token_budget=3, reasoning_effort="none")
    assert plain["choices"] == limited["choices"]
    assert plain["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_the_model_lists_its_capabilities(server):
    """In OpenAI's shape, and in Anthropic's for its clients."""
    [model] = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert model["capabilities"] == {"chat": True, "tools": True, "reasoning": False, "structured_output": True}
    assert set(model["generation_defaults"]) >= {"temperature", "top_p", "top_k"}
    headers = {"anthropic-version": "2023-06-01"}
    listed = httpx.get(f"{server.url}/v1/models", headers=headers).json()
    assert listed["data"][0]["type"] == "model" and listed["first_id"] == model["id"]
    assert httpx.get(f"{server.url}/v1/models/{model['id']}", headers=headers).json()["type"] == "model"
