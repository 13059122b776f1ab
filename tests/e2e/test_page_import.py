"""Export and import of conversations: the page's own forms, and other programs' files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import Server
from tests.e2e.conftest import Run
from tests.e2e.conversation_files import (
    CHATGPT,
    LLAMA,
    LLAMA_DUMP,
    LLAMA_LINES,
    LLAMA_OLDEST,
    LLAMA_PATH_ONLY,
    MARKDOWN,
    OPEN_WEBUI,
    READ,
    mapping,
    read,
    tree,
)
from tests.e2e.page import Chat, answer_with, delta
from tests.profiles import examples

pytestmark = pytest.mark.browser


def path(conversation: dict[str, Any]) -> list[str]:
    """Return the texts of the branch that was read last."""
    texts = {one["id"]: one["content"] for one in conversation["messages"]}
    chosen, shown, at = conversation["chosen"], [], ""
    while at in chosen:
        at = chosen[at]
        shown.append(texts[at])
    return shown


def calls(conversation: dict[str, Any]) -> list[tuple[str, Any, str | None]]:
    """Return the name, arguments and result of each call."""
    all_calls = [call for message in conversation["messages"] for call in message.get("calls") or []]
    return [(call["name"], json.loads(call["arguments"]), call.get("result")) for call in all_calls]


def random_text(rng: random.Random) -> str:
    pieces = [
        "a",
        "é 狐 🦊",
        "\n",
        "\n\n",
        "## You",
        "\\## You",
        "### Result",
        "### Call of `x`",
        "```",
        "`",
        '"',
        "\\",
        "> ",
        "# x",
        "\u2028",
        "\0",
    ]
    return "".join(rng.choices(pieces, k=rng.randrange(8)))


def random_call(rng: random.Random) -> dict[str, Any]:
    result = {"result": random_text(rng)} if rng.random() < 0.7 else {"startedAt": 5, "problem": "lost"}
    return {"id": f"call {rng.random()}", "name": "find", "arguments": json.dumps({"q": random_text(rng)}), **result}


def random_message(rng: random.Random, i: int) -> dict[str, Any]:
    parent = rng.choice([None, *[f"m{at}" for at in range(i)]])
    message: dict[str, Any] = {
        "id": f"m{i}",
        "parent": parent,
        "content": random_text(rng),
        "created": i + rng.random(),
    }
    if rng.random() < 0.5:
        return {**message, "role": "user"}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "time_ms": {"decode": 1.5}}
    optional = {
        "model": "demo",
        "finish": "stop",
        "thinking": random_text(rng),
        "thoughtMs": 12.5,
        "calls": [random_call(rng) for _ in range(rng.randrange(1, 3))],
        "usage": usage,
        "error": {"message": "lost", "code": "interrupted", "status": 500},
        "resumed": True,
        "sentAt": 5,
    }
    kept = {name: value for name, value in optional.items() if rng.random() < 0.4}
    return {**message, "role": "assistant", "state": rng.choice(["done", "stopped", "error"]), **kept}


def random_conversation(rng: random.Random) -> dict[str, Any]:
    messages = [random_message(rng, i) for i in range(rng.randrange(1, 12))]
    ids = [one["id"] for one in messages]
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    optional = {
        "tools": [tool],
        "serverTools": [{"server": "weather", "name": "find", "tool": tool}],
        "requiresCall": True,
        "first": rng.choice(ids),
        "chosen": {one["parent"] or "": one["id"] for one in messages},
    }
    kept = {name: value for name, value in optional.items() if rng.random() < 0.5}
    sampling = {"temperature": 0.5, "stop": ["\n", "x"]} if rng.random() < 0.5 else {}
    settings = {"system": random_text(rng), "model": "demo", "sampling": sampling}
    fields = {"id": "c", "title": f"t {rng.random()}", "created": 1.5, "updated": 2, **settings}
    return {**fields, **kept, "messages": messages}


def test_exported_trees_are_imported_as_they_were(run: Run) -> None:
    """Export and import give the same branches, fields and choices; only ids are new."""
    rng = random.Random(7)
    given = [random_conversation(rng) for _ in range(examples(300))]
    before, after, ids = run(
        "import.js",
        f"""
        {READ}
        const {{ asJson }} = await import(`${{base}}/static/js/export.js`);
        const plain = ({{ id, chosen = {{}}, ...rest }}) => {{
            const conversation = {{ ...rest, chosen }};
            const at = new Map(conversation.messages.map((message, i) => [message.id, `message ${{i}}`]));
            return JSON.parse(JSON.stringify(conversation), (_, value) => at.get(value) ?? (value && value.chosen
                ? {{ ...value, chosen: Object.fromEntries(Object.entries(value.chosen).map(
                    ([key, id]) => [at.get(key) ?? key, id])) }} : value));
        }};
        const {{ conversations }} = await read(...(await asJson(arg)));
        return [arg.map(plain), conversations.map(plain), conversations.flatMap(({{ id, messages }}) =>
            [id, ...messages.map(({{ id }}) => id)])];""",
        given,
    )
    assert after == before
    assert len(set(ids)) == len(ids)
    assert not any(one.startswith("m") or one == "c" for one in ids)


def test_half_a_surrogate_pair_and_a_running_answer_survive(run: Run) -> None:
    """A lone surrogate is exported exactly, and an answer that was being written is a stopped one elsewhere."""
    content, state, fields = run(
        "import.js",
        f"""
        {READ}
        const {{ asJson }} = await import(`${{base}}/static/js/export.js`);
        const message = {{ id: "m", parent: null, role: "assistant", content: "a\\ud83d", created: 1, state: "streaming",
            stream: "s", last: "s.0.1", conversation: "c", unsent: 1, parent: null }};
        const {{ conversations }} = await read(...(await asJson([{{ id: "c", title: "t", created: 1, updated: 1,
            system: "", model: "", sampling: {{}}, revision: 3, changes: 1, messages: [message] }}])));
        const [{{ content, state, ...rest }}] = conversations[0].messages;
        return [content === "a\\ud83d", state, Object.keys(rest).concat(Object.keys(conversations[0])).sort()];""",
    )
    assert content
    assert state == "stopped"
    assert not {"stream", "last", "conversation", "unsent", "revision", "changes"} & set(fields)


def test_exported_markdown_is_imported(run: Run) -> None:
    """Texts, calls and results come back, also those that look like the headings of the export."""
    rng = random.Random(3)
    given = [random_conversation(rng) for _ in range(examples(300))]
    wrong = run(
        "import.js",
        f"""
        {READ}
        const {{ asMarkdown }} = await import(`${{base}}/static/js/export.js`);
        const plain = ({{ system, messages }}) => [system.trim(), messages.map(({{ role, content, calls = [] }}) => [
            role, content.trim(), calls.map(({{ name, arguments: text, result }}) => [name, JSON.parse(text), result])])];
        const wrong = [];
        for (const each of arg) {{
            each.messages = each.messages.filter(({{ content, calls }}) => content.trim() || calls);
            if (!each.messages.length) continue;
            for (const message of each.messages) if (message.role === "user") delete message.calls;
            const {{ conversations: [got] }} = await read(asMarkdown(each, each.messages));
            const path = got.messages.every(({{ parent }}, i) => parent === (got.messages[i - 1]?.id ?? null));
            if (!path || JSON.stringify(plain(got)) !== JSON.stringify(plain(each))) wrong.push([plain(got), plain(each)]);
        }}
        return wrong;""",
        given,
    )
    assert wrong == []


def test_chatgpt_conversations(run: Run) -> None:
    """Branches, instructions, reasoning, calls of tools and their results are kept; images are named and counted."""
    value = read(run, CHATGPT)
    assert value["leftOut"] == 3
    (foxes,) = value["conversations"]
    question = "How old is it?\n\n[image: den.png]\n\n[file: list.pdf]\n\n[image: file_9]"
    assert tree(foxes) == [
        ("user", question, None),
        ("assistant", "", 0),
        ("assistant", "42 years.", 1),
        ("assistant", "I cannot tell.", 0),
    ]
    assert path(foxes) == [question, "", "42 years."]
    assert calls(foxes) == [("python", {"input": "print(6 * 7)"}, "42")]
    assert foxes["messages"][1]["thinking"] == "Reading\n\nIt is a den."
    assert [one.get("model") for one in foxes["messages"]] == [None, "gpt-5", "gpt-5", None]
    assert (foxes["title"], foxes["system"]) == ("Foxes", "I like foxes.\n\nBe brief.")
    assert (foxes["created"], foxes["updated"]) == (1712345678500, 1712349999250)
    assert [one["created"] for one in foxes["messages"]] == [1712345680000, 1712345685000, 1712345685001, 1712345700000]


@pytest.mark.parametrize("value", [LLAMA, [LLAMA], LLAMA_PATH_ONLY, LLAMA_LINES, LLAMA_DUMP])
def test_llama_cpp_conversations(run: Run, value: Any) -> None:
    """All forms that the server's pages have exported give the same tree, with and without the hidden root."""
    imported = read(run, value)
    assert imported["leftOut"] == 1
    (owls,) = imported["conversations"]
    question = "Which owl?\n\nnotes.txt\n\n```\nIt is grey.\n```\n\n[image: owl.jpg]"
    assert tree(owls) == [
        ("user", question, None),
        ("assistant", "", 0),
        ("assistant", "A tawny owl.", 1),
        ("assistant", "A barn owl.", 0),
    ]
    assert path(owls) == [question, "A barn owl."]
    assert calls(owls) == [("find", {"q": "owl"}, "A tawny owl.")]
    assert (owls["messages"][1]["thinking"], owls["messages"][1]["model"]) == ("Let me look.", "q3")
    assert (owls["title"], owls["system"], owls["updated"]) == ("Owls", "Be kind.", 1752000009000)


