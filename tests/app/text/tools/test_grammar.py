"""Grammars of all tool formats, compiled by llguidance for a vocabulary of bytes and special tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import llguidance
import pytest
from tokenizers import Tokenizer

from app.resources import demo_model
from app.text.output_parser import ParsedText
from app.text.schemas.errors import InvalidFormat
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import FORMATS, ToolFormat, format_by_name
from tests.app.text.tools.corpus import TOOLS, Case
from tests.app.text.tools.test_corpus import CORPUS, parse

EOS = 256
FIRST_SPECIAL = EOS + 1


class ByteVocabulary:
    """Tokens of one byte each, an end token, and special tokens."""

    def __init__(self, special: Sequence[str]) -> None:
        self.tokens = [*(bytes([value]) for value in range(EOS)), b"<eos>", *(text.encode() for text in special)]
        self.eos_token_id, self.bos_token_id = EOS, None
        self.special_token_ids = list(range(EOS, len(self.tokens)))

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def encode(text: str, special: Sequence[str]) -> list[int]:
    """Return the tokens of a text in which every special token's text is that token."""
    ids: list[int] = []
    while text:
        found = next((each for each in special if text.startswith(each)), None)
        ids += list(text[0].encode()) if found is None else [FIRST_SPECIAL + special.index(found)]
        text = text[len(found or text[0]) :]
    return ids


def compile_grammar(grammar: str | None, special: Sequence[str] = ()) -> llguidance.LLMatcher:
    """Return a matcher at its beginning. Fails if the grammar is not valid."""
    assert grammar is not None
    vocabulary = llguidance.LLTokenizer(llguidance.TokenizerWrapper(ByteVocabulary(special)))
    matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error() + grammar
    return matcher


def accepts(grammar: str | None, text: str, special: Sequence[str] = ()) -> bool:
    """Return whether a grammar accepts a whole text."""
    matcher = compile_grammar(grammar, special)
    ids = encode(text, special)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def get_format(name: str) -> ToolFormat:
    """Return a format by name."""
    found = format_by_name(name)
    assert found is not None
    return found


JUDGED = [(name, case) for name, case in CORPUS if case.has_tools and case.is_valid is not None]


@pytest.mark.parametrize("has_special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize(("name", "case"), JUDGED, ids=[f"{name}: {case.kind}" for name, case in JUDGED])
def test_well_formed_outputs_are_accepted_and_others_refused(name: str, case: Case, has_special: bool):
    """From a start marker on, only a well-formed call of a known tool is possible; if a call is required, nothing else
    is. Markers may be special tokens of the model or text.
    """
    tool_format = get_format(name)
    special = sorted(tool_format.visible_tokens) if has_special else []
    if "in a string" in case.kind or "inside thinking" in case.kind:
        special = []  # special tokens are not text
    ids = {text: FIRST_SPECIAL + index for index, text in enumerate(special)}

    def is_accepted(choice: Any, constrains_all: bool) -> bool:
        use = ToolUse(TOOLS, choice, parallel=case.parallel)
        is_open, all_ = case.is_open, constrains_all
        grammar = tool_format.answer(use, special_tokens=ids, is_reasoning=is_open, constrains_all=all_).grammar()
        return accepts(grammar, case.text, special)

    assert is_accepted("auto", False) == is_accepted("auto", True) == case.is_valid
    needs_special = case.text.startswith("<|python_tag|>")  # never written by a model without this token
    may_be_required = bool(case.calls) and not case.content and (bool(special) or not needs_special)
    assert is_accepted("required", False) == (case.is_valid and may_be_required)


def test_tokens_may_span_the_ends_of_markers():
    """Well-formed outputs are accepted in the tokens of a BPE tokenizer, which join characters inside and outside of
    markers.
    """
    file = str(demo_model() / "tokenizer.json")
    vocabulary, tokenizer = llguidance.LLTokenizer(file), Tokenizer.from_file(file)
    for name, case in JUDGED:
        use = ToolUse(TOOLS, parallel=case.parallel)
        grammar = get_format(name).answer(use, is_reasoning=case.is_open).grammar()
        assert grammar is not None
        matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0)
        ids = tokenizer.encode(case.text, add_special_tokens=False).ids
        is_accepted = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert is_accepted == case.is_valid, (name, case.kind)


