"""pipecat's service for OpenAI's realtime sessions, in a pipeline without audio that answers in text."""

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
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService

logger.remove()
logger.add(sys.stderr, level="ERROR")

TOOLS = ToolsSchema(
    standard_tools=[
        FunctionSchema(
            name="get_weather",
            description="Return the weather of a city.",
            properties=common.WEATHER_PARAMETERS["properties"],
            required=["city"],
        )
    ]
)


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

    def __init__(self, service: OpenAIRealtimeLLMService, task: PipelineTask, recorder: Recorder) -> None:
        self.service, self.task, self.recorder = service, task, recorder
        self.errors: list[str] = []

    async def begin(self, question: str, tools: ToolsSchema | None = None) -> str:
        """Start the conversation with a question, and return the first answer."""
        messages = [{"role": "user", "content": question}]
        context = LLMContext(messages, tools) if tools is not None else LLMContext(messages)
        await self.task.queue_frames([LLMContextFrame(context)])
        return await self.next()

    async def ask(self, question: str) -> str:
        """Add a message of the user, and return the answer."""
        content = [events.ItemContent(type="input_text", text=question)]
        item = events.ConversationItem(type="message", role="user", content=content)
        await self.service.send_client_event(events.ConversationItemCreateEvent(item=item))
        return await self.respond()

    async def respond(self) -> str:
        """Ask for an answer, and return it."""
        response = events.ResponseProperties(output_modalities=["text"])
        await self.service.send_client_event(events.ResponseCreateEvent(response=response))
        return await self.next()

    async def next(self) -> str:
        """Return the next answer."""
        answer = await asyncio.wait_for(self.recorder.answers.get(), 30)
        assert not self.errors, self.errors
        return answer


@asynccontextmanager
async def connected(url: str, model: str, **fields: object) -> AsyncIterator[Talk]:
    properties = events.SessionProperties(output_modalities=["text"], **fields)
    service = OpenAIRealtimeLLMService(
        api_key="none",
        base_url=f"{url.replace('http', 'ws')}/v1/realtime",
        settings=OpenAIRealtimeLLMService.Settings(model=model, session_properties=properties),
    )
    recorder = Recorder()
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
    async def ask() -> None:
        async with connected(common.URL, common.MODEL) as talk:
            assert await talk.begin(common.QUESTION)

    run(ask())


def turns() -> None:
    async def ask() -> None:
        async with scripted() as talk:
            assert await talk.begin(common.COUNT_QUESTION) == common.counts(0)
            for answers in (1, 2):
                assert await talk.ask(common.COUNT_QUESTION) == common.counts(answers)

    run(ask())


def tools() -> None:
    async def ask() -> None:
        async with scripted() as talk:
            called = asyncio.Event()

            async def get_weather(params: FunctionCallParams) -> None:
                assert params.arguments == {"city": "Rome"}
                await params.result_callback(common.TOOL_RESULT)
                called.set()

            talk.service.register_function("get_weather", get_weather)
            assert await talk.begin(common.TOOL_QUESTION, TOOLS) == ""
            await asyncio.wait_for(called.wait(), 30)
            assert common.TOOL_RESULT in await talk.respond()
            assert await talk.ask(common.COUNT_QUESTION) == common.counts(2, 1)

    run(ask())


def errors() -> None:
    async def refused() -> None:
        async with connected(common.URL, common.MODEL, max_output_tokens=0) as talk:
            await talk.begin(common.QUESTION)

    common.check_error(lambda: run(refused()), "max_output_tokens")  # of an unknown model it shows "HTTP 404"


def cancel() -> None:
    async def interrupt() -> None:
        async with scripted() as talk:
            first = asyncio.Event()
            talk.recorder.on_text = first.set
            beginning = asyncio.create_task(talk.begin(common.ENDLESS_QUESTION))
            await asyncio.wait_for(first.wait(), 30)
            await talk.service.send_client_event(events.ResponseCancelEvent())
            await beginning
            await asyncio.to_thread(common.wait_for_running, 0)
            assert await talk.ask(common.COUNT_QUESTION) == common.counts(1)

    run(interrupt())


common.run_features(chat, turns, tools, errors, cancel)