def test_the_oldest_llama_cpp_conversations(run: Run) -> None:
    """A list without parents is one branch, and reasoning inside of the text is taken out of it."""
    (weather,) = read(run, LLAMA_OLDEST)["conversations"]
    assert tree(weather) == [
        ("user", "What is the weather?", None),
        ("assistant", "Let me check.", 0),
        ("assistant", "20 degrees.", 1),
    ]
    assert calls(weather) == [("find", {"q": "owl"}, '{"temperature": 20}')]
    assert weather["messages"][1]["thinking"] == "They want the weather."
    assert (weather["title"], weather["messages"][0]["created"]) == ("What is the weather?", 1734086764521)


@pytest.mark.parametrize("value", [OPEN_WEBUI, [OPEN_WEBUI[0]["chat"]], OPEN_WEBUI[0]])
def test_open_webui_conversations(run: Run, value: Any) -> None:
    """Reasoning and calls, which are elements in the text of an answer, become reasoning and calls."""
    imported = read(run, value)
    assert imported["leftOut"] == 1
    (frogs,) = imported["conversations"]
    noon = "It is noon. <details><summary>More</summary>No.</details>"
    assert sorted(tree(frogs)) == sorted(
        [
            ("user", "What time is it?\n\n[image]", None),
            ("assistant", "Noon.", 0),
            ("assistant", "", 0),
            ("assistant", noon, tree(frogs).index(("assistant", "", 0))),
        ],
        key=str,
    )
    assert path(frogs) == ["What time is it?\n\n[image]", "", noon]
    assert calls(frogs) == [("clock", {"zone": "UTC"}, "12:00")]
    assert [one["thinking"] for one in frogs["messages"] if one.get("thinking")] == ["Is it <late>?\nYes."]
    assert (frogs["title"], frogs["system"]) == ("Frogs", "Answer in English.")