def write_call(name: str, tool: str, arguments: dict[str, Any]) -> str:
    """Return a call of a tool as a family writes it."""
    text = json.dumps(arguments, ensure_ascii=False)
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    keys = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return {
        "hermes": f'<tool_call>\n{{"name": "{tool}", "arguments": {text}}}\n</tool_call>',
        "llama3_json": f'{{"name": "{tool}", "parameters": {text}}}',
        "mistral": f"[TOOL_CALLS]{tool}[ARGS]{text}",
        "deepseek": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{tool}<｜tool▁sep｜>{text}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "qwen3_coder": f"<tool_call>\n<function={tool}>\n{tags}</function>\n</tool_call>",
        "glm": f"<tool_call>{tool}\n{keys}</tool_call>",
        "pythonic": f"[{tool}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]",
        "harmony": f"<|channel|>commentary to=functions.{tool} <|constrain|>json<|message|>{text}",
    }[name]


PICK = Tool(
    "pick",
    "",
    {
        "type": "object",
        "properties": {"color": {"enum": ["red", "blue"]}, "count": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["count"],
        "additionalProperties": False,
    },
)
STRICT_PICK = Tool(PICK.name, PICK.description, PICK.parameters, strict=True)
GOOD = (
    {"count": 3},
    {"color": "red", "count": 3},
    {"count": -1, "note": "é [x"},
    {"color": "blue", "count": 0, "note": ""},
)
BAD = ({}, {"color": "red"}, {"color": "pink", "count": 3}, {"count": "x"}, {"count": 3, "other": 1}, {"count": 1.5})


@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_arguments_satisfy_the_schema_of_a_strict_tool(name: str):
    """Other schemas hold if a call is required or all tools are constrained; otherwise any arguments are allowed."""
    tool_format = get_format(name)
    strict, required, constrained = ToolUse((STRICT_PICK,)), ToolUse((PICK,), "required"), ToolUse((PICK,))
    for arguments in (*GOOD, *BAD):
        text, is_good = write_call(name, "pick", arguments), arguments in GOOD
        assert accepts(tool_format.answer(strict).grammar(), text) == is_good, text
        assert accepts(tool_format.answer(required).grammar(), text) == is_good, text
        assert accepts(tool_format.answer(constrained, constrains_all=True).grammar(), text) == is_good, text
        assert accepts(tool_format.answer(ToolUse((PICK,))).grammar(), text), text


@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_a_named_choice_allows_only_that_tool(name: str):
    """Another tool of the request is refused, and free text is."""
    grammar = get_format(name).answer(ToolUse((PICK, Tool("ping")), "required", name="ping")).grammar()
    assert accepts(grammar, write_call(name, "ping", {}))
    assert not accepts(grammar, write_call(name, "pick", {"count": 1}))
    assert not accepts(grammar, "Hello.") and not accepts(grammar, "")


@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_a_tool_without_parameters_takes_no_arguments(name: str):
    """A required call cannot invent any."""
    grammar = get_format(name).answer(ToolUse((Tool("ping"),), "required")).grammar()
    assert accepts(grammar, write_call(name, "ping", {})) and not accepts(grammar, write_call(name, "ping", {"a": 1}))


@pytest.mark.parametrize("name", sorted({each.name for each in FORMATS} - {"harmony"}))
def test_reasoning_precedes_an_answer_only_if_it_may(name: str):
    """Reasoning that the prompt opened must be closed; a continued message has none."""
    tool_format, use = get_format(name), ToolUse((Tool("ping"),), "required")
    close, call = tool_format.tags[0].close, write_call(name, "ping", {})
    block = f"{tool_format.tags[0].open}a < b [x] {call}{close}\n\n{call}"
    assert accepts(tool_format.answer(use).grammar(), block) and accepts(tool_format.answer(use).grammar(), call)
    opened = tool_format.answer(use, is_reasoning=True).grammar()
    assert accepts(opened, f"a{close}{call}") and not accepts(opened, call)
    special = sorted(tool_format.visible_tokens)
    ids = {text: FIRST_SPECIAL + index for index, text in enumerate(special)}
    opened = tool_format.answer(use, special_tokens=ids, is_reasoning=True).grammar()
    assert accepts(opened, f"a{close}{call}", special) and not accepts(opened, call, special)
    continued = tool_format.answer(use, may_reason=False).grammar()
    assert accepts(continued, call) and not accepts(continued, block)


@pytest.mark.parametrize("separator", [" ", "", "\n", "\n" + " " * 32])
def test_habitual_white_space_in_json_is_allowed(separator: str):
    """Templates print a space after separators; models also write compact and indented JSON."""
    text = f'<tool_call>\n{{"name": "run", "arguments": {{{separator}"a":{separator}[1,{separator}2]}}}}\n</tool_call>'
    assert accepts(get_format("hermes").answer(ToolUse(TOOLS)).grammar(), text)


def test_endless_white_space_in_json_is_impossible():
    """Small models may write nothing else when any amount is allowed."""
    grammar = get_format("hermes").answer(ToolUse(TOOLS)).grammar()
    for space in ("  ", "\n\n", "\n" + " " * 33, "\t"):
        assert not accepts(grammar, f'<tool_call>\n{{"name": "run", "arguments": {{{space}}}}}\n</tool_call>')


def test_an_unsupported_keyword_is_an_error_only_in_a_strict_tool():
    """Strict arguments are never left unchecked; other tools are offered nevertheless."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "x"}}}}
    compile_grammar(get_format("hermes").answer(ToolUse((Tool("f", "", schema),), "required")).grammar())
    with pytest.raises(InvalidFormat, match=r"tool f: not at properties\.a") as refused:
        get_format("hermes").answer(ToolUse((Tool("f", "", schema, strict=True),))).grammar()
    assert refused.value.param == "tools"


NESTED = {
    "type": "object",
    "properties": {
        "shape": {"$ref": "#/$defs/Shape"},
        "sizes": {"type": "array", "items": {"type": ["integer", "null"]}},
        "mode": {"anyOf": [{"const": 1}, {"type": "boolean"}]},
        "any": {},
        "number": {"type": "number"},
    },
    "$defs": {
        "Shape": {
            "type": "object",
            "properties": {
                "kind": {"enum": ["it's", "b"]},
                "inner": {"$ref": "#/$defs/Shape"},
                "map": {"type": "object"},
            },
            "required": ["kind"],
        }
    },
}


@pytest.mark.parametrize(
    ("arguments", "is_valid"),
    [
        ("", True),
        ('shape={"kind": "it\'s", "inner": {"kind": \'b\'}, "map": {"a": [1, None]}}', True),
        ("shape={'kind': \"it's\"}, any={'a': [True, -1.5e3]}", True),
        ('shape={"kind": "b"}', True),
        ("sizes=[1, None], mode=True, number=2.5", True),
        ("sizes=[]", True),
        ("mode=1", True),
        ("shape={'inner': {'kind': 'b'}}", False),
        ("shape={'kind': 'c'}", False),
        ("sizes=[1.5]", False),
        ("sizes=['a']", False),
        ("mode=2", False),
        ("mode=None", False),
        ("number='1'", False),
        ("any=x", False),
    ],
)
def test_values_in_python_satisfy_a_nested_schema(arguments: str, is_valid: bool):
    """References, unions, arrays and objects are followed."""
    grammar = get_format("pythonic").answer(ToolUse((Tool("f", "", NESTED, strict=True),), "required")).grammar()
    assert accepts(grammar, f"[f({arguments})]") == is_valid


@pytest.mark.parametrize(
    ("value", "is_valid"), [('{"kind": "b", "inner": {"kind": "it\'s"}}', True), ('{"kind": "c"}', False), ("b", False)]
)
def test_values_between_tags_may_refer_to_definitions(value: str, is_valid: bool):
    """Definitions of the whole schema hold in each argument."""
    for name in ("qwen3_coder", "glm"):
        grammar = get_format(name).answer(ToolUse((Tool("f", "", NESTED, strict=True),), "required")).grammar()
        assert accepts(grammar, write_call(name, "f", {"shape": value})) == is_valid


def test_the_request_cannot_change_how_its_schema_is_compiled():
    """Options of llguidance inside of a schema are replaced."""
    schema = {"type": "object", "x-guidance": {"whitespace_flexible": True}}
    grammar = get_format("hermes").answer(ToolUse((Tool("f", "", schema),), "required")).grammar()
    assert not accepts(grammar, '<tool_call>\n{"name": "f", "arguments": {     }}\n</tool_call>')


@pytest.mark.parametrize("tool_name", ['a"b', "a\\b", "a\nb", "%json", "é", "a</tool_call>"])
def test_names_are_quoted(tool_name: str):
    """A tool's name is never read as part of the grammar."""
    for each in FORMATS:
        compile_grammar(each.answer(ToolUse((Tool(tool_name, "", PICK.parameters),))).grammar())
    text = f'<tool_call>\n{{"name": {json.dumps(tool_name, ensure_ascii=False)}, "arguments": {{}}}}\n</tool_call>'
    assert accepts(get_format("hermes").answer(ToolUse((Tool(tool_name),))).grammar(), text)


VALUE_ENDS = [list(end.encode()) for end in ("\n</parameter>\n", "</arg_value>")]


def random_text(grammar: str | None, rng: random.Random) -> str:
    """Return a text that a grammar accepts, by a random walk that prefers to end strings, lists and values."""
    matcher = compile_grammar(grammar)
    ids: list[int] = []
    while not matcher.is_stopped() and not (matcher.is_accepting() and rng.random() < 0.3):
        end = rng.choice(VALUE_ENDS)
        if rng.random() < 0.3 and matcher.validate_tokens(end) == len(end):
            assert matcher.consume_tokens(end)
            ids += end
            continue
        mask = matcher.compute_bitmask()
        allowed = [token for token in range(EOS) if mask[token // 8] >> token % 8 & 1]
        ends = [token for token in allowed if chr(token) in "\"'}])<\n"]
        likely = [token for token in allowed if chr(token) in 'ab<>{}[]"\\é 1']
        ids.append(rng.choice(ends if ends and rng.random() < 0.5 else likely or allowed))
        assert matcher.consume_token(ids[-1])
        assert len(ids) < 5000
    return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_a_text_that_the_grammar_of_required_calls_accepts_is_parsed_as_calls(name: str, seed: int):
    """It has no content, and the arguments are JSON that satisfies the schema."""
    rng = random.Random(seed)
    for parallel in (False, True):
        use = ToolUse((STRICT_PICK, Tool("ping")), "required", parallel=parallel)
        text = random_text(get_format(name).answer(use, may_reason=False).grammar(), rng)
        content, reasoning, calls = parse(name, [*text], use)
        assert (content, reasoning) == ("", "") and calls and (parallel or len(calls) == 1), text
        for tool, arguments in calls:
            value = json.loads(arguments)
            assert value == {} if tool == "ping" else isinstance(value["count"], int), text
            assert value.keys() <= PICK.parameters["properties"].keys()
            assert value.get("color", "red") in ("red", "blue") and isinstance(value.get("note", ""), str)


def test_choice_none_has_no_grammar():
    """All text is allowed, as it is if no tool is offered."""
    assert get_format("hermes").answer(ToolUse(TOOLS, "none")).grammar() is None
    assert get_format("hermes").answer(ToolUse(())).grammar() is None


@pytest.mark.parametrize("key", ["parameters", "arguments"])
@pytest.mark.parametrize("begin", ['{"name":"f","KEY":', '{"type": "function", "name": "f", "KEY": '])
def test_habitual_calls_of_llama_are_constrained(begin: str, key: str):
    """Where text is possible, a text that begins like a call in another spelling is a call with valid arguments."""
    use = ToolUse((Tool("f", "", {"type": "object", "properties": {"a": {"type": "boolean"}}}, strict=True),))
    text = begin.replace("KEY", key)
    grammar = get_format("llama3_json").answer(use).grammar()
    assert accepts(grammar, text + '{"a": true}}') and not accepts(grammar, text + '{"a": tru}}')
    assert parse("llama3_json", [*text, '{"a": true}}'], use) == ("", "", (("f", '{"a": true}'),))
    forced = ToolUse(use.tools, "required")
    assert not accepts(get_format("llama3_json").answer(forced).grammar(), text + '{"a": true}}')


def test_calls_of_qwen3_coder_without_the_outer_tag_are_constrained():
    """Models leave it out at times; where it is a special token, they do not."""
    use = ToolUse((STRICT_PICK,))
    text = "Well. <function=pick>\n<parameter=count>\n3\n</parameter>\n</function>"
    grammar = get_format("qwen3_coder").answer(use).grammar()
    assert accepts(grammar, text) and accepts(grammar, text + "\n</tool_call>")
    assert not accepts(grammar, text.replace("3", "x"))
    for whole in (text, text + "\n</tool_call>"):
        assert parse("qwen3_coder", [*whole], use) == ("Well.", "", (("pick", '{"count": 3}'),))
    special = {text: index for index, text in enumerate(sorted(get_format("qwen3_coder").visible_tokens))}
    parser = get_format("qwen3_coder").answer(use, special_tokens=special).parser()
    assert parser is not None and parser.push(1, text) + parser.flush() == [ParsedText(text)]


def strict_call(name: str, schema: dict[str, Any], text: str) -> bool:
    """Return whether a call of a strict tool is accepted."""
    use = ToolUse((Tool("f", "", schema, strict=True),), "required")
    return accepts(get_format(name).answer(use, may_reason=False).grammar(), text)


TEXT_PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}}}
MIXED = {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "array"}]}}}
ALTERNATIVES = {"anyOf": [TEXT_PATTERN, {"type": "object", "properties": {"b": {"type": "integer"}}}]}
SHORT = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}}
UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}
DEPENDENT = {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}}


