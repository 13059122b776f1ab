"""Outputs in the pythonic format of Llama 3.2 and 4."""

from __future__ import annotations

from tests.app.text.tools.corpus import Case

PARIS_CALL = ("get_weather", '{"city": "Paris"}')
ADD_CALL = ("add", '{"x": 1, "y": 2}')
PARIS, ADD = 'get_weather(city="Paris")', "add(x=1, y=2)"

CASES = (
    Case("plain text", "It is [sunny].", "It is [sunny]."),
    Case("one call", f"[{PARIS}]", calls=(PARIS_CALL,), is_valid=True),
    Case("two calls", f"[{PARIS}, {ADD}]", calls=(PARIS_CALL, ADD_CALL), is_valid=True),
    Case("white space", "\n[ add( x = 1 , y=2 ) , ping( ) ]\n", "\n[ add( x = 1 , y=2 ) , ping( ) ]\n"),
    Case("no arguments", "[ping()]", calls=(("ping", "{}"),), is_valid=True),
    Case("single quotes", "[run(code='a \"b\" c')]", calls=(("run", '{"code": "a \\"b\\" c"}'),), is_valid=True),
    Case("escapes", r"""[run(code="a\n\t\\\"\'\x41\u00e9\U0001F600\a\d")]""",
         calls=(("run", r'{"code": "a\n\t\\\"' + r"'Aé😀\u0007" + r'\\d"}'),)),
    Case("pair of surrogates", r'[run(code="\ud83d\ude00")]', calls=(("run", r'{"code": "😀"}'),)),
    Case("empty string", "[run(code='')]", calls=(("run", '{"code": ""}'),), is_valid=True),
    Case("brackets in a string", '[run(code="])}[(=,")]', calls=(("run", '{"code": "])}[(=,"}'),), is_valid=True),
    Case("unicode", '[get_weather(city="Zürich 東京")]', calls=(("get_weather", '{"city": "Zürich 東京"}'),), is_valid=True),
    Case("text after calls", f"[{ADD}] is it.", " is it.", (ADD_CALL,), is_valid=False),
    Case("text before a list", f"So: [{ADD}]", f"So: [{ADD}]"),
    Case("reference", "[1] shows it.", "[1] shows it."),
    Case("link", "[ping](http://x)", "[ping](http://x)"),
    Case("JSON list", '["ping()", 2]', '["ping()", 2]'),
    Case("no brackets", ADD, ADD),
    Case("unknown tool", f"[fly(a=1), {ADD}]", f"[fly(a=1), {ADD}]"),
    Case("unknown tool at the end", f"[{ADD}, fly(a='[')] x", ", fly(a='[')] x", (ADD_CALL,), is_valid=False),
    Case("later argument without a name", "[add(x=1, 2)]", ")]", (("add", '{"x": 1'),), is_valid=False),
    Case("mismatched bracket", "[note(tags=[1), y=2]", "), y=2]", (("note", '{"tags": [1'),), is_valid=False),
    Case("cut in a string", '[run(code="pri', calls=(("run", '{"code": "pri'),), is_valid=False),
    Case("cut in a list", "[note(tags=[1, ", calls=(("note", '{"tags": [1'),)),
    Case("cut in the name", "[get_wea", "[get_wea"),
    Case("missing bracket", f"[{ADD}", calls=(ADD_CALL,), is_valid=False),
    Case("thinking", f"<think>[{ADD}]</think>[{ADD}]", calls=(ADD_CALL,), reasoning=f"[{ADD}]", is_valid=True),
    Case("one call allowed", f"[{ADD}, {PARIS}]", f", {PARIS}]", (ADD_CALL,), parallel=False, is_valid=False),
    Case("no tools", f"[{ADD}]", f"[{ADD}]", has_tools=False),
)  # fmt: skip
