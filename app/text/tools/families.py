"""Syntax of the calls of each model family, except harmony's (`app.text.tools.harmony`)."""

from __future__ import annotations

from itertools import product

from app.text.tools.json_arguments import JsonArguments
from app.text.tools.python_arguments import PythonArguments
from app.text.tools.syntax import CallForm, CallList, CallSyntax
from app.text.tools.tagged_arguments import TaggedArguments

# <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call> (Hermes, Qwen2.5, Qwen3)
HERMES = CallSyntax(
    "hermes",
    (CallList("<tool_call>", (CallForm('\n{"name": ', (', "arguments": ',), "}\n</tool_call>", quotes_name=True),)),),
    JsonArguments(),
    frozenset({"<tool_call>", "</tool_call>"}),
)

# <tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>; the outer tag may be missing
QWEN3_CODER = CallSyntax(
    "qwen3_coder",
    (
        CallList("<tool_call>", (CallForm("\n<function=", (">\n",), "</function>\n</tool_call>"),)),
        CallList(
            "<function=",
            (CallForm("", (">\n",), "</function>", "\n</tool_call>", is_spontaneous=True),),
        ),
    ),
    TaggedArguments("<parameter=", (">\n",), "\n</parameter>\n"),
    frozenset({"<tool_call>", "</tool_call>"}),
)

# <tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>, with or without the line breaks
GLM = CallSyntax(
    "glm",
    (CallList("<tool_call>", (CallForm("", ("\n", ""), "</tool_call>"),)),),
    TaggedArguments("<arg_key>", ("</arg_key>\n<arg_value>", "</arg_key><arg_value>"), "</arg_value>", "\n"),
    frozenset({"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}),
)

# [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}], and in newer models [TOOL_CALLS]f[ARGS]{"a": 1}
MISTRAL = CallSyntax(
    "mistral",
    (
        CallList(
            "[TOOL_CALLS]",
            (CallForm('{"name": ', (', "arguments": ',), "}", quotes_name=True),),
            ("[", " ["),
            (", ",),
            "]",
        ),
        CallList("[TOOL_CALLS]", (CallForm("", ("[ARGS]", ""), ""),)),
    ),
    JsonArguments(),
    frozenset({"[TOOL_CALLS]", "[ARGS]"}),
)

# In V3 and R1 the type of the call, its name, and the arguments in a block of code; in V3.1 the name and the arguments.
DEEPSEEK = CallSyntax(
    "deepseek",
    (
        CallList(
            "<｜tool▁calls▁begin｜>",
            (
                CallForm("function<｜tool▁sep｜>", ("\n```json\n",), "\n```<｜tool▁call▁end｜>"),
                CallForm("", ("<｜tool▁sep｜>",), "<｜tool▁call▁end｜>"),
            ),
            ("<｜tool▁call▁begin｜>",),
            ("<｜tool▁call▁begin｜>", "\n<｜tool▁call▁begin｜>"),
            "<｜tool▁calls▁end｜>",
        ),
    ),
    JsonArguments(),
    frozenset(f"<｜tool▁{name}｜>" for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")),
    may_repeat=False,
)

_LLAMA_CALL = CallForm('{"name": ', (', "parameters": ',), "}", quotes_name=True)
_LLAMA_HABITS = tuple(
    CallForm(
        f'{{"type"{colon}"function"{comma}"name"{colon}' if has_type else f'{{"name"{colon}',
        tuple(f'{comma}"{key}"{colon}' for key in ("parameters", "arguments")),
        "}",
        quotes_name=True,
        is_spontaneous=True,
    )
    for has_type, (comma, colon) in product((False, True), ((", ", ": "), (",", ":")))
)
# {"name": "f", "parameters": {"a": 1}} (Llama 3.1 to 4); further calls after a semicolon
LLAMA3_JSON = CallSyntax(
    "llama3_json",
    (CallList("<|python_tag|>", (_LLAMA_CALL, *_LLAMA_HABITS), separators=("; ",)),),
    JsonArguments(),
    frozenset({"<|python_tag|>"}),
    is_leading=True,
    may_repeat=False,
)

# [f(a=1, b="x"), g()] (Llama 3.2 and 4)
PYTHONIC = CallSyntax(
    "pythonic",
    (CallList("<|python_start|>", (CallForm("", ("(",), ")"),), ("[",), (", ",), "]"),),
    PythonArguments(),
    frozenset({"<|python_start|>"}),
    is_leading=True,
    may_repeat=False,
)