@pytest.mark.parametrize(
    ("name", "schema", "fault"),
    [
        *((name, TEXT_PATTERN, "pattern at properties.a") for name in ("qwen3_coder", "glm")),
        *((name, SHORT, "minLength at properties.a") for name in ("qwen3_coder", "glm")),
        *((name, MIXED, "type array at properties.a.anyOf.1") for name in ("qwen3_coder", "glm")),
        *((name, ALTERNATIVES, "anyOf at the root") for name in ("qwen3_coder", "glm", "pythonic")),
        *((each.name, UNIQUE, "uniqueItems at properties.a") for each in FORMATS),
    ],
)
def test_an_error_names_what_a_family_cannot_enforce(name: str, schema: dict[str, Any], fault: str):
    """Keyword, place, tool and family; the schema of a tool that is not strict is followed as far as possible."""
    with pytest.raises(InvalidFormat, match=rf"tool f: {fault} .*{name}") as refused:
        get_format(name).answer(ToolUse((Tool("f", "", schema, strict=True),))).grammar()
    assert refused.value.param == "tools"
    assert compile_grammar(get_format(name).answer(ToolUse((Tool("f", "", schema),), "required")).grammar())


def test_dependent_members_are_enforced_or_refused():
    """A strict schema is never followed in part without a word."""
    for each in FORMATS:
        try:
            grammar = each.answer(ToolUse((Tool("f", "", DEPENDENT, strict=True),), "required")).grammar()
        except InvalidFormat:
            continue
        assert not accepts(grammar, write_call(each.name, "f", {"a": 1}))


