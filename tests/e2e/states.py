"""All states of both pages, for tests that check each of them.

A state is a function that brings a freshly opened page into it. Answers are mocked, so that the state is stable.
`python -m tests.e2e.states FOLDER` saves a screenshot of each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, Route, expect, sync_playwright

from benchmarks.serving import Serving
from tests import chromium
from tests.e2e.page import ANSWER_MS, DEFAULTS, Chat, answer_with, begin_with, call_delta, delta, reasoning_delta
from tests.limits import HANG_SECONDS

DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
WIDE: dict[str, Any] = {"viewport": {"width": 2560, "height": 1440}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
SCHEMES = ("light", "dark")

DONE = "id: s.0.9\ndata: [DONE]"
QUEUED = ': carousel {"state": "queued", "position": 2, "cause": "slots"}'
PAUSED = ': carousel {"state": "paused", "position": 1, "by": "interactive", "mechanism": "swap"}'
RICH = """# Turns

A **carousel** serves many at once, see [the tour](https://example.org), and `batch.join()`.

- one slot
- another, whose text is long enough to take more than one line on a telephone and on a desk with a narrow column

| slots | requests | tokens a second | what limits it | where it was measured |
|--|--|--|--|--|
| 8 | 7 | 1,200 | memory bandwidth | on two shared cores |

```python
def turn(slots: list[Slot], waiting: deque[Request], tokens_for_prompts: int) -> Iterator[tuple[Slot, Token]]:
    yield from ((slot, slot.request.next()) for slot in slots)
```

> Nobody waits for the slowest.

> [!TIP]
> Water is H<sub>2</sub>O, and <kbd>Esc</kbd> stops it[^1].

> [!CAUTION]
> Seats turn.

The mean of \\(n\\) gaps is

\\[\\bar{g} = \\frac{1}{n} \\sum_{k=1}^{n} \\left(t_{k} - t_{k-1}\\right) + \\int_0^1 \\sqrt{x^2 + 1}\\,dx\\]

- [x] task

[^1]: At the next step.
"""
ARABIC = """# دوّامة الخيل

تدور **المقاعد** مع كل خطوة، ويركب `request` في الخطوة التالية:

1. مقعد أول
2. مقعد ثانٍ

> لا أحد ينتظر الأبطأ.
"""
WORD = "antidisestablishmentarianism" * 12


def _finish(reason: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def _ask(chat: Chat, text: str, *parts: str | dict[str, Any]) -> None:
    answer_with(chat.page, *parts, DONE)
    chat.send(text)
    chat.wait_done()


def _wait(chat: Chat, *parts: str | dict[str, Any]) -> None:
    begin_with(chat.page, *parts)
    chat.send("How does continuous batching work?")
    expect(chat.answers.last.locator(".wait")).to_be_visible()


def _rich(chat: Chat) -> None:
    _ask(chat, "Show me all that you can draw", delta(RICH), _finish("stop"))
    expect(chat.text().locator(".katex")).to_have_count(2)


def _preview(chat: Chat, lang: str, text: str) -> None:
    _ask(chat, "Draw how a request is served", delta(f"```{lang}\n{text}\n```"), _finish("stop"))
    chat.text().get_by_role("button", name="Preview").click()


def _diagram(chat: Chat) -> None:
    _preview(
        chat, "mermaid", "graph TD\n  A[Request] --> B{Is a slot free?}\n  B -->|yes| C[Prefill]\n  B -->|no| D[Queue]"
    )
    expect(chat.page.frame_locator("iframe.preview").locator("svg")).to_be_visible()


def _no_diagram(chat: Chat) -> None:
    _preview(chat, "mermaid", "graph TD\n  A[Request --> B")
    expect(chat.page.frame_locator("iframe.preview").locator("p")).to_be_visible()


def _refused(chat: Chat, status: int, code: str, message: str, **headers: str) -> None:
    error = {"error": {"message": message, "code": code, "type": "invalid_request_error"}}

    def refuse(route: Route) -> None:
        route.fulfill(status=status, json=error, headers=headers)

    chat.page.route("**/v1/chat/completions", refuse)
    chat.send("Again")


def _error(chat: Chat) -> None:
    _refused(chat, 400, "invalid_value", "temperature must be between 0 and 2, got 3.5.")
    expect(chat.answers.last.locator(".trouble")).to_be_visible()


def _full_context(chat: Chat) -> None:
    length = chat.page.evaluate("async () => (await (await fetch('/v1/models')).json()).data[0].max_model_len")
    usage = {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": int(0.8 * length)}
    _ask(chat, "Tell me everything", delta("Everything."), _finish("stop"), {"choices": [], "usage": usage})
    expect(chat.page.locator("#context-note")).to_contain_text("80 %")
    _refused(chat, 400, "context_length_exceeded", "The prompt has 2,100 tokens; the context has 2,048.")
    expect(chat.answers.last.locator(".trouble")).to_be_visible()


def _left_out(chat: Chat) -> None:
    for number in range(4):
        usage = {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 1700}
        text = f"Answer {number}. " + "Each step of the engine fills the slots anew. " * 20
        question = f"And what happens in step {number}, when all slots are taken and others wait?"
        _ask(chat, question, delta(text), _finish("stop"), {"choices": [], "usage": usage})
    chat.page.locator("#context-note summary").click()
    expect(chat.page.locator("#context-note li").first).to_be_visible()


def _retry(chat: Chat) -> None:
    _refused(chat, 503, "overloaded", "The queue is full (32 of 32 requests waiting).", **{"Retry-After": "3600"})
    expect(chat.answers.last.locator(".wait")).to_contain_text("Trying again")


def _offline(chat: Chat) -> None:
    chat.page.context.set_offline(True)
    chat.send("Are you there?")
    expect(chat.answers.last.locator(".wait")).to_contain_text("cannot be reached")


def _streaming(chat: Chat) -> None:
    begin_with(chat.page, delta("A batch is built anew at every step, so "), delta("a request **joins"))
    chat.send("How does continuous batching work?")
    expect(chat.text()).to_contain_text("joins")


def _queued(chat: Chat) -> None:
    _streaming(chat)
    chat.send("And what if all slots are taken? " * 4)
    expect(chat.page.locator("#queued")).to_be_visible()


def _thinking(chat: Chat) -> None:
    begin_with(
        chat.page, reasoning_delta("The question is about slots. "), reasoning_delta("Each step fills them anew.")
    )
    chat.send("How does continuous batching work?")
    expect(chat.answers.last.locator(".reasoning")).to_contain_text("anew")


def _thought(chat: Chat) -> None:
    reasoning, text = "Because of *slots*.", "Because each step fills the slots anew."
    _ask(chat, "Why?", reasoning_delta(reasoning), delta(text), _finish("stop"))
    chat.answers.last.locator(".reasoning summary").click()


def _continue(chat: Chat) -> None:
    _ask(chat, "A long story", delta("Once upon a time there was a fox, and"), _finish("length"))
    expect(chat.answers.last.get_by_role("button", name="Continue")).to_be_visible()


WEATHER = call_delta(0, '{"city": "Ghent", "unit": "celsius"}', id="a", name="get_weather")
CALLS_DONE = _finish("tool_calls")


def _calling(chat: Chat) -> None:
    begin_with(chat.page, reasoning_delta("I need the weather."), WEATHER, call_delta(1, '{"ci', id="b", name="find"))
    chat.send("What is the weather in Ghent?")
    expect(chat.answers.last.locator(".call")).to_have_count(2)


def _called(chat: Chat) -> None:
    long_name = call_delta(1, "{}", id="b", name="a_name_" * 18)
    _ask(chat, "What is the weather in Ghent?", delta("I will look it up."), WEATHER, long_name, CALLS_DONE)
    expect(chat.page.get_by_role("button", name="Send results")).to_be_visible()


def _answered(chat: Chat) -> None:
    _ask(chat, "What is the weather in Ghent?", WEATHER, CALLS_DONE)
    chat.page.get_by_label("Result of get_weather").fill('{"temperature": 18, "sky": "clear"}')
    answer_with(chat.page, delta("It is 18 °C and clear in Ghent."), _finish("stop"), DONE)
    chat.page.get_by_role("button", name="Send result").click()
    expect(chat.text()).to_contain_text("clear")
    chat.answers.first.locator(".call summary").click()


def _cut_call(chat: Chat) -> None:
    _ask(chat, "What is the weather?", call_delta(0, '{"city": "Gh', id="a", name="get_weather"), _finish("length"))
    expect(chat.answers.last.locator(".call-state")).to_have_text("cut off")


def _tools(chat: Chat) -> None:
    chat.page.locator("#settings-open").click()
    chat.page.locator("#settings .fold summary").click()
    chat.page.get_by_role("button", name="Insert an example").click()
    chat.page.locator("#settings [name=requires-call]").scroll_into_view_if_needed()


LISTED = [
    {
        "name": "weather",
        "tools": [
            {"name": "get_weather", "description": "Get the current weather in a city.", "input_schema": {}},
            {"name": f"long_name_{'of_a_tool_' * 11}", "description": "Find words. " * 30, "input_schema": {}},
        ],
        "error": None,
    },
    {"name": "files.example.com", "tools": [], "error": "the tool server 'files.example.com' cannot be reached"},
]


def _with_tools(chat: Chat) -> None:
    """Open the page as that of a server with MCP servers, and choose a tool that always runs."""

    def add_tools(route: Route) -> None:
        answer = route.fetch()
        meta = '<meta name="carousel-has-tools" content="1">'
        route.fulfill(response=answer, body=answer.text().replace("</title>", f"</title>{meta}", 1))

    chat.page.route(f"{chat.url}/", add_tools)
    chat.page.route("**/v1/page/tools", lambda route: route.fulfill(json={"object": "list", "data": LISTED}))
    chat.page.evaluate("localStorage['carousel.always-run'] = JSON.stringify(['weather get_weather'])")
    chat.open()
    chat.page.locator("#settings-open").click()
    chat.page.locator("#settings .fold summary").click()
    chat.page.get_by_role("checkbox", name="get_weather").check()


def _server_tools(chat: Chat) -> None:
    _with_tools(chat)
    chat.page.locator(".server-tools").last.scroll_into_view_if_needed()


def _tool_to_run(chat: Chat) -> None:
    _with_tools(chat)
    chat.page.get_by_role("button", name="Ask before each run").click()
    chat.page.keyboard.press("Escape")
    _ask(chat, "What is the weather in Ghent?", delta("I will look it up."), WEATHER, CALLS_DONE)
    expect(chat.page.get_by_role("button", name="Run get_weather", exact=True)).to_be_visible()


def _tool_failed(chat: Chat) -> None:
    _with_tools(chat)
    chat.page.keyboard.press("Escape")
    error = {"message": "the tool server 'weather' did not answer within 120 s", "code": "tool_timeout"}
    chat.page.route("**/v1/page/tools/call", lambda route: route.fulfill(status=504, json={"error": error}))
    _ask(chat, "What is the weather in Ghent?", WEATHER, CALLS_DONE)
    expect(chat.page.get_by_role("button", name="Run again get_weather")).to_be_visible()


def _right_to_left(chat: Chat) -> None:
    _ask(chat, "كيف تعمل الدفعات المستمرة؟", delta(ARABIC), _finish("stop"))


def _long_words(chat: Chat) -> None:
    _ask(chat, f"{WORD} {'word ' * 700}", delta(f"{WORD}\n\n`{WORD}`\n\n- {WORD}"), _finish("stop"))


def _editing(chat: Chat) -> None:
    _ask(chat, "A question with a mistake", delta("What do you mean?"), _finish("stop"))
    chat.questions.last.hover()
    chat.questions.last.get_by_role("button", name="Edit").click()
    expect(chat.questions.last.locator("textarea")).to_be_focused()


def _message_menu(chat: Chat, item: str) -> None:
    chat.answers.last.get_by_role("button", name="More", exact=True).click()
    chat.page.get_by_role("menuitem", name=item).click()


def _versions(chat: Chat) -> None:
    usage = {"prompt_tokens": 1216, "completion_tokens": 8, "total_tokens": 1224}
    usage["prompt_tokens_details"] = {"cached_tokens": 1204}
    _ask(chat, "Which is better?", delta("The first one is better."), _finish("stop"))
    answer_with(chat.page, delta("The second one."), _finish("stop"), {"choices": [], "usage": usage}, DONE)
    chat.answers.last.get_by_role("button", name="Answer again").click()
    expect(chat.answers.last.locator(".figures")).to_contain_text("12 read, 1,204 shared")
    answer_with(chat.page, delta("Neither."), _finish("stop"), DONE)
    chat.questions.last.hover()
    chat.questions.last.get_by_role("button", name="Edit").click()
    chat.page.get_by_role("textbox", name="Edit message").fill("Which is better, and why?")
    chat.page.keyboard.press("Enter")
    expect(chat.text()).to_have_text("Neither.")
    chat.questions.last.get_by_role("button", name="Earlier version").click()
    expect(chat.text()).to_have_text("The second one.")
    chat.questions.last.hover()


def _replayed(chat: Chat) -> None:
    _ask(chat, "Tell me a story about a fox", delta("The fox ran over the hill, and slept."), _finish("stop"))
    chat.set_field("temperature", "0.2")
    answer_with(chat.page, delta("The fox walked over the hill, and slept."), _finish("stop"), DONE)
    _message_menu(chat, "Replay with the present settings")
    chat.answers.last.locator(".difference summary").click()
    expect(chat.answers.last.locator(".difference ins")).to_be_visible()


def _timeline(chat: Chat) -> None:
    phases = {"queued": 300.0, "prefill": 900.0, "decode": 2400.0}
    changed = {
        "continues": "5f0c2d9a7b3e4c1d8e6f0a92",
        "differs_at": 123,
        "before": "is 10:21\n",
        "after": "is 10:22\n",
    }
    drafts = {"tokens": 60, "steps": 24, "drafted": {"lookup": 58}, "accepted": {"lookup": 36}}
    intervals = [{"phase": phase, "ms": ms} for phase, ms in phases.items()]
    timeline = {
        "prompt_tokens": 9110,
        "cached_tokens": 112,
        "cache": {"kept_seconds": 41.7, "expected_tokens": 112, "reason": None, "by": None} | changed,
        "choices": [{"index": 0, "drafts": drafts, "intervals": intervals}],
    }
    chat.page.route("**/v1/requests/s", lambda route: route.fulfill(json=timeline))
    usage = {"choices": [], "usage": {"prompt_tokens": 9110, "completion_tokens": 60, "time_ms": phases}}
    _ask(chat, "Go on", delta("The fox ran over the hill, and slept."), _finish("stop"), usage)
    chat.answers.last.locator(".timeline summary").click()
    expect(chat.answers.last.locator(".timeline li").first).to_contain_text("the prompt differs")


def _three_answers(chat: Chat) -> None:
    _ask(chat, "Tell me a story about a fox", delta("A fox ran."), _finish("stop"))
    texts = ("A fox ran over the hill. " * 12, "An owl saw a fox, and ", "Once upon a time there was a fox. " * 3)
    chunks = [{"choices": [{"index": i, "delta": {"content": text}}]} for i, text in enumerate(texts)]
    begin_with(chat.page, *chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    _message_menu(chat, "Three answers at once")
    expect(chat.page.locator(".side-by-side .body").last).to_contain_text("Once upon")


def _editing_answer(chat: Chat) -> None:
    _ask(chat, "Tell me a story about a fox", delta("A fox ran over the hill. It slept."), _finish("stop"))
    _message_menu(chat, "Edit answer")
    expect(chat.page.get_by_role("textbox", name="Edit answer")).to_be_focused()


def _files(chat: Chat) -> None:
    file = {"name": "weather.csv", "mimeType": "text/csv", "buffer": b"city,degrees\nGhent,18\n"}
    chat.page.locator("#file-input").set_input_files([file])
    expect(chat.page.locator("#files .chip")).to_contain_text("tokens")
    _ask(chat, "How warm is it?", delta("18 degrees."), _finish("stop"))
    chat.page.locator("#file-input").set_input_files([file, {**file, "name": f"{WORD}.txt"}])
    expect(chat.page.locator("#files .chip")).to_have_count(2)
    chat.questions.last.locator("summary").click()


def _paused_by_user(chat: Chat) -> None:
    _wait(chat, delta("A batch is built "), ': carousel {"state": "paused", "cause": "client"}')
    expect(chat.page.get_by_role("button", name="Go on")).to_be_visible()


def _list(chat: Chat) -> None:
    for title in ("Seats", f"A title that is {'much ' * 12}longer than its row", "كيف تعمل الدفعات؟"):
        chat.page.evaluate("location.hash = '#/'")
        _ask(chat, title, delta("Yes."), _finish("stop"))


def _deleted(chat: Chat) -> None:
    _list(chat)
    chat.page.locator("#more").click()
    chat.page.get_by_role("menuitem", name="Delete").click()
    expect(chat.page.locator(".toast")).to_be_visible()


def _drawer(chat: Chat) -> None:
    _list(chat)
    if chat.page.locator("#drawer-open").is_visible():
        chat.page.locator("#drawer-open").click()


def _menu(chat: Chat) -> None:
    _rich(chat)
    chat.page.locator("#more").click()


def _warm(chat: Chat) -> None:
    def found(route: Route) -> None:
        times = {"cached_tokens": 1984, "tokens": 2000, "first_token_ms": 180, "cold_first_token_ms": 6120}
        route.fulfill(json={"requests": dict.fromkeys(route.request.post_data_json["requests"], times)})

    chat.page.route("**/v1/page/warm", found)
    _drawer(chat)
    expect(chat.rows.get_by_role("img", name="Opens in 0.2 s instead of 6.1 s")).to_have_count(3)


def _pinned(chat: Chat) -> None:
    _drawer(chat)
    row = chat.rows.filter(has_text="Seats")
    row.hover()
    row.get_by_role("button").click()
    chat.page.get_by_role("menuitem", name="Pin", exact=True).click()
    expect(chat.page.locator("#conversations .day").first).to_have_text("Pinned")


def _found(chat: Chat) -> None:
    _drawer(chat)
    chat.page.locator("#search").fill("yes")
    expect(chat.rows.locator("mark")).to_have_count(3)


def _hit(chat: Chat) -> None:
    _found(chat)
    chat.rows.last.get_by_role("link").click()
    chat.page.wait_for_function("() => CSS.highlights.has('hit')")


def _wide_list(chat: Chat) -> None:
    _found(chat)
    if chat.page.get_by_role("separator").is_visible():
        chat.page.get_by_role("separator").press("End")


def _presets(chat: Chat) -> None:
    chat.page.locator("#settings-open").click()
    for name, value in (("Facts", "0"), ("A name as long as a name of settings may be, or almost so", "1.5")):
        chat.page.locator("#settings [name=temperature]").fill(value)
        chat.page.locator("#settings [name=preset]").fill(name)
        chat.page.get_by_role("button", name="Save preset").click()
    chat.page.get_by_role("button", name="Save preset").click()
    expect(chat.page.locator("#error-preset")).to_be_visible()


def _in_force(chat: Chat) -> None:
    chat.set_field("stop", "a text that is longer than the line has room for on a phone")
    chat.set_field("temperature", "0.2")
    expect(chat.page.locator("#in-force")).to_be_visible()


def _nothing_found(chat: Chat) -> None:
    _drawer(chat)
    chat.page.locator("#search").fill("zebra")
    expect(chat.page.locator("#conversations-none")).to_be_visible()


def _dialog(button: str) -> Callable[[Chat], None]:
    def open_dialog(chat: Chat) -> None:
        if chat.page.locator(f"#sidebar {button}").count() and chat.page.locator("#drawer-open").is_visible():
            chat.page.locator("#drawer-open").click()
        chat.page.locator(button).click()

    return open_dialog


CHAT: dict[str, Callable[[Chat], None]] = {
    "empty": lambda chat: None,
    "settings": _dialog("#settings-open"),
    "help": _dialog("#help-button"),
    "key": _dialog("#key-button"),
    "waiting": lambda chat: _wait(chat, QUEUED),
    "paused": lambda chat: _wait(chat, delta("A batch is built "), PAUSED),
    "streaming": _streaming,
    "queued message": _queued,
    "thinking": _thinking,
    "thought": _thought,
    "tools": _tools,
    "server tools": _server_tools,
    "tool to run": _tool_to_run,
    "tool failed": _tool_failed,
    "calling": _calling,
    "called": _called,
    "tool answered": _answered,
    "cut call": _cut_call,
    "rich": _rich,
    "diagram": _diagram,
    "no diagram": _no_diagram,
    "menu": _menu,
    "right to left": _right_to_left,
    "long words": _long_words,
    "continue": _continue,
    "editing": _editing,
    "editing an answer": _editing_answer,
    "versions": _versions,
    "timeline": _timeline,
    "three answers": _three_answers,
    "replayed": _replayed,
    "paused by the user": _paused_by_user,
    "files": _files,
    "error": _error,
    "full context": _full_context,
    "left out": _left_out,
    "retry": _retry,
    "offline": _offline,
    "list": _drawer,
    "warm": _warm,
    "pinned": _pinned,
    "found": _found,
    "hit": _hit,
    "wide list": _wide_list,
    "presets": _presets,
    "in force": _in_force,
    "nothing found": _nothing_found,
    "deleted": _deleted,
}


STEP_TOKENS = (1, 4, 1, 1, 8, 1, 2, 3)  # of the last step of each slot


def _slot(i: int) -> dict[str, Any]:
    label = ("interactive", "standard", "batch")[i % 3]
    state = "prefill" if i == 2 else "decode"
    counts = {"context": 90 * i + 40, "generated": 9 * i, "pages": i}
    return {"request": f"{i:06x}", "class": label, "state": state, **counts, "step_tokens": STEP_TOKENS[i % 8]}


NO_DRAFTS = {"steps": 0, "drafted": 0, "accepted": 0}


def _idle(view: dict[str, Any]) -> None:
    """Remove the totals of earlier requests to the server."""
    view["drafts"] = NO_DRAFTS


def _busy(view: dict[str, Any]) -> None:
    """Set all slots but one to occupied, some pages to held, and add a queue."""
    total = view["pages"]["total"]
    view["slots"] = [_slot(i) if i != 3 else None for i in range(len(view["slots"]))]
    view["pages"] |= {"held": total // 2, "cached": total // 4, "free": total - total // 2 - total // 4}
    view["pages"] |= {"kept": total // 10, "on_host": 1234, "on_disk": 5678, "swapped": 56}
    view["waiting"] = {"interactive": 0, "standard": 2, "batch": 14}
    causes = ("slots", "pages", "fairness")
    view["queue"] = [
        {"request": f"q{i:05x}", "class": "batch", "cause": cause, "waited": 2.5} for i, cause in enumerate(causes)
    ]
    view["batch"] = {"decode": len(view["slots"]) - 2, "prefill_tokens": 128}
    view |= {
        "drafts": {"steps": 500, "drafted": 1900, "accepted": 1330},
        "tokens_per_s": 1234.5,
        "prefill_tokens_per_s": 4321.0,
        "busy": 0.93,
        "step_ms": 5.4,
        "prefix_hit_rate": 0.4,
    }


def _paused(view: dict[str, Any]) -> None:
    """Add requests that are paused in each way."""
    _busy(view)
    mechanisms = ("swap", "partial", "recompute")
    view["paused"] = [
        {"request": f"p{i:05x}", "class": "batch", "by": "interactive", "mechanism": mechanism, "context": 300}
        for i, mechanism in enumerate(mechanisms)
    ]
    view["preemptions"] = {"swap": 12, "partial": 3, "recompute": 1}


def _crowded(view: dict[str, Any]) -> None:
    """Add more waiting and paused requests than their lists show."""
    _paused(view)
    for name in ("queue", "paused"):
        view[name] = [{**view[name][i % 3], "request": f"{name[0]}{i:05x}"} for i in range(12)]


ENGINE: dict[str, Callable[[dict[str, Any]], None]] = {
    "idle": _idle,
    "busy": _busy,
    "paused": _paused,
    "crowded": _crowded,
}


def open_engine(page: Page, url: str, state: str) -> None:
    """Show the engine page with a real snapshot that is modified to be in `state`."""
    with httpx.stream("GET", f"{url}/v1/engine/events", timeout=HANG_SECONDS) as answer:
        view = next(json.loads(line[6:]) for line in answer.iter_lines() if line.startswith('data: {"t"'))
    ENGINE[state](view)
    before = {**view, "paused": [], "t": view["t"] - 1, "drafts": NO_DRAFTS}
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in (before, view))
    headers = {"content-type": "text/event-stream"}
    page.route("**/v1/engine/events", lambda route: route.fulfill(status=200, body=body, headers=headers))
    page.goto(f"{url}/engine")
    expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=ANSWER_MS)
    page.locator("#slots-table summary").click()


def main() -> None:
    """Save a screenshot of each state in both color schemes and each width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="save only screenshots whose names contain this text")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with Serving("--max-num-seqs", "8") as server, sync_playwright() as playwright:
        url = f"http://{server.host}:{server.port}"
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox", "--disable-gpu"])
        for name in [*CHAT, *(f"engine {state}" for state in ENGINE)]:
            for (width, device), scheme in product((("desk", DESK), ("wide", WIDE), ("phone", PHONE)), SCHEMES):
                picture = f"{name} {width} {scheme}.png".replace(" ", "-")
                if options.only and options.only not in picture:
                    continue
                context = browser.new_context(
                    **device, color_scheme=scheme, reduced_motion="reduce", service_workers="block"
                )
                context.add_init_script(DEFAULTS)
                page = context.new_page()
                if name in CHAT:
                    CHAT[name](Chat(page, url).open())
                else:
                    open_engine(page, url, name.removeprefix("engine "))
                page.screenshot(path=options.folder / picture)
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
