"""Chat templates of checkpoints: supported syntax, and the limits of the sandbox."""

from __future__ import annotations

import pytest

from app.text.chat_template import ChatTemplate, InvalidTemplate, MessagesRefused, ReservedVariable
from app.text.text_model import TextModel
from tests.app.text_models import byte_level


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "axb"),
        ("{% generation %}{% set y = 1 %}{% endgeneration %}{{ y is defined }}", "False"),
        ("{{ {'b': 1, 'a': [2]} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":[2],"b":1}'),
    ],
)
def test_template_extensions_of_transformers_are_supported(template: str, text: str):
    """`generation` blocks, which mark training data, and arguments of `tojson` work as in transformers."""
    assert ChatTemplate(template, {}).render([{"role": "user", "content": "x"}]) == text


@pytest.mark.parametrize("template", ["{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__base__ }}"])
def test_a_template_cannot_reach_python_internals(template: str):
    """Templates come with checkpoints and run in a sandbox, in which other objects are undefined."""
    with pytest.raises(MessagesRefused, match="unsafe"):
        ChatTemplate(template, {}).render([])


def test_a_template_gets_the_caller_s_variables():
    """A variable that the template does not use changes nothing; enable_thinking is an example of one that does."""
    template = ChatTemplate("{{ 'no' if enable_thinking is false else 'yes' }}{{ bos_token }}", {"bos_token": "<s>"})
    found = [template.render([], more) for more in (None, {"enable_thinking": False}, {"other": 1})]
    assert found == ["yes<s>", "no<s>", "yes<s>"]


@pytest.mark.parametrize(
    "name", ["messages", "add_generation_prompt", "tools", "bos_token", "raise_exception", "range"]
)
def test_a_caller_cannot_override_reserved_variables(name: str):
    """The error contains the name of the reserved variable."""
    with pytest.raises(ReservedVariable, match=name):
        ChatTemplate("x", {"bos_token": "<s>"}).render([], {name: "x"})


def test_a_template_cannot_change_the_conversation():
    """Lists and dicts are immutable inside a template."""
    template = "{% set _ = messages.append({'role': 'x'}) %}"
    with pytest.raises(MessagesRefused, match="append"):
        ChatTemplate(template, {}).render([])


def test_a_template_may_refuse_with_its_own_message():
    """Checkpoints use `raise_exception` to refuse conversations that they do not support."""
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(MessagesRefused, match="roles must alternate"):
        ChatTemplate(template, {}).render([])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages[0].content.index('zzz') }}", "ValueError: substring"),
        ("{{ 1 // (messages | length - 1) }}", "ZeroDivisionError"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
        ('{{ "\\ud83d" }}', "UnicodeEncodeError"),
    ],
)
def test_any_exception_in_a_template_refuses_the_conversation(template: str, expected: str):
    """The fault is the checkpoint's or the conversation's, not this server's."""
    with pytest.raises(MessagesRefused, match=expected):
        ChatTemplate(template, {}).render([{"role": "user", "content": "hi"}])


def test_a_template_with_a_syntax_error_is_refused_with_its_line():
    """The error occurs at startup, not at the first chat."""
    with pytest.raises(InvalidTemplate, match="line 2"):
        ChatTemplate("fine\n{% if %}", {})


@pytest.mark.parametrize("template", ["{% for a in b %}" * 25 + "{% endfor %}" * 25, "{% if a %}" * 2000])
def test_a_template_that_python_cannot_compile_is_refused_at_the_start(template: str):
    """Python supports fewer nested blocks than Jinja."""
    with pytest.raises(InvalidTemplate, match="chat template: "):
        ChatTemplate(template, {})


PARTS = "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
STRING_OR_PARTS = "{% if m.content is string %}({{ m.content }}){% else %}" + PARTS + "{% endif %}"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{{ m.content }}", "[system]Be brief.[user]Hi![assistant]Yes?[user]Go."),
        (PARTS, "[system]Be brief.[user]Hi![assistant]Yes?[user]Go."),
        (STRING_OR_PARTS, "[system](Be brief.)[user](Hi!)[assistant](Yes?)[user](Go.)"),
        ("{{ m.content[0].text | trim | upper }}", "[system]BE BRIEF.[user]HI![assistant]YES?[user]GO."),
        ("{{ m.content[0]['text'] | tojson }}", '[system]"Be brief."[user]"Hi!"[assistant]"Yes?"[user]"Go."'),
        (
            "{% if m.role == 'user' %}{{ m.content[0].text }}{% else %}{{ m.content }}{% endif %}",
            "[system]Be brief.[user]Hi![assistant]Yes?[user]Go.",
        ),
        (
            "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% else %}" + PARTS + "{% endif %}",
            "[user]Hi![assistant]Yes?[user]Go.",
        ),
    ],
)
def test_content_has_the_form_that_the_template_reads(content: str, text: str):
    """Each role is given a string or a list of parts, and a template that reads both is given strings."""
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]" + content + "{% endfor %}", {})
    roles = ("system", "user", "assistant", "user")
    turns = [{"role": r, "content": c} for r, c in zip(roles, ("Be brief.", "Hi!", "Yes?", "Go."), strict=True)]
    assert template.render(turns if "system" in text else turns[1:]) == text


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
CALL_TURNS = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "A", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "T"},
]
CALLS = "{% for c in m.tool_calls or [] %}<{{ ARGUMENTS }}>{% endfor %}"
FORMS = {
    "text": "{{ m.content | trim }}",
    "parts": PARTS,
    "either": STRING_OR_PARTS,
    "first": "{{ m.content[0].text }}",
}
ARGUMENT_FORMS = {
    "object": "{{ c.function.arguments | tojson }}",
    "items": '{% for k, v in c.function.arguments.items() %}{"{{ k }}": "{{ v }}"}{% endfor %}',
    "text": "{{ '' + c.function.arguments }}",
    "printed": "{{ c.function.arguments }}",
}