@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_references_at_the_root_and_to_other_members_are_followed(name: str):
    """As FastMCP and pydantic write them, and as people do."""
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    root = {"$ref": "#/$defs/F", "$defs": {"F": inner}}
    other = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}
    assert strict_call(name, root, write_call(name, "f", {"a": 3}))
    assert not strict_call(name, root, write_call(name, "f", {}))
    assert strict_call(name, other, write_call(name, "f", {"a": 3, "b": 4}))
    assert not strict_call(name, other, write_call(name, "f", {"a": 3, "b": "x"}))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 12}, ["3", "12"], ["2", "13", "3.0"]),
        ({"type": "string", "pattern": "^[a-c]+$"}, ['"abc"'], ['"abd"', "'abd'"]),
        ({"type": "string", "minLength": 2}, ['"ab"'], ['"a"', "''"]),
        ({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 2}, ["[1]", "[1, 1]"], ["[]", "[2]"]),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, ["[]", "[1]"], ["[1, 2]", '["a"]']),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", "{'a': 1}"], ["{'a': 'b'}"]),
    ],
)  # fmt: skip
def test_bounds_hold_in_the_syntax_of_python(schema: dict[str, Any], good: list[str], bad: list[str]):
    """Numbers and strings with keywords are written as in JSON, which is Python too."""
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    assert all(strict_call("pythonic", parameters, f"[f(a={text})]") for text in good)
    assert not any(strict_call("pythonic", parameters, f"[f(a={text})]") for text in bad)