def test_markdown_conversations(run: Run) -> None:
    """Headings divide Markdown into messages, except within the blocks of calls and after a backslash."""
    (snails,) = read(run, MARKDOWN.replace("\n", "\r\n"))["conversations"]
    text = "Let me see.\n\n## You\n\n```\n## no heading of a message\n```"
    assert tree(snails) == [("user", "How fast?", None), ("assistant", text, 0), ("assistant", "Slow.", 1)]
    assert calls(snails) == [("measure", {"what": "snail"}, "```\n## You\n```")]
    assert (snails["title"], snails["system"]) == ("Snails", "Be slow.\nVery slow.")


def import_file(page: Page, name: str, text: str) -> None:
    """Choose a file in the help dialog, and wait until it is read."""
    page.locator("#help-button").click()
    page.locator("#import-file").set_input_files({"name": name, "mimeType": "", "buffer": text.encode()})
    expect(page.locator("#help")).to_be_hidden()


def toast(chat: Chat, text: str) -> Locator:
    return chat.page.locator(".toast").filter(has_text=text)


def open_row(chat: Chat, title: str) -> None:
    chat.page.get_by_role("link", name=title).click()


def test_a_file_is_imported_and_the_import_undone(chat: Chat) -> None:
    """A worker reads the file; its conversations can be opened, are saved, and one undo removes them all."""
    with chat.page.expect_worker():
        import_file(chat.page, "conversations.json", json.dumps([*CHATGPT, LLAMA_OLDEST]))
    expect(toast(chat, "2 conversations imported, 3 images or attachments left out")).to_be_visible()
    expect(chat.rows).to_have_count(2)
    open_row(chat, "What is the weather?")
    expect(chat.answers.last).to_contain_text("20 degrees.")
    chat.reload()
    expect(chat.rows).to_have_count(2)
    import_file(chat.page, "x.md", MARKDOWN)
    expect(chat.rows).to_have_count(3)
    toast(chat, "1 conversation imported").get_by_role("button", name="Undo").click()
    expect(chat.rows).to_have_count(2)
    chat.reload()
    expect(chat.rows).to_have_count(2)


