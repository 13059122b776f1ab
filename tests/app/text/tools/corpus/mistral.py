"""Outputs in the formats of Mistral."""

from __future__ import annotations

from tests.app.text.tools.corpus import Case

PARIS_CALL = ("get_weather", '{"city": "Paris"}')
ADD_CALL = ("add", '{"x": 1, "y": 2}')
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
ADD = '{"name": "add", "arguments": {"x": 1, "y": 2}}'
NAMED_ADD = '[TOOL_CALLS]add[ARGS]{"x": 1, "y": 2}'

CASES = (
    Case("plain text", "See [1] and [TOOL].", "See [1] and [TOOL].", is_valid=True),
    Case("list of one call", f"[TOOL_CALLS][{PARIS}]", calls=(PARIS_CALL,), is_valid=True),
    Case("space before the list", f"[TOOL_CALLS] [{PARIS}]", calls=(PARIS_CALL,), is_valid=True),
    Case("list of two calls", f"[TOOL_CALLS][{PARIS}, {ADD}]", calls=(PARIS_CALL, ADD_CALL), is_valid=True),
    Case("named call", NAMED_ADD, calls=(ADD_CALL,), is_valid=True),
    Case("named call without a marker", '[TOOL_CALLS]add{"x": 1, "y": 2}', calls=(ADD_CALL,), is_valid=True),
    Case("two named calls", f"{NAMED_ADD}[TOOL_CALLS]ping[ARGS]{{}}", calls=(ADD_CALL, ("ping", "{}")), is_valid=True),
    Case("text before a call", f"Sure. {NAMED_ADD}", "Sure.", (ADD_CALL,), is_valid=True),
    Case("text after a list", f"[TOOL_CALLS][{PARIS}] ok", " ok", (PARIS_CALL,)),
    Case("text after a named call", f"{NAMED_ADD} ok", " ok", (ADD_CALL,)),
    Case("brackets in a string", '[TOOL_CALLS][{"name": "run", "arguments": {"code": "a[0]}]"}}]',
         calls=(("run", '{"code": "a[0]}]"}'),), is_valid=True),
    Case("marker in a string", '[TOOL_CALLS]run[ARGS]{"code": "[TOOL_CALLS]x[ARGS]{}"}',
         calls=(("run", '{"code": "[TOOL_CALLS]x[ARGS]{}"}'),), is_valid=True),
    Case("nested lists", '[TOOL_CALLS]run[ARGS]{"a": [[1, [2]], "]"]}', calls=(("run", '{"a": [[1, [2]], "]"]}'),)),
    Case("thinking", f"[THINK]Hm [x].[/THINK]{NAMED_ADD}", calls=(ADD_CALL,), reasoning="Hm [x].", is_valid=True),
    Case("thinking in the older tags", "<think>\nHm.</think>\nYes.", "Yes.", reasoning="Hm."),
    Case("call inside thinking", f"[THINK]{NAMED_ADD}[/THINK]a", "a", reasoning=NAMED_ADD),
    Case("thinking that the prompt opened", f"Hm.[/THINK]{NAMED_ADD}", calls=(ADD_CALL,), reasoning="Hm.", is_open=True),
    Case("unknown tool at the end of a list", f'[TOOL_CALLS][{ADD}, {{"name": "fly"}}] x', ', {"name": "fly"}] x', (ADD_CALL,), is_valid=False),
    Case("unknown named tool", '[TOOL_CALLS]fly[ARGS]{"x": "[TOOL_CALLS]"} y', '[TOOL_CALLS]fly[ARGS]{"x": "[TOOL_CALLS]"} y', is_valid=False),
    Case("empty list", "[TOOL_CALLS][]", "[TOOL_CALLS][]", is_valid=False),
    Case("marker alone", "[TOOL_CALLS]", is_valid=False),
    Case("stray marker", f"[TOOL_CALLS] {NAMED_ADD}", "[TOOL_CALLS]", (ADD_CALL,), is_valid=False),
    Case("name split across tokens, then cut", "[TOOL_CALLS]get_wea"),
    Case("cut in the arguments", '[TOOL_CALLS]add[ARGS]{"x": 1', calls=(("add", '{"x": 1'),), is_valid=False),
    Case("cut in a list", f'[TOOL_CALLS][{PARIS}, {{"name": "a', calls=(('get_weather', '{"city": "Paris"}'),)),
    Case("missing bracket", f"[TOOL_CALLS][{PARIS}", calls=(PARIS_CALL,)),
    Case("one call allowed", f"[TOOL_CALLS][{PARIS}, {ADD}]", f", {ADD}]", (PARIS_CALL,), parallel=False, is_valid=False),
    Case("no tools", f"[THINK]a[/THINK]{NAMED_ADD}", NAMED_ADD, reasoning="a", has_tools=False),
)  # fmt: skip