def test_alternatives_of_a_tool_that_is_not_strict_have_all_members():
    """Members that all alternatives require are required."""
    both = {"anyOf": [{"type": "object", "properties": {"kind": {"const": kind}, kind: {"type": "integer"}},
                       "required": ["kind"]} for kind in "ab"]}  # fmt: skip
    for name in ("qwen3_coder", "glm", "pythonic"):
        grammar = get_format(name).answer(ToolUse((Tool("f", "", both),), "required")).grammar()
        assert accepts(grammar, write_call(name, "f", {"kind": "b", "b": 2}))
        assert not accepts(grammar, write_call(name, "f", {"b": 2}))


@pytest.mark.parametrize("keyword", ["additionalProperties", "items"])
def test_nested_schemas_do_not_multiply(keyword: str):
    """The grammar of values in Python's syntax is linear in the depth of the schema."""
    kind = "array" if keyword == "items" else "object"
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(20):
        schema = {"type": kind, keyword: schema}
    use = ToolUse((Tool("f", "", {"type": "object", "properties": {"a": schema}}, strict=True),), "required")
    grammar = get_format("pythonic").answer(use).grammar()
    assert grammar is not None and len(grammar) < 20_000


@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_members_without_a_value_are_left_out(name: str):
    """They cannot be present; a tool in which one is required cannot be called."""
    for impossible in (False, {"not": {}}):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": impossible}}
        assert strict_call(name, schema | {"additionalProperties": True}, write_call(name, "f", {"a": 1}))
        assert not strict_call(name, schema, write_call(name, "f", {"b": 1}))
        with pytest.raises(InvalidFormat, match="no value satisfies"):
            strict_call(name, schema | {"required": ["b"]}, "")


