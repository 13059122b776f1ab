"""pipecat's services for OpenAI's language models: by chat completions, responses, or responses over a WebSocket."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import common
from loguru import logger
from pipecat.adapters.schemas.function_schema import FunctionSchema
from pipecat.adapters.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.responses.llm import OpenAIResponsesHttpLLMService, OpenAIResponsesLLMService

logger.remove()
logger.add(sys.stderr, level="ERROR")

KIND = sys.argv[3]
WEATHER = FunctionSchema(
    name="get_weather",
    description="Return the weather of a city.",
    properties=common.WEATHER_PARAMETERS["properties"],
    required=["city"],
)


def service_of(url: str, model: str) -> LLMService:
    """Return the service of a server."""
    kind = {"chat": OpenAILLMService, "responses": OpenAIResponsesHttpLLMService, "socket": OpenAIResponsesLLMService}
    fields = {"api_key": "none", "base_url": f"{url}/v1", "settings": kind[KIND].Settings(model=model)}
    if KIND == "socket":
        fields["ws_url"] = f"{url.replace('http', 'ws')}/v1/responses"
    return kind[KIND](**fields)


class Recorder(FrameProcessor):
    """End of the pipeline: records texts, and the ends of answers."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.on_text: Callable[[], None] = lambda: None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Record a frame."""
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMTextFrame):
            self.text += frame.text
            self.on_text()
        elif isinstance(frame, LLMFullResponseEndFrame):
            self.answers.put_nowait(self.text)
            self.text = ""
        await self.push_frame(frame, direction)


class Talk:
    """Running pipeline, and its conversation."""

    def __init__(self, service: LLMService, task: PipelineTask, recorder: Recorder) -> None:
        self.service, self.task, self.recorder = service, task, recorder
        self.context = LLMContext([], ToolsSchema(standard_tools=[WEATHER]))
        self.errors: list[str] = []

    async def ask(self, question: str) -> str:
        """Add a message of the user, and return the answer, which is added too."""
        self.context.add_message({"role": "user", "content": question})
        answer = await self.respond()
        if answer:
            self.context.add_message({"role": "assistant", "content": answer})
        return answer

    async def respond(self) -> str:
        """Return the answer to the conversation."""
        await self.task.queue_frames([LLMContextFrame(self.context)])
        answer = await asyncio.wait_for(self.recorder.answers.get(), 30)
        assert not self.errors, self.errors
        return answer


@asynccontextmanager
async def connected(url: str, model: str) -> AsyncIterator[Talk]:
    service, recorder = service_of(url, model), Recorder()
    task = PipelineTask(Pipeline([service, recorder]))
    talk = Talk(service, task, recorder)

    @task.event_handler("on_pipeline_error")
    async def on_error(task: PipelineTask, frame: ErrorFrame) -> None:
        talk.errors.append(frame.error)
        recorder.answers.put_nowait("")

    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    try:
        yield talk
    finally:
        await task.queue_frames([EndFrame()])
        await asyncio.wait_for(running, 30)


def scripted() -> AsyncIterator[Talk]:
    return connected(common.SCRIPTED_URL, common.SCRIPTED_MODEL)


def run(feature: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(feature, 90))


def chat() -> None:
    async def talk() -> None:
        async with connected(common.URL, common.MODEL) as talking:
            assert await talking.ask(common.QUESTION)

    run(talk())


def turns() -> None:
    async def talk() -> None:
        async with scripted() as talking:
            for answers in range(3):
                assert await talking.ask(common.COUNT_QUESTION) == common.counts(answers)

    run(talk())


def tools() -> None:
    async def talk() -> None:
        async with scripted() as talking:
            called: asyncio.Future[FunctionCallParams] = asyncio.get_running_loop().create_future()

            async def get_weather(params: FunctionCallParams) -> None:
                called.set_result(params)
                await params.result_callback(common.TOOL_RESULT)

            talking.service.register_function("get_weather", get_weather)
            assert await talking.ask(common.TOOL_QUESTION) == ""
            call = await asyncio.wait_for(called, 30)
            assert call.arguments == {"city": "Rome"}
            function = {"name": call.function_name, "arguments": '{"city": "Rome"}'}
            calls = [{"id": call.tool_call_id, "type": "function", "function": function}]
            talking.context.add_message({"role": "assistant", "tool_calls": calls})
            result = {"role": "tool", "tool_call_id": call.tool_call_id, "content": common.TOOL_RESULT}
            talking.context.add_message(result)
            assert common.TOOL_RESULT in await talking.respond()

    run(talk())


def errors() -> None:
    async def refused() -> None:
        async with connected(common.URL, common.UNKNOWN_MODEL) as talking:
            await talking.ask(common.QUESTION)

    common.check_error(lambda: run(refused()), common.UNKNOWN_MODEL)


def cancel() -> None:
    async def talk() -> None:
        async with scripted() as talking:
            first = asyncio.Event()
            talking.recorder.on_text = first.set
            asking = asyncio.create_task(talking.ask(common.ENDLESS_QUESTION))
            await asyncio.wait_for(first.wait(), 30)
            await talking.task.queue_frames([InterruptionFrame()])
            await asyncio.to_thread(common.wait_for_running, 0)
            asking.cancel()
            while not talking.recorder.answers.empty():
                talking.recorder.answers.get_nowait()
            talking.recorder.text = ""
            assert "Earlier answers" in await talking.ask(common.COUNT_QUESTION)

    run(talk())


common.run_features(chat, turns, tools, errors, cancel)
