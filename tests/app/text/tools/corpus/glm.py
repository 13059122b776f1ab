"""Outputs in the format of GLM-4.5 and later."""

from __future__ import annotations

from tests.app.text.tools.corpus import Case


def call(name: str, *arguments: tuple[str, str]) -> str:
    """Return a call as the template of GLM-4.5 writes it."""
    text = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments)
    return f"<tool_call>{name}\n{text}</tool_call>"


PARIS, ADD = call("get_weather", ("city", "Paris")), call("add", ("x", "1"), ("y", "-2e3"))
PARIS_CALL, ADD_CALL = ("get_weather", '{"city": "Paris"}'), ("add", '{"x": 1, "y": -2e3}')

CASES = (
    Case("plain text", "a < b", "a < b", is_valid=True),
    Case("one call", PARIS, calls=(PARIS_CALL,), is_valid=True),
    Case("no line breaks", "<tool_call>run<arg_key>code</arg_key><arg_value>x</arg_value></tool_call>",
         calls=(("run", '{"code": "x"}'),), is_valid=True),
    Case("two calls", f"{PARIS}\n{ADD}", calls=(PARIS_CALL, ADD_CALL), is_valid=True),
    Case("text around calls", f"A.\n{PARIS}\nB.", "A.\nB.", (PARIS_CALL,), is_valid=True),
    Case("thinking", f"<think>Hm.</think>\n{PARIS}", calls=(PARIS_CALL,), reasoning="Hm.", is_valid=True),
    Case("call inside thinking", f"<think>{ADD}</think>a", "a", reasoning=ADD),
    Case("thinking that the prompt opened", f"Hm.</think>{ADD}", calls=(ADD_CALL,), reasoning="Hm.", is_open=True, is_valid=True),
    Case("no arguments", "<tool_call>ping\n</tool_call>", calls=(("ping", "{}"),), is_valid=True),
    Case("lines and quotes in a string", call("run", ("code", ' a\n"b"\n')), calls=(("run", '{"code": " a\\n\\"b\\"\\n"}'),),
         is_valid=True),
    Case("tags in a string", call("run", ("code", "</tool_call><arg_key>")), calls=(("run", '{"code": "</tool_call><arg_key>"}'),),
         is_valid=True),
    Case("integer, object", call("get_weather", ("days", "3"), ("options", '{"a": {}}')),
         calls=(("get_weather", '{"days": 3, "options": {"a": {}}}'),)),
    Case("string that looks like JSON", call("run", ("code", '{"a": 1}')), calls=(("run", '{"code": "{\\"a\\": 1}"}'),), is_valid=True),
    Case("array, boolean, null", call("note", ("tags", '["é"]'), ("done", "false"), ("level", "null")),
         calls=(("note", '{"tags": ["é"], "done": false, "level": null}'),), is_valid=True),
    Case("integer that is a word", call("get_weather", ("days", "three")), calls=(("get_weather", '{"days": "three"}'),)),
    Case("unknown argument", call("ping", ("n", "5")), calls=(("ping", '{"n": "5"}'),)),
    Case("unknown tool", call("fly", ("a", "<tool_call>")), call("fly", ("a", "<tool_call>")), is_valid=False),
    Case("JSON instead of tags", '<tool_call>{"name": "ping"}</tool_call>', '<tool_call>{"name": "ping"}</tool_call>', is_valid=False),
    Case("stray start marker", f"<tool_call>{PARIS}", "<tool_call>", (PARIS_CALL,), is_valid=False),
    Case("cut in a string", "<tool_call>run\n<arg_key>code</arg_key>\n<arg_value>a</arg", calls=(('run', '{"code": "a'),), is_valid=False),
    Case("cut in the name", "<tool_call>ru"),
    Case("cut in a key", "<tool_call>run\n<arg_key>co"),
    Case("one call allowed", f"{ADD}\n{PARIS}", f"\n{PARIS}", (ADD_CALL,), parallel=False, is_valid=False),
    Case("no tools", PARIS, PARIS, has_tools=False),
)  # fmt: skip