@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_arguments_are_an_object(name: str):
    """Also where the schema admits null beside it."""
    schema = {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}}
    assert strict_call(name, schema, write_call(name, "f", {"a": 1}))
    if "{}" in (empty := write_call(name, "f", {})):
        assert not strict_call(name, schema, empty.replace("{}", "null"))


@pytest.mark.parametrize("name", ["qwen3_coder", "glm"])
def test_listed_values_with_a_pattern_are_refused_between_tags(name: str):
    """Both hold, and only one of them can be enforced."""
    schema = {"type": "object", "properties": {"a": {"enum": ["a", "b"], "pattern": "^a$"}}}
    with pytest.raises(InvalidFormat, match=r"pattern at properties\.a"):
        strict_call(name, schema, "")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (r"\033[31m", "\x1b[31m"),
        (r"\012a\1", "\na\x01"),
        (r"\ud83d\ude00", "😀"),
        (r"a\ud83d", "a\ufffd"),
        (r"\udc00b", "\ufffdb"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\x41\u00e9\U0001F600\d", "Aé😀\\d"),
    ],
)
def test_escapes_of_python_are_characters(written: str, value: str):
    """Octal ones too; half of a character is replaced, since no text can have it."""
    _, _, [(_, arguments)] = parse("pythonic", [*f'[pick(note="{written}")]'], ToolUse((PICK,)))
    assert json.loads(arguments) == {"note": value} and arguments.encode()


def test_text_follows_a_call_without_the_outer_tag():
    """The end tag may follow, and other text or a further call."""
    use = ToolUse((PICK,))
    call = "<function=pick>\n<parameter=count>\n3\n</parameter>\n</function>"
    grammar = get_format("qwen3_coder").answer(use).grammar()
    cases = ((f"{call}\nDone.", "\nDone.", 1), (f"{call}\n{call}", "", 2), (f"{call}\n</tool_call>", "", 1))
    for text, content, calls in cases:
        assert accepts(grammar, text)
        found = parse("qwen3_coder", [*text], use)
        assert found[0] == content and found[2] == (("pick", '{"count": 3}'),) * calls
