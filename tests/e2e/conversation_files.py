"""Small files in the forms that the page imports, written after the programs that export them, and their import.

ChatGPT: conversations.json of its data export. llama.cpp: tools/server/webui (a dump of its database by
dexie-export-import, `{conv, messages}`, and the oldest list without parents) and tools/ui (JSON lines). Open WebUI:
"Export chats" and the export of a single chat.
"""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.conftest import Run

READ = "const read = (...parts) => m.readFile(new Blob(parts));"


def _chatgpt_node(parent: str | None, role: str, text: str = "", **message: Any) -> dict[str, Any]:
    content = message.pop("content", {"content_type": "text", "parts": [text]})
    name = message.pop("name", None)
    author = {"role": role, "name": name, "metadata": {}}
    return {
        "parent": parent,
        "children": [],
        "message": {"author": author, "content": content, "recipient": "all", "metadata": {}, **message},
    }


def _pointer(name: str) -> dict[str, Any]:
    return {"content_type": "image_asset_pointer", "asset_pointer": f"sediment://{name}", "width": 512, "height": 512}


HIDDEN = {"is_visually_hidden_from_conversation": True}
CHATGPT = [
    {
        "title": "Foxes",
        "create_time": 1712345678.5,
        "update_time": 1712349999.25,
        "current_node": "answer",
        "mapping": {
            "root": {"id": "root", "message": None, "parent": None, "children": ["hidden"]},
            "hidden": _chatgpt_node("root", "system", "", metadata=HIDDEN),
            "context": _chatgpt_node(
                "hidden",
                "user",
                metadata=HIDDEN,
                content={
                    "content_type": "user_editable_context",
                    "user_profile": "I like foxes.",
                    "user_instructions": "Be brief.",
                },
            ),
            "question": _chatgpt_node(
                "context",
                "user",
                create_time=1712345680.0,
                metadata={
                    "attachments": [
                        {"id": "file_1", "name": "den.png", "mimeType": "image/png"},
                        {"id": "file_2", "name": "list.pdf", "mimeType": "application/pdf"},
                    ]
                },
                content={
                    "content_type": "multimodal_text",
                    "parts": [_pointer("file_1"), _pointer("file_9"), "How old is it?"],
                },
            ),
            "thoughts": _chatgpt_node(
                "question",
                "assistant",
                create_time=1712345690.0,
                content={
                    "content_type": "thoughts",
                    "thoughts": [{"summary": "Reading", "content": "It is a den.", "chunks": [], "finished": True}],
                },
            ),
            "call": _chatgpt_node(
                "thoughts",
                "assistant",
                recipient="python",
                create_time=1712345685.0,
                metadata={"model_slug": "gpt-5"},
                content={"content_type": "code", "language": "unknown", "text": "print(6 * 7)"},
            ),
            "result": _chatgpt_node(
                "call", "tool", name="python", content={"content_type": "execution_output", "text": "42"}
            ),
            "recap": _chatgpt_node(
                "result", "assistant", content={"content_type": "reasoning_recap", "content": "Thought for 6s"}
            ),
            "answer": _chatgpt_node("recap", "assistant", "42 years.", metadata={"model_slug": "gpt-5"}),
            "other": _chatgpt_node("question", "assistant", "I cannot tell.", create_time=1712345700.0),
        },
    },
    {"title": "Empty", "create_time": 1.0, "current_node": "root", "mapping": {"root": {"message": None}}},
]

_CONV = {"id": "c1", "name": "Owls", "lastModified": 1752000009000, "currNode": "m6"}


def _llama(id_: Any, parent: Any, role: str, content: str, time: int, **more: Any) -> dict[str, Any]:
    fields = {"id": id_, "convId": "c1", "type": "text", "timestamp": 1752000000000 + time, "children": []}
    return {**fields, "parent": parent, "role": role, "content": content, **more}


_CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"q": "owl"}'}}
_LLAMA_MESSAGES = [
    _llama("m0", None, "system", "", 0, type="root"),
    _llama("m1", "m0", "system", "Be kind.", 1),
    _llama(
        "m2",
        "m1",
        "user",
        "Which owl?",
        2,
        extra=[
            {"type": "IMAGE", "name": "owl.jpg", "base64Url": "data:image/jpeg;base64,AA=="},
            {"type": "TEXT", "name": "notes.txt", "content": "It is grey."},
        ],
    ),
    _llama("m3", "m2", "assistant", "", 3, reasoningContent="Let me look.", toolCalls=json.dumps([_CALL]), model="q3"),
    _llama("m4", "m3", "tool", "A tawny owl.", 4, toolCallId="call_1"),
    _llama("m5", "m4", "assistant", "A tawny owl.", 5),
    _llama("m6", "m2", "assistant", "A barn owl.", 6),
]
LLAMA = {"conv": _CONV, "messages": _LLAMA_MESSAGES}
LLAMA_PATH_ONLY = [{"conv": _CONV, "messages": _LLAMA_MESSAGES[1:]}]
LLAMA_LINES = "\n".join(
    json.dumps(line)
    for line in [
        {"harness": "llama.cpp", "type": "session", **_CONV},
        *[
            {"type": "message", "message": {**one, "toolCalls": [_CALL]} if "toolCalls" in one else one}
            for one in _LLAMA_MESSAGES
        ],
    ]
)
LLAMA_DUMP = {
    "formatName": "dexie",
    "formatVersion": 1,
    "data": {
        "databaseName": "LlamacppWebui",
        "databaseVersion": 1,
        "tables": [
            {"name": "conversations", "schema": "&id,lastModified", "rowCount": 1},
            {"name": "messages", "schema": "&id,convId,[convId+id],timestamp", "rowCount": len(_LLAMA_MESSAGES)},
        ],
        "data": [
            {"tableName": "conversations", "inbound": True, "rows": [_CONV]},
            {"tableName": "messages", "inbound": True, "rows": _LLAMA_MESSAGES},
        ],
    },
}
LLAMA_OLDEST = {
    "id": "conv-1734086746930",
    "lastModified": 1734087548943,
    "messages": [
        {"id": 1734086764521, "role": "user", "content": "What is the weather?"},
        {
            "id": 1734087548331,
            "role": "assistant",
            "content": "<think>They want the weather.</think>Let me check.",
            "tool_calls": [_CALL],
        },
        {"id": 1734087548332, "role": "tool", "content": '{"temperature": 20}'},
        {"id": 1734087548333, "role": "assistant", "content": "20 degrees."},
    ],
}

_DETAILS = (
    '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>\n'
    "&gt; Is it &lt;late&gt;?\n&gt; Yes.\n</details>\n"
    '<details type="tool_calls" done="true" id="call_9" name="clock" '
    'arguments="&quot;{\\&quot;zone\\&quot;: \\&quot;UTC\\&quot;}&quot;" '
    'result="&quot;12:00&quot;" files="" embeds="">\n<summary>Tool Executed</summary>\n</details>\n'
    "It is noon. <details><summary>More</summary>No.</details>"
)


def _open_webui(id_: str, parent: str | None, role: str, content: str, time: int, **more: Any) -> dict[str, Any]:
    fields = {"id": id_, "parentId": parent, "childrenIds": [], "timestamp": 1720000000 + time}
    return {**fields, "role": role, "content": content, **more}


OPEN_WEBUI = [
    {
        "id": "x",
        "user_id": "u",
        "title": "Frogs",
        "created_at": 1720000000,
        "updated_at": 1720000100,
        "chat": {
            "title": "Frogs",
            "models": ["llama3.2"],
            "params": {"system": "Answer in English."},
            "history": {
                "currentId": "b2",
                "messages": {
                    "a1": _open_webui(
                        "a1", None, "user", "What time is it?", 1, files=[{"type": "image", "url": "data:image/png;"}]
                    ),
                    "b1": _open_webui("b1", "a1", "assistant", "Noon.", 2, model="llama3.2", done=True),
                    "b2": _open_webui("b2", "a1", "assistant", _DETAILS, 3, model="llama3.2", done=True),
                },
            },
        },
    }
]

MARKDOWN = """# Snails

> Be slow.
> Very slow.

## You

How fast?

## Answer

Let me see.

\\## You

```
## no heading of a message
```

### Call of `measure`

```
{
  "what": "snail"
}
```

### Result

````
```
## You
```
````

## Answer

Slow.
"""


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read(run: Run, value: Any) -> Any:
    """Return the imported conversations of a file, and the number of images that were left out."""
    return run("import.js", f"{READ} return read(arg);", text_of(value))


def tree(conversation: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the role, text and position of the parent of each message."""
    at = {message["id"]: i for i, message in enumerate(conversation["messages"])}
    return [(one["role"], one["content"], at.get(one["parent"])) for one in conversation["messages"]]


def own(*messages: Any, **fields: Any) -> dict[str, Any]:
    """Return a file in the page's own form."""
    settings = {"title": "t", "created": 1, "updated": 1, "system": "", "model": "", "sampling": {}}
    return {
        "format": "carousel.conversations",
        "version": 1,
        "conversations": [{**settings, "messages": list(messages), **fields}],
    }


def one(id_: Any = "a", parent: Any = None, **fields: Any) -> dict[str, Any]:
    """Return a message in the page's own form."""
    return {"id": id_, "parent": parent, "role": "user", "content": "x", "created": 1, **fields}


def mapping(**parents: str | None) -> list[Any]:
    return [{"title": "t", "mapping": {key: node(parent) for key, parent in parents.items()}}]


def node(parent: str | None) -> dict[str, Any]:
    return {"parent": parent, "message": {"author": {"role": "user"}, "content": {"parts": ["x"]}}}
