"""Outputs in the format of Qwen3-Coder."""

from __future__ import annotations

from tests.app.text.tools.corpus import Case


def call(name: str, *parameters: tuple[str, str]) -> str:
    """Return a call as the model's template writes it."""
    text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{text}</function>\n</tool_call>"


PARIS, ADD = call("get_weather", ("city", "Paris")), call("add", ("x", "1"), ("y", "2.5"))
PARIS_CALL, ADD_CALL = ("get_weather", '{"city": "Paris"}'), ("add", '{"x": 1, "y": 2.5}')

CASES = (
    Case("plain text", "a < b", "a < b", is_valid=True),
    Case("one call", PARIS, calls=(PARIS_CALL,), is_valid=True),
    Case("two calls", f"{PARIS}\n{ADD}", calls=(PARIS_CALL, ADD_CALL), is_valid=True),
    Case("text around calls", f"A.\n\n{PARIS}\n\nB.", "A.\n\nB.", (PARIS_CALL,), is_valid=True),
    Case("thinking", f"<think>\nHm.\n</think>\n\n{ADD}", calls=(ADD_CALL,), reasoning="Hm.\n", is_valid=True),
    Case("call inside thinking", f"<think>{ADD}</think>a", "a", reasoning=ADD),
    Case("no parameters", call("ping"), calls=(("ping", "{}"),), is_valid=True),
    Case("no outer tag", "<function=ping>\n</function>", calls=(("ping", "{}"),)),
    Case("lines and quotes in a string", call("run", ("code", 'if a:\n\tprint("\\n", \'é\')\n')),
         calls=(("run", '{"code": "if a:\\n\\tprint(\\"\\\\n\\", \'é\')\\n"}'),), is_valid=True),
    Case("tags in a string", call("run", ("code", "<a></function><tool_call><parameter=x>1</b>")),
         calls=(("run", '{"code": "<a></function><tool_call><parameter=x>1</b>"}'),), is_valid=True),
    Case("string that looks like a number", call("get_weather", ("city", "007")), calls=(("get_weather", '{"city": "007"}'),),
         is_valid=True),
    Case("string of white space", call("run", ("code", "  ")), calls=(("run", '{"code": "  "}'),), is_valid=True),
    Case("integer", call("get_weather", ("city", "a"), ("days", "3")), calls=(("get_weather", '{"city": "a", "days": 3}'),),
         is_valid=True),
    Case("integer that is a fraction", call("get_weather", ("days", "3.5")), calls=(("get_weather", '{"days": "3.5"}'),)),
    Case("number that is not a number", call("add", ("x", "NaN")), calls=(("add", '{"x": "NaN"}'),)),
    Case("object", call("get_weather", ("city", "a"), ("options", '{"a": [1, "</b>"]}')),
         calls=(("get_weather", '{"city": "a", "options": {"a": [1, "</b>"]}}'),), is_valid=True),
    Case("malformed object", call("get_weather", ("options", "{'a': 1}")), calls=(('get_weather', '{"options": {"a": 1}}'),)),
    Case("array and boolean", call("note", ("tags", '["a", "b"]'), ("done", "true")),
         calls=(("note", '{"tags": ["a", "b"], "done": true}'),), is_valid=True),
    Case("boolean of Python", call("note", ("done", "True")), calls=(("note", '{"done": true}'),)),
    Case("union with null", call("note", ("level", "null"), ("due", "None")), calls=(("note", '{"level": null, "due": null}'),)),
    Case("union with a string", call("note", ("due", "3")), calls=(("note", '{"due": "3"}'),), is_valid=True),
    Case("enumeration", call("note", ("kind", "work")), calls=(("note", '{"kind": "work"}'),), is_valid=True),
    Case("reference", call("note", ("color", "5")), calls=(("note", '{"color": "5"}'),), is_valid=True),
    Case("no type", call("note", ("extra", "[1]")), calls=(("note", '{"extra": [1]}'),), is_valid=True),
    Case("no type, not JSON", call("note", ("extra", "a b")), calls=(("note", '{"extra": "a b"}'),)),
    Case("unknown parameter", call("ping", ("n", "5")), calls=(("ping", '{"n": "5"}'),)),
    Case("missing end of a parameter", "<function=add>\n<parameter=x>\n1\n<parameter=y>\n2\n</function>\n</tool_call>", calls=(('add', '{"x": '),)),
    Case("unknown tool", call("fly", ("a", "<tool_call>")), call("fly", ("a", "<tool_call>"))),
    Case("stray start marker", f"<tool_call>\n{PARIS}", "<tool_call>", (PARIS_CALL,), is_valid=False),
    Case("unclosed name", "<tool_call>\n<function=add\n>", "<tool_call>\n<function=add\n>"),
    Case("cut in a string", "<tool_call>\n<function=run>\n<parameter=code>\nprint(1)\n</para", calls=(('run', '{"code": "print(1)'),), is_valid=False),
    Case("cut after the name", "<tool_call>\n<function=add>", is_valid=False),
    Case("one call allowed", f"{ADD}\n{PARIS}", f"\n{PARIS}", (ADD_CALL,), parallel=False, is_valid=False),
    Case("no tools", PARIS, PARIS, has_tools=False),
)  # fmt: skip