@pytest.mark.parametrize("arguments", ARGUMENT_FORMS)
@pytest.mark.parametrize("tool", FORMS)
@pytest.mark.parametrize("call", FORMS)
@pytest.mark.parametrize("others", ["text", "parts"])
def test_every_role_has_the_form_that_the_template_reads(others: str, call: str, tool: str, arguments: str):
    """Results, messages with calls and all others are read as a text or as parts, and arguments in either form too."""
    content = f"{{% if m.role == 'tool' %}}{FORMS[tool]}{{% elif m.tool_calls %}}{FORMS[call]}{{% else %}}"
    content += FORMS[others] + "{% endif %}" + CALLS.replace("{{ ARGUMENTS }}", ARGUMENT_FORMS[arguments])
    source = "{{ tools | tojson if tools }}{% for m in messages %}[{{ m.role }}]" + content + "{% endfor %}"
    template = ChatTemplate(source, {})
    text = template.render(CALL_TURNS)
    expected = {"either": "({})"}
    assistant, result = expected.get(call, "{}").format("A"), expected.get(tool, "{}").format("T")
    assert text == f'[system]S[user]U[assistant]{assistant}<{{"a": "b"}}>[tool]{result}'


def test_a_form_that_makes_the_template_fail_is_not_used():
    """A template may refuse a text where it reads parts, and the text of a message with calls not at all."""
    template = ChatTemplate(
        "{{ tools | tojson }}{% for m in messages %}{% if m.role == 'tool' %}"
        "{% if m.content is string %}{{ raise_exception('parts, please') }}{% endif %}"
        + PARTS
        + "{% elif m.tool_calls %}"
        "{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
        {},
    )
    assert template.render(CALL_TURNS) == 'nullSU{"a": "b"}T'


TURNS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}[new]{% endif %}"
)
OPEN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, "}]


def test_the_last_message_is_left_open_to_be_continued():
    """The text ends where the message ends, with its trailing white space and without a generation prompt."""
    assert ChatTemplate(TURNS, {}).render_open(OPEN) == "[user]Hi</s>[assistant]Hello, "


@pytest.mark.parametrize("trim", ["m.content | trim", "m.content.strip()", "m.content.rstrip()"])
def test_a_template_that_trims_also_trims_an_open_message(trim: str):
    """A space that the template would have removed does not end the prompt."""
    template = ChatTemplate(TURNS.replace("m.content", trim), {})
    assert template.render_open(OPEN) == "[user]Hi</s>[assistant]Hello,"


@pytest.mark.parametrize("content", ["m.content | upper", "m.content[:3]", "'...'"])
def test_a_message_that_the_template_changes_cannot_be_continued(content: str):
    """The refusal gives the reason."""
    with pytest.raises(MessagesRefused, match="cannot be continued"):
        ChatTemplate(TURNS.replace("m.content", content), {}).render_open(OPEN)


@pytest.mark.parametrize("trim", ["m.content", "m.content | trim"])
@pytest.mark.parametrize("content", ["Hello", "Hello, ", " Hello\n\n", ""])
def test_an_open_message_ends_where_transformers_ends_it(content: str, trim: str):
    """This holds for templates that trim and templates that do not."""
    from transformers.utils.chat_template_utils import render_jinja_template

    source = TURNS.replace("m.content", trim)
    messages = [OPEN[0], {"role": "assistant", "content": content}]
    expected, _ = render_jinja_template([messages], chat_template=source, continue_final_message=True)
    assert ChatTemplate(source, {}).render_open(messages) == expected[0]


def test_a_template_is_rendered_without_a_generation_prompt_on_request():
    """The conversation ends with the end of its last message."""
    template = ChatTemplate(TURNS, {})
    assert template.render(OPEN[:1], add_generation_prompt=False) == "[user]Hi</s>"


def test_system_messages_are_joined_for_a_template_that_refuses_several():
    """Other conversations that it refuses stay refused."""
    template = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first or m.content == 'no' %}"
        "{{ raise_exception('no') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    text = TextModel(byte_level().tokenizer, template, {}, frozenset())
    turns = [{"role": role, "content": content} for role, content in (("system", "A"), ("user", "b"), ("system", "C"))]
    assert text.render_chat(turns) == "[system]A\n\nC[user]b"
    with pytest.raises(MessagesRefused, match="no"):
        text.render_chat([*turns, {"role": "user", "content": "no"}])
