"""Outputs in the format of Hermes, Qwen2.5 and Qwen3."""

from __future__ import annotations

from tests.app.text.tools.corpus import Case

PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ADD = '<tool_call>\n{"name": "add", "arguments": {"x": 1, "y": 2}}\n</tool_call>'
PARIS_CALL = ("get_weather", '{"city": "Paris"}')
ADD_CALL = ("add", '{"x": 1, "y": 2}')

CASES = (
    Case("plain text", "It is sunny.", "It is sunny."),
    Case("empty answer", ""),
    Case("white space only", " \n ", " \n "),
    Case("one call", PARIS, calls=(PARIS_CALL,), is_valid=True),
    Case("two calls in a row", f"{PARIS}\n{ADD}", calls=(PARIS_CALL, ADD_CALL), is_valid=True),
    Case("two calls without a gap", PARIS + ADD, calls=(PARIS_CALL, ADD_CALL), is_valid=True),
    Case("text before a call", f"Let me see.\n\n{PARIS}", "Let me see.", (PARIS_CALL,), is_valid=True),
    Case("text after a call", f"{PARIS}\nDone.", "\nDone.", (PARIS_CALL,), is_valid=True),
    Case("text between calls", f"A {PARIS} B {ADD} C\n", "A B C\n", (PARIS_CALL, ADD_CALL), is_valid=True),
    Case("white space after a call", f"{PARIS}\n\n ", calls=(PARIS_CALL,)),
    Case(
        "thinking before a call",
        f"<think>\nI need the weather.\n</think>\n\n{PARIS}",
        calls=(PARIS_CALL,),
        reasoning="I need the weather.\n",
        is_valid=True,
    ),
    Case("call inside thinking", f"<think>{PARIS}</think>No.", "No.", reasoning=PARIS, is_valid=True),
    Case("call inside thinking that the prompt opened", f"{PARIS}", reasoning=PARIS, is_open=True),
    Case("closed thinking", f"Hm.</think>{ADD}", calls=(ADD_CALL,), reasoning="Hm.", is_open=True, is_valid=True),
    Case("unicode", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 東京 👩‍👩‍👧"}}\n</tool_call>',
         calls=(("get_weather", '{"city": "Zürich 東京 👩‍👩‍👧"}'),), is_valid=True),
    Case("escapes", '<tool_call>\n{"name": "run", "arguments": {"code": "a\\"b\\\\ \\n"}}\n</tool_call>',
         calls=(("run", '{"code": "a\\"b\\\\ \\n"}'),), is_valid=True),
    Case("an escape by number", '<tool_call>\n{"name": "run", "arguments": {"code": "\\u0001"}}\n</tool_call>',
         calls=(("run", '{"code": "\\u0001"}'),), is_valid=False),
    Case("braces in a string", '<tool_call>\n{"name": "run", "arguments": {"code": "}} {{ ]["}}\n</tool_call>',
         calls=(("run", '{"code": "}} {{ ]["}'),), is_valid=True),
    Case("tags in a string", '<tool_call>\n{"name": "run", "arguments": {"code": "</tool_call><tool_call>"}}\n</tool_call>',
         calls=(("run", '{"code": "</tool_call><tool_call>"}'),), is_valid=True),
    Case("cut in the arguments", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par',
         calls=(("get_weather", '{"city": "Par'),), is_valid=False),
    Case("cut in the name", '<tool_call>\n{"name": "get_wea'),
    Case("cut after the name", '<tool_call>\n{"name": "ping", "argu'),
    Case("cut in the start marker", "Wait <tool_ca", "Wait <tool_ca"),
    Case("text directly after a call", f"{PARIS}Ok. ", "Ok. ", (PARIS_CALL,), is_valid=True),
    Case("stray start marker", f"<tool_call>\n{PARIS}", "<tool_call>", (PARIS_CALL,), is_valid=False),
    Case("stray start marker in text", f"Use <tool_call> so: {PARIS}", "Use <tool_call> so:", (PARIS_CALL,)),
    Case("stray end marker", "a</tool_call>b", "a</tool_call>b"),
    Case("no JSON", "<tool_call>get_weather(Paris)</tool_call>", "<tool_call>get_weather(Paris)</tool_call>", is_valid=False),
    Case("long key", f'<tool_call>{{"{"a" * 300}": 1, "name": "ping"}}</tool_call>',
         f'<tool_call>{{"{"a" * 300}": 1, "name": "ping"}}</tool_call>'),
    Case("no name", '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', is_valid=False),
    Case("name is a number", '<tool_call>{"name": 7}</tool_call>', '<tool_call>{"name": 7}</tool_call>', is_valid=False),
    Case("arguments are an array", '<tool_call>{"name": "ping", "arguments": []}</tool_call>',
         '<tool_call>{"name": "ping", "arguments": []}</tool_call>', is_valid=False),
    Case("unknown tool", f'<tool_call>{{"name": "fly", "arguments": {{"a": "<tool_call>"}}}}</tool_call>{ADD}',
         '<tool_call>{"name": "fly", "arguments": {"a": "<tool_call>"}}</tool_call>', (ADD_CALL,), is_valid=False),
    Case("call inside an unknown call's string",
         '<tool_call>{"name": "fly", "arguments": {"a": "<tool_call>{}", "b": 1}}</tool_call>',
         '<tool_call>{"name": "fly", "arguments": {"a": "<tool_call>{}", "b": 1}}</tool_call>', is_valid=False),
    Case("one call allowed", f"{PARIS}\n{ADD} end", f"\n{ADD} end", (PARIS_CALL,), parallel=False, is_valid=False),
    Case("no tools", f"x {PARIS}", f"x {PARIS}", has_tools=False),
    Case("no tools, thinking", f"<think>a</think>{PARIS}", PARIS, reasoning="a", has_tools=False),
    Case("long white space before a call", f"a{' ' * 300}{PARIS}", f"a{' ' * 300}", (PARIS_CALL,)),
    Case("comparison signs", "1 < 2 and <b>3</b> <t", "1 < 2 and <b>3</b> <t", is_valid=True),
)  # fmt: skip