def test_an_imported_conversation_continues_with_the_model_of_this_server(chat: Chat) -> None:
    """The models of another program do not exist here, so a new question is sent to one of this server."""
    chat.wait_models()
    import_file(chat.page, "conversations.json", json.dumps(OPEN_WEBUI))
    open_row(chat, "Frogs")
    with chat.page.expect_request("**/v1/chat/completions") as request:
        chat.send("And now?")
    assert request.value.post_data_json["model"] == chat.page.locator("#model-name").text_content()


def test_a_refused_file_changes_nothing(chat: Chat) -> None:
    """The reason is shown, and neither the list nor the open conversation changes."""
    answer_with(chat.page, delta("Blue whales"), "id: s.0.9\ndata: [DONE]")
    chat.send("What sings?")
    chat.wait_done()
    import_file(chat.page, "notes.json", json.dumps([CHATGPT[0], *mapping(a="b", b="a")]))
    expect(toast(chat, "follow each other in a circle. Nothing was imported.")).to_be_visible()
    expect(chat.rows).to_have_count(1)
    expect(chat.text()).to_have_text("Blue whales")


def test_all_conversations_move_to_another_browser(
    chat: Chat, slow_server: Server, new_page: Callable[..., Page], tmp_path: Path
) -> None:
    """The file of all conversations holds each of them, and another browser shows them after an import."""
    for question in ("First question", "Second question"):
        chat.page.locator("#new").click()
        answer_with(chat.page, delta(f"Answer to {question}"), "id: s.0.9\ndata: [DONE]")
        chat.send(question)
        chat.wait_done()
    chat.page.locator("#help-button").click()
    with chat.page.expect_download() as download:
        chat.page.locator("#export-all").click()
    assert download.value.suggested_filename.startswith("conversations-")
    download.value.save_as(tmp_path / "all.json")
    text = (tmp_path / "all.json").read_text()
    assert {each["title"] for each in json.loads(text)["conversations"]} == {"First question", "Second question"}
    other = Chat(new_page(), slow_server.url).open()
    import_file(other.page, "all.json", text)
    expect(other.rows).to_have_count(2)
    open_row(other, "First question")
    expect(other.text()).to_have_text("Answer to First question")
