"""Outputs in the JSON format of Llama 3 and 4."""

from __future__ import annotations

from tests.app.text.tools.corpus import Case

PARIS = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
ADD = '{"name": "add", "parameters": {"x": 1, "y": 2}}'
PARIS_CALL = ("get_weather", '{"city": "Paris"}')
ADD_CALL = ("add", '{"x": 1, "y": 2}')

CASES = (
    Case("plain text", "It is {sunny}.", "It is {sunny}."),
    Case("one call", PARIS, calls=(PARIS_CALL,), is_valid=True),
    Case("one call after a start marker", f"<|python_tag|>{PARIS}", calls=(PARIS_CALL,), is_valid=True),
    Case("start and end marker", f"<|python_start|>{PARIS}<|python_end|>", f"<|python_start|>{PARIS}<|python_end|>"),
    Case("white space before a call", f"\n\n{PARIS}", calls=(PARIS_CALL,)),
    Case("two calls", f"{PARIS}; {ADD}", calls=(PARIS_CALL, ADD_CALL), is_valid=True),
    Case("arguments named arguments", '{"name": "ping", "arguments": {}}', calls=(("ping", "{}"),)),
    Case("type of the call", '{"type": "function", "name": "ping", "parameters": {}}', calls=(("ping", "{}"),)),
    Case("JSON in a string", r'{"name": "run", "parameters": {"code": "{\"a\": [1]}"}}',
         calls=(("run", r'{"code": "{\"a\": [1]}"}'),), is_valid=True),
    Case("text after a call", f"{PARIS} It is.", " It is.", (PARIS_CALL,), is_valid=False),
    Case("text before JSON", f"So: {PARIS}", f"So: {PARIS}"),
    Case("text before a start marker", f"So: <|python_tag|>{PARIS}", "So:", (PARIS_CALL,), is_valid=True),
    Case("JSON answer", '{"title": "A", "body": [1, 2]}', '{"title": "A", "body": [1, 2]}'),
    Case("JSON answer with a person's name", '{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}'),
    Case("JSON answer with a tool's name", '{"name": "run", "age": 3}', '{"name": "run", "age": 3}'),
    Case("tool's name alone", '{"name": "ping"}', '{"name": "ping"}'),
    Case("unknown tool, then a known one", f'{{"name": "fly", "parameters": {{}}}}; {ADD}',
         f'{{"name": "fly", "parameters": {{}}}}; {ADD}'),
    Case("known tool, then an unknown one", f'{ADD}; {{"name": "fly", "parameters": {{}}}}',
         '; {"name": "fly", "parameters": {}}', (ADD_CALL,), is_valid=False),
    Case("code after a start marker", '<|python_tag|>print("a")', '<|python_tag|>print("a")', is_valid=False),
    Case("stray start marker", f"<|python_tag|> <|python_tag|>{ADD}", "<|python_tag|>", (ADD_CALL,)),
    Case("cut in the arguments", '{"name": "run", "parameters": {"code": "a{', calls=(("run", '{"code": "a{'),), is_valid=False),
    Case("cut in the name", '{"name": "ru', '{"name": "ru'),
    Case("list", "[1, 2]", "[1, 2]"),
    Case("trailing semicolon", f"{PARIS};", calls=(('get_weather', '{"city": "Paris"}'),)),
    Case("thinking", f"<think>a {ADD}</think>\n{ADD}", calls=(ADD_CALL,), reasoning=f"a {ADD}", is_valid=True),
    Case("one call allowed", f"{PARIS}; {ADD}", f"; {ADD}", (PARIS_CALL,), parallel=False, is_valid=False),
    Case("no tools", PARIS, PARIS, has_tools=False),
)  # fmt: skip
