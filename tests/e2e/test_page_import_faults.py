"""Broken and hostile files of conversations: each is refused with one sentence, or read into valid conversations."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.e2e.conftest import Run
from tests.e2e.conversation_files import (
    CHATGPT,
    LLAMA,
    LLAMA_DUMP,
    LLAMA_OLDEST,
    OPEN_WEBUI,
    READ,
    mapping,
    node,
    one,
    own,
    read,
    text_of,
    tree,
)
from tests.profiles import examples

pytestmark = pytest.mark.browser

TRY = "const attempt = (...parts) => read(...parts).then(() => '', ({ message }) => message);"


def problem(run: Run, value: Any) -> str:
    """Return the message with which a file is refused."""
    return str(run("import.js", f"{READ} {TRY} return attempt(arg);", text_of(value)))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "unknown form"),
        ("Some text", "unknown form"),
        ("{", "not valid JSON"),
        ('{"type": "session"}\n{', "not valid JSON"),
        ("[]", "no messages"),
        ({}, "unknown form"),
        ([1, None, "x"], "unknown form"),
        ({"messages": []}, "no messages"),
        ([CHATGPT[0], {"a": 1}], "unknown form"),
        (mapping(a="b", b="a"), "circle"),
        (mapping(a=None, b="b"), "circle"),
        ({**own(one()), "version": 2}, "version"),
        (own(), "no messages"),
        (own(one("a", "b"), one("b", "a")), "circle"),
        (own(one("a"), one("a")), "same id"),
        (own(one(content=5)), "conversations[0].messages[0].content is missing or invalid"),
        (own(one(role="system")), "is missing or invalid"),
        (own({"id": "a"}), "is missing or invalid"),
        (own(one(calls=[{"id": "x"}])), "is missing or invalid"),
        (own(one(calls=[5])), "messages[0].calls[0] is missing or invalid"),
        (own(one(usage={"prompt_tokens": "many"})), "usage.prompt_tokens is missing or invalid"),
        (own(one(), sampling={"stop": [1]}), "sampling.stop[0] is missing or invalid"),
        (own(one(), tools=[{"type": "function", "function": {}}]), "is missing or invalid"),
        (own(one(), chosen=[]), "chosen is missing or invalid"),
        (own(5), "messages[0] is missing or invalid"),
        ({**own(), "conversations": [None]}, "conversations[0] is missing or invalid"),
    ],
)
def test_broken_files_are_refused(run: Run, value: Any, words: str) -> None:
    """One sentence names the fault, and another one the forms that can be imported."""
    message = problem(run, value)
    assert words in message
    assert message.endswith("exports of llama.cpp and Open WebUI.")
    assert "Nothing was imported." in message


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("new Uint8Array([0x50, 0x4b, 3, 4])", "an archive must be unpacked"),
        ("new Uint8Array([0xff, 0xfe, 0, 1])", "unknown form"),
        ('"[".repeat(3e6)', ""),
        ('"[".repeat(1e6) + "]".repeat(1e6)', ""),
        ('`{"a":`.repeat(1e6) + "1" + "}".repeat(1e6)', ""),
        ('"{" + "\\n".repeat(1e6)', "not valid JSON"),
        ('"### Call of `x`\\n\\n```\\n".repeat(1e5)', "unknown form"),
        ('JSON.stringify(own("x".repeat(2e6 + 1)))', "2,000,001 characters"),
        ("JSON.stringify(own(...Array(1e4 + 1).fill('x')))", "10,001 messages"),
        ("JSON.stringify(many(10_001))", "10,001 conversations"),
        ("JSON.stringify(chain(1e6))", "1,000,000 messages"),
        ("JSON.stringify(deep(own('x'), 3000))", "characters in the tools"),
    ],
)
def test_hostile_files_are_refused(run: Run, file: str, words: str) -> None:
    """Archives, binary data, deep nesting and too many or too long parts are refused, and reading ends."""
    message = run(
        "import.js",
        f"""
        {READ} {TRY}
        const own = (...texts) => ({{ format: "carousel.conversations", version: 1, conversations: [{{ title: "t", created: 1, updated: 1,
            system: "", model: "", sampling: {{}}, messages: texts.map((content, i) =>
                ({{ id: `${{i}}`, role: "user", content, created: 1 }})) }}] }});
        const many = (count) => {{
            const file = own("x");
            return {{ ...file, conversations: Array(count).fill(file.conversations[0]) }};
        }};
        const node = (i) => ({{ parent: `${{i - 1}}`, message: {{ author: {{ role: "user" }}, content: {{ parts: ["x"] }} }} }});
        const chain = (count) => [{{ mapping: Object.fromEntries(Array.from({{ length: count }}, (_, i) => [`n${{i}}`, node(i)])) }}];
        const deep = (file, levels) => {{
            let nested = 1;
            for (let i = 0; i < levels; i++) nested = {{ nested }};
            file.conversations[0].tools = [{{ type: "function", function: {{ name: "x", nested }} }}];
            return file;
        }};
        return attempt({file});""",
    )
    assert words in message
    assert "Nothing was imported." in message


def test_names_of_prototypes_are_only_names(run: Run) -> None:
    """`__proto__` and `constructor` as keys and ids neither pollute prototypes nor stop the import."""
    chatgpt = mapping(constructor=None, toString="constructor")
    chatgpt[0]["mapping"]["__proto__"] = node("toString")
    file = own(one("__proto__"), one("constructor", "__proto__"), sampling={"seed": 1})
    text = json.dumps(file).replace(
        '"sampling": {', '"chosen": {"__proto__": "constructor"}, "sampling": {"__proto__": {"a": 1}, '
    )
    first, second, clean = run(
        "import.js",
        f"""
        {READ}
        const [first, second] = [await read(arg[0]), await read(arg[1])].map(({{ conversations }}) => conversations[0]);
        const objects = [first, ...first.messages, second, second.sampling, second.chosen, ...second.messages];
        return [first, second, [{{}}.a, objects.every((each) => Object.getPrototypeOf(each) === Object.prototype),
            Object.keys(second.sampling), Object.keys(second.chosen).length]];""",
        [json.dumps(chatgpt), text],
    )
    assert tree(first) == [("user", "x", None), ("user", "x", 0), ("user", "x", 1)]
    assert tree(second) == [("user", "x", None), ("user", "x", 0)]
    assert clean == [None, True, ["seed"], 1]


def test_a_message_without_its_parent_is_kept(run: Run) -> None:
    """A parent that the file lacks counts as the beginning, so that nothing is lost."""
    (conversation,) = read(run, own(one("a", "gone"), one("b", "a")))["conversations"]
    assert tree(conversation) == [("user", "x", None), ("user", "x", 0)]
    (conversation,) = read(run, mapping(a="gone", b="a"))["conversations"]
    assert tree(conversation) == [("user", "x", None), ("user", "x", 0)]


def mutated(rng: random.Random, value: Any) -> Any:
    """Return a value of which one part, at any depth, is replaced."""
    junk = [None, 5, -1, 1e300, True, "x", "", [], [[]], {}, {"toString": 1}, [None], {"__proto__": 1, "length": 3}]
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(junk)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[key] = mutated(rng, value[key])  # type: ignore[call-overload]
    return changed


FAULTS = [
    "unknown form.",
    "unpacked first.",
    "no messages.",
    "is missing or invalid.",
    "in a circle.",
    "with the same id.",
    "version of the format must be 1.",
]


def test_any_damage_gives_whole_conversations_or_one_error(run: Run) -> None:
    """A file with parts of any wrong type is read into valid messages, or is refused with the usual sentence."""
    rng = random.Random(11)
    call = {"id": "c", "name": "n", "arguments": "{}", "result": "r"}
    answer = one("b", "a", role="assistant", state="done", calls=[call], model="m", error={"message": "e"})
    full = own(one(), answer, chosen={"": "a"}, first="a", tools=[{"type": "function", "function": {"name": "f"}}])
    files = [CHATGPT, LLAMA, LLAMA_DUMP, LLAMA_OLDEST, OPEN_WEBUI, full]
    texts = []
    for _ in range(examples(6000)):
        value = rng.choice(files)
        for _ in range(rng.randrange(1, 4)):
            value = mutated(rng, value)
        texts.append(json.dumps(value))
    wrong = run(
        "import.js",
        f"""
        {READ}
        const isText = (...values) => values.every((value) => typeof value === "string");
        const isTime = (ms) => Math.abs(ms) < 1e14;
        const isWhole = ({{ title, system, model, created, updated, sampling, messages, chosen = {{}} }}) => {{
            const ids = new Set(messages.map(({{ id }}) => id));
            return isText(title, system, model) && isTime(created) && isTime(updated) && Object(sampling) === sampling &&
                Object.entries(chosen).every(([at, id]) => (at === "" || ids.has(at)) && ids.has(id)) &&
                messages.every(({{ id, parent, role, content, created, calls = [], model = "", thinking = "" }}) =>
                    isText(id, content, model, thinking) && (parent === null || ids.has(parent)) && isTime(created) &&
                    ["user", "assistant"].includes(role) && calls.every((call) => isText(call.id, call.name, call.arguments)));
        }};
        const wrong = [];
        let whole = 0;
        for (const text of arg.texts) {{
            try {{
                const {{ conversations, leftOut }} = await read(text);
                whole++;
                if (!conversations.every(isWhole) || !Number.isInteger(leftOut)) wrong.push(text);
            }} catch (error) {{
                const fault = error.message.split(" Nothing was imported.")[0];
                if (!arg.faults.some((known) => fault.endsWith(known))) wrong.push(`${{error.stack}} ${{text}}`);
            }}
        }}
        return [wrong, whole];""",
        {"texts": texts, "faults": FAULTS},
    )
    assert wrong[0] == []
    assert wrong[1] > len(texts) / 4
