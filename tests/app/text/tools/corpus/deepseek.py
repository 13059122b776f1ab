"""Outputs in the formats of DeepSeek-V3, R1 and V3.1."""

from __future__ import annotations

from tests.app.text.tools.corpus import Case

LIST, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEP, CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
ADD_CALL = ("add", '{"x": 1, "y": 2}')


def block(name: str, arguments: str) -> str:
    """Return a call as V3 and R1 write it."""
    return f"{BEGIN}function{SEP}{name}\n```json\n{arguments}\n```{CLOSE}"


def short(name: str, arguments: str) -> str:
    """Return a call as V3.1 writes it."""
    return f"{BEGIN}{name}{SEP}{arguments}{CLOSE}"


ADD, SHORT_ADD = block(*ADD_CALL), short(*ADD_CALL)

CASES = (
    Case("plain text", "1 < 2", "1 < 2", is_valid=True),
    Case("one block", LIST + ADD + END, calls=(ADD_CALL,), is_valid=True),
    Case("two blocks", f"{LIST}{ADD}\n{block('ping', '{}')}{END}", calls=(ADD_CALL, ("ping", "{}")), is_valid=True),
    Case("one short call", LIST + SHORT_ADD + END, calls=(ADD_CALL,), is_valid=True),
    Case("two short calls", LIST + SHORT_ADD + short("ping", "{}") + END, calls=(ADD_CALL, ("ping", "{}")), is_valid=True),
    Case("no list markers", SHORT_ADD, SHORT_ADD),
    Case("text before calls", f"Sure.\n\n{LIST}{ADD}{END}", "Sure.", (ADD_CALL,), is_valid=True),
    Case("text after calls", f"{LIST}{ADD}{END}Done.", "Done.", (ADD_CALL,)),
    Case("thinking that the prompt opened", f"Hm.\n</think>\n\n{LIST}{SHORT_ADD}{END}", calls=(ADD_CALL,), reasoning="Hm.\n",
         is_open=True, is_valid=True),
    Case("call inside thinking", f"<think>{SHORT_ADD}</think>No.", "No.", reasoning=SHORT_ADD),
    Case("braces in a string", LIST + block("run", '{"code": "}```{"}') + END, calls=(("run", '{"code": "}```{"}'),),
         is_valid=True),
    Case("marker in a string", LIST + short("run", f'{{"code": "{CLOSE}{END}"}}') + END,
         calls=(("run", f'{{"code": "{CLOSE}{END}"}}'),)),
    Case("arguments on lines", LIST + block("add", '{\n  "x": 1,\n  "y": 2\n}') + END, calls=(("add", '{\n  "x": 1,\n  "y": 2\n}'),)),
    Case("no code fence", f'{BEGIN}function{SEP}add\n{{"x": 1, "y": 2}}{CLOSE}', f'{BEGIN}function{SEP}add\n{{"x": 1, "y": 2}}{CLOSE}'),
    Case("fence without a language", f'{BEGIN}function{SEP}add\n```\n{{"x": 1, "y": 2}}\n```{CLOSE}', f'{BEGIN}function{SEP}add\n```\n{{"x": 1, "y": 2}}\n```{CLOSE}'),
    Case("missing end marker", f'{BEGIN}add{SEP}{{"x": 1, "y": 2}}', f'{BEGIN}add{SEP}{{"x": 1, "y": 2}}'),
    Case("unknown tool at the end", LIST + SHORT_ADD + short("fly", "{}") + END, short("fly", "{}") + END, (ADD_CALL,), is_valid=False),
    Case("no separator", f"{LIST}{BEGIN}add {{}}{CLOSE}{END}", f"{LIST}{BEGIN}add {{}}{CLOSE}{END}", is_valid=False),
    Case("no arguments", f"{BEGIN}add{SEP}{CLOSE}", f"{BEGIN}add{SEP}{CLOSE}"),
    Case("stray list marker", f"{LIST} {LIST}{ADD}{END}", LIST, (ADD_CALL,), is_valid=False),
    Case("stray call marker", f"{BEGIN}{SHORT_ADD}", f"{BEGIN}{SHORT_ADD}"),
    Case("cut in the arguments", f'{LIST}{BEGIN}add{SEP}{{"x": 1', calls=(("add", '{"x": 1'),), is_valid=False),
    Case("cut in the name", f"{LIST}{BEGIN}function{SEP}ad", is_valid=False),
    Case("unicode", LIST + short("get_weather", '{"city": "東京"}') + END, calls=(("get_weather", '{"city": "東京"}'),), is_valid=True),
    Case("one call allowed", LIST + SHORT_ADD + SHORT_ADD + END, SHORT_ADD + END, (ADD_CALL,), parallel=False, is_valid=False),
    Case("no tools", LIST + ADD + END, LIST + ADD + END, has_tools=False),
)  # fmt: skip
