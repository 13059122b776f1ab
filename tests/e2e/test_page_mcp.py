"""Tools of an MCP server on the chat page: they run with a click or always, and the conversation goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.conftest import Server
from tests.e2e.page import Chat, begin_with, call_delta, delta, sse
from tests.e2e.test_page_tools import CALLED, DONE
from tests.limits import HANG_SECONDS
from tests.mcp_server import McpServer

pytestmark = pytest.mark.browser

KEY = "key-of-one"
Parts = tuple[str | dict[str, Any], ...]


@pytest.fixture(scope="module")
def tools() -> Iterator[McpServer]:
    server = McpServer.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def service(tools: McpServer) -> Iterator[Server]:
    """Yield a server with a key and two MCP servers, of which one cannot be reached."""
    server = Server.start("--api-key", KEY, "--mcp", f"weather={tools.url},gone=http://127.0.0.1:1/mcp")
    yield server
    server.stop()
    server.assert_no_traceback()


@pytest.fixture
def chat(service: Server, new_page: Callable[..., Page]) -> Chat:
    """Return an open page with a key."""
    page = new_page()
    page.context.add_init_script(f"sessionStorage['carousel.key'] = {KEY!r}")
    return Chat(page, service.url).open()


def open_tools(chat: Chat) -> None:
    """Open the tools of the settings."""
    chat.page.locator("#settings-open").click()
    if not chat.page.locator("#settings [name=tools]").is_visible():
        chat.page.locator("#settings .fold summary").click()
    expect(chat.page.get_by_role("checkbox", name="get_weather")).to_be_visible()


def choose(chat: Chat, *names: str) -> None:
    """Let the conversation offer tools of the server."""
    open_tools(chat)
    for name in names:
        chat.page.get_by_role("checkbox", name=name).check()
    chat.page.keyboard.press("Escape")


class Model:
    """Mocked answers, one for each request of the page; the last one is repeated."""

    def __init__(self, page: Page, *answers: Parts) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answers = answers
        page.route("**/v1/chat/completions", self._answer)

    def _answer(self, route: Route) -> None:
        parts = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(route.request.post_data_json)
        headers = {"content-type": "text/event-stream", "x-carousel-stream": f"s{len(self.requests)}"}
        route.fulfill(status=200, body=sse(*parts, DONE), headers=headers)


def call(name: str, index: int = 0, **arguments: str) -> dict[str, Any]:
    return call_delta(index, json.dumps(arguments), id=f"c{index}", name=name)


WEATHER: Parts = (call("get_weather", city="Ghent"), CALLED)
TEXT: Parts = (delta("It is mild."),)


def run_button(chat: Chat, name: str, label: str = "Run") -> Locator:
    return chat.answers.last.get_by_role("button", name=f"{label} {name}", exact=True)


def wait_answers(chat: Chat, count: int) -> None:
    """Wait until there are so many answers, of which the last one has ended."""
    expect(chat.answers).to_have_count(count)
    chat.wait_done()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def wait_lines(chat: Chat, path: Path, expected: list[str]) -> None:
    """Wait until a file has these lines."""
    while lines(path) != expected:
        chat.page.wait_for_timeout(20)


def test_a_tool_runs_with_a_click_and_the_answer_goes_on(chat: Chat) -> None:
    """The model gets the definition, and the result as that of its call."""
    model = Model(chat.page, WEATHER, TEXT)
    choose(chat, "get_weather")
    chat.send("What is the weather?")
    expect(chat.answers.last.locator(".call-run")).to_contain_text("get_weather, a tool of weather")
    expect(chat.answers.last.get_by_role("button", name="Send result")).to_be_hidden()
    run_button(chat, "get_weather").click()
    wait_answers(chat, 2)
    expect(chat.text()).to_have_text("It is mild.")
    [tool] = model.requests[0]["tools"]
    assert tool["function"]["name"] == "get_weather" and tool["function"]["parameters"]["required"] == ["city"]
    assert model.requests[1]["messages"][-1] == {"role": "tool", "tool_call_id": "c0", "content": "18 degrees in Ghent"}
    answered = chat.answers.first.locator(".call")
    expect(answered.locator(".call-state")).to_have_text("answered")
    expect(answered.locator(".call-run")).to_have_count(0)


def test_the_settings_list_tools_and_servers_that_do_not_answer(chat: Chat) -> None:
    """A chosen tool is a setting in force, and stays after a reload."""
    Model(chat.page, TEXT)
    open_tools(chat)
    expect(chat.page.locator(".server-tools")).to_have_count(2)
    expect(chat.page.locator(".server-tools").last).to_contain_text("The tool server 'gone' cannot be reached")
    expect(chat.page.locator(".server-tools").first).to_contain_text("Get the current weather in a city.")
    chat.page.get_by_role("checkbox", name="get_weather").check()
    chat.page.keyboard.press("Escape")
    expect(chat.page.locator("#in-force")).to_contain_text("1 tool")
    chat.send("Hi")
    chat.wait_done()
    chat.reload()
    open_tools(chat)
    expect(chat.page.get_by_role("checkbox", name="get_weather")).to_be_checked()
    expect(chat.page.get_by_role("checkbox", name="append")).not_to_be_checked()
    chat.page.get_by_role("checkbox", name="get_weather").uncheck()
    chat.page.keyboard.press("Escape")
    expect(chat.page.locator("#in-force")).to_be_hidden()


def test_two_tools_of_one_name_get_two_names(chat: Chat) -> None:
    """That of the server gets the server's name before it; an own definition of a chosen tool's name is refused."""
    model = Model(chat.page, (call("weather_get_weather", city="Ghent"), CALLED), TEXT)
    open_tools(chat)
    field = chat.page.locator("#settings [name=tools]")
    field.fill('{"name": "get_weather"}')
    chat.page.get_by_role("checkbox", name="get_weather").check()
    field.fill('[{"name": "get_weather"}, {"name": "weather_get_weather"}]')
    expect(chat.page.locator("#error-tools")).to_have_text(
        "weather_get_weather is a tool of weather. Give yours another name."
    )
    chat.page.keyboard.press("Escape")
    chat.send("What is the weather?")
    run_button(chat, "weather_get_weather").click()
    wait_answers(chat, 2)
    names = [tool["function"]["name"] for tool in model.requests[0]["tools"]]
    assert names == ["get_weather", "weather_get_weather"]
    assert model.requests[1]["messages"][-1]["content"] == "18 degrees in Ghent"


def test_a_tool_that_always_runs_needs_no_click(chat: Chat) -> None:
    """Until the settings take it back."""
    model = Model(chat.page, WEATHER, WEATHER, WEATHER, TEXT)
    choose(chat, "get_weather")
    chat.send("What is the weather?")
    run_button(chat, "get_weather", "Always run").click()
    wait_answers(chat, 4)
    expect(chat.text()).to_have_text("It is mild.")
    assert [message["role"] for message in model.requests[-1]["messages"]] == ["user", *["assistant", "tool"] * 3]
    open_tools(chat)
    chat.page.get_by_role("button", name="Ask before each run of get_weather").click()
    expect(chat.page.get_by_role("button", name="Ask before each run of get_weather")).to_have_count(0)
    chat.page.keyboard.press("Escape")
    model.answers = (WEATHER,)
    chat.send("And now?")
    expect(run_button(chat, "get_weather")).to_be_visible()
    wait_answers(chat, 5)


def test_tools_stop_after_twenty_rounds_without_a_click(chat: Chat) -> None:
    """A click lets them go on, for as many rounds."""
    model = Model(chat.page, WEATHER)
    choose(chat, "get_weather")
    chat.page.evaluate("localStorage['carousel.always-run'] = JSON.stringify(['weather get_weather'])")
    chat.send("What is the weather?")
    expect(chat.answers.last.locator(".call-run")).to_contain_text("Tools have run 20 times without you. Go on?")
    assert len(model.requests) == 21
    model.answers = (TEXT,)
    run_button(chat, "get_weather").click()
    expect(chat.text()).to_have_text("It is mild.")


def test_an_error_of_a_tool_is_a_result(chat: Chat) -> None:
    """The model sees the reason; the other calls of the answer wait for their own click, and then it goes on."""
    model = Model(chat.page, (call("fail"), call("get_weather", 1, city="Ghent"), CALLED), TEXT)
    choose(chat, "fail", "get_weather")
    chat.send("What is the weather?")
    run_button(chat, "fail").click()
    expect(chat.answers.last.locator(".call-state").first).to_have_text("answered")
    assert len(model.requests) == 1
    run_button(chat, "get_weather").click()
    wait_answers(chat, 2)
    failed, good = model.requests[1]["messages"][-2:]
    assert failed["content"].startswith("Error") and "there is no such city" in failed["content"]
    assert good["content"] == "18 degrees in Ghent"


def test_arguments_that_are_no_object_are_an_error_for_the_model(chat: Chat) -> None:
    """No tool gets them."""
    model = Model(chat.page, (call_delta(0, '["Ghent"]', id="c0", name="get_weather"), CALLED), TEXT)
    choose(chat, "get_weather")
    chat.send("What is the weather?")
    run_button(chat, "get_weather").click()
    wait_answers(chat, 2)
    assert model.requests[1]["messages"][-1]["content"] == "Error: the arguments are not a JSON object."


def test_a_server_that_fails_leaves_the_call_to_the_user(chat: Chat) -> None:
    """It says why; the tool can be run again, or its result written."""
    model = Model(chat.page, WEATHER, TEXT)
    choose(chat, "get_weather")
    error = {"error": {"message": "the tool server 'weather' cannot be reached", "code": "tool_server_failed"}}
    chat.page.route("**/v1/page/tools/call", lambda route: route.fulfill(status=502, json=error))
    chat.send("What is the weather?")
    run_button(chat, "get_weather", "Always run").click()
    expect(chat.answers.last.locator(".call-run")).to_contain_text("The tool server 'weather' cannot be reached.")
    expect(run_button(chat, "get_weather", "Run again")).to_be_visible()
    chat.answers.last.get_by_label("Result of get_weather").fill("rain")
    chat.answers.last.get_by_role("button", name="Send result").click()
    wait_answers(chat, 2)
    assert model.requests[1]["messages"][-1]["content"] == "rain"


def test_a_reload_during_a_call_runs_nothing_by_itself(chat: Chat, tmp_path: Path) -> None:
    """The call is there, and asks for a click, also if its tool always runs."""
    path = tmp_path / "calls"
    Model(chat.page, (call("wait", path=str(path)), CALLED), TEXT)
    choose(chat, "wait")
    chat.send("Wait.")
    run_button(chat, "wait", "Always run").click()
    expect(chat.answers.last.locator(".call-run")).to_have_text("Running wait, a tool of weather")
    wait_lines(chat, path, ["begun"])
    chat.reload()
    wait_lines(chat, path, ["begun", "cancelled"])
    expect(chat.answers.last.locator(".call-run")).to_contain_text("It may have had its effect.")
    assert lines(path) == ["begun", "cancelled"]
    run_button(chat, "wait", "Run again").click()
    wait_lines(chat, path, ["begun", "cancelled", "begun"])


def test_stop_ends_the_tool_and_the_rounds(chat: Chat, tmp_path: Path) -> None:
    """The tool is cancelled on its server, a further click runs it again, and a queued message comes back."""
    path = tmp_path / "calls"
    model = Model(chat.page, (call("wait", path=str(path)), CALLED), TEXT)
    choose(chat, "wait")
    chat.send("Wait.")
    run_button(chat, "wait", "Always run").click()
    expect(chat.answers.last.locator(".call summary")).to_be_focused()
    wait_lines(chat, path, ["begun"])
    chat.send("And then?")
    expect(chat.page.locator("#queued")).to_be_visible()
    chat.stop.click()
    expect(chat.answers.last.locator(".call-run")).to_contain_text("Stopped. It may have had its effect.")
    wait_lines(chat, path, ["begun", "cancelled"])
    expect(chat.stop).to_be_hidden()
    expect(chat.prompt).to_have_value("And then?")
    assert len(model.requests) == 1
    expect(run_button(chat, "wait", "Run again")).to_be_visible()


def test_a_click_repeats_no_other_call(chat: Chat, tmp_path: Path) -> None:
    """One that was cancelled waits for its own click, also if its tool always runs."""
    path = tmp_path / "calls"
    Model(chat.page, (call("wait", path=str(path)), call("get_weather", 1, city="Ghent"), CALLED), TEXT)
    choose(chat, "wait", "get_weather")
    chat.send("Wait.")
    run_button(chat, "wait", "Always run").click()
    wait_lines(chat, path, ["begun"])
    chat.stop.click()
    run_button(chat, "get_weather").click()
    expect(chat.answers.last.locator(".call-state").last).to_have_text("answered")
    expect(run_button(chat, "wait", "Run again")).to_be_visible()
    assert lines(path) == ["begun", "cancelled"]


def test_a_stopped_answer_runs_no_tool(chat: Chat, tmp_path: Path) -> None:
    """Its calls wait for a click, also if their tools always run."""
    path = tmp_path / "calls"
    choose(chat, "append")
    chat.page.evaluate("localStorage['carousel.always-run'] = JSON.stringify(['weather append'])")
    begin_with(chat.page, call("append", path=str(path), text="once"))
    chat.send("Append.")
    expect(chat.answers.last.locator(".call")).to_be_visible()
    chat.stop.click()
    expect(run_button(chat, "append")).to_be_visible()
    assert lines(path) == []
    run_button(chat, "append").click()
    wait_lines(chat, path, ["once"])


def test_rounds_go_on_in_a_conversation_that_is_not_shown(chat: Chat, tmp_path: Path) -> None:
    """It is complete when it is opened again."""
    path = tmp_path / "calls"
    Model(chat.page, (call("append", path=str(path), text="once"), CALLED), TEXT)
    choose(chat, "append")
    chat.page.evaluate("localStorage['carousel.always-run'] = JSON.stringify(['weather append'])")
    chat.send("Append.")
    chat.page.get_by_role("button", name="New conversation").click()
    expect(chat.answers).to_have_count(0)
    wait_lines(chat, path, ["once"])
    chat.rows.first.click()
    wait_answers(chat, 2)
    expect(chat.text()).to_have_text("It is mild.")
    assert lines(path) == ["once"]


def test_only_the_tab_of_the_answer_runs_its_tools(chat: Chat, tmp_path: Path) -> None:
    """Another tab that shows the conversation sees the result."""
    path = tmp_path / "calls"
    append = (call("append", path=str(path), text="once"), CALLED)
    choose(chat, "append")
    chat.page.evaluate("localStorage['carousel.always-run'] = JSON.stringify(['weather append'])")
    Model(chat.page, TEXT, append, TEXT)
    chat.send("Hi")
    chat.wait_done()
    other = chat.page.context.new_page()
    other.goto(chat.page.url)
    expect(other.locator("[data-role=assistant]")).to_have_count(1)
    chat.send("Append.")
    wait_answers(chat, 3)
    expect(other.locator("[data-role=assistant]")).to_have_count(3)
    assert lines(path) == ["once"]


def test_hostile_results_are_text(chat: Chat) -> None:
    """No element is made of them."""
    Model(chat.page, (call("markup"), CALLED), TEXT)
    choose(chat, "markup")
    chat.send("Hi")
    run_button(chat, "markup").click()
    wait_answers(chat, 2)
    shown = chat.answers.first.locator(".call")
    shown.locator("summary").click()
    expect(shown.locator("pre").last).to_contain_text('<img src="x" onerror')
    assert shown.locator("img, script").count() == 0
    assert chat.page.title() not in ("1", "2")


def test_own_definitions_are_still_answered_by_hand(chat: Chat) -> None:
    """Beside a tool that runs, the answer goes on once both have results."""
    model = Model(chat.page, (*WEATHER[:1], call("find", 1), CALLED), TEXT)
    open_tools(chat)
    chat.page.locator("#settings [name=tools]").fill('{"name": "find"}')
    chat.page.get_by_role("checkbox", name="get_weather").check()
    chat.page.keyboard.press("Escape")
    chat.send("What is the weather?")
    expect(chat.answers.last.get_by_role("button", name="Send result")).to_be_hidden()
    run_button(chat, "get_weather").click()
    chat.answers.last.get_by_label("Result of find").fill("nothing")
    chat.answers.last.get_by_role("button", name="Send result").click()
    wait_answers(chat, 2)
    assert [message["content"] for message in model.requests[1]["messages"][2:]] == ["18 degrees in Ghent", "nothing"]


def test_two_api_processes_run_tools_alike(tools: McpServer) -> None:
    """Each with sessions of its own, and with a secret that only the variable has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAROUSEL_MCP", f"weather={tools.url.replace('://', '://token@')}")
        patch.setenv("CAROUSEL_API_KEY", KEY)
        server = Server.start("--api-processes", "2", "--public-metrics", timeout=HANG_SECONDS)
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"server": "weather", "name": "headers", "arguments": {}}
    processes: set[str] = set()
    while processes != {"0", "1"}:  # each request has a connection of its own, which either of them accepts
        answer = httpx.post(f"{server.url}/v1/page/tools/call", json=body, headers=headers, timeout=HANG_SECONDS)
        assert json.loads(answer.json()["content"])["authorization"] == "Bearer token"
        metrics = httpx.get(f"{server.url}/metrics", timeout=HANG_SECONDS).text
        processes |= set(re.findall(r'carousel:tool_calls_total{api_process="(\d)"', metrics))
    server.stop()


def test_a_page_without_tools_says_so(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """Its settings list none."""
    chat = Chat(new_page(), slow_server.url).open()
    Model(chat.page, WEATHER)
    chat.send("What is the weather?")
    expect(chat.answers.last).to_contain_text("This page runs no tools.")
    chat.page.locator("#settings-open").click()
    expect(chat.page.locator(".server-tools")).to_have_count(0)
