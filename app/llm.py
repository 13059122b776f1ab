"""Python API: a model and its engine inside a program, without HTTP.

    from app.llm import LLM

    with LLM("Qwen/Qwen3-0.6B") as llm:
        texts = llm.generate(["Once upon a time", "The capital of France is"], {"max_tokens": 40, "temperature": 0})
        for piece in llm.stream("Count from 1 to 5:", {"max_tokens": 20}):
            print(piece, end="", flush=True)
        [answer] = llm.chat([{"role": "user", "content": "Hello!"}])

`agenerate`, `achat` and `astream` are the same for asyncio programs. Parameters are the fields of `/v1/completions`
and, for conversations, of `/v1/chat/completions`, with the same defaults and checks; options are those of
`carousel serve`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from app.admission.tenants import ANONYMOUS
from app.cli.serve import load_text
from app.engine_client.client import EngineClient, EngineUnavailable
from app.errors import ApiError
from app.generation.request import GenerationRequest
from app.options import resolve
from app.protocols.chat import ChatRequest
from app.protocols.common import validate
from app.protocols.completions import CompletionRequest
from app.server import create_service
from app.service import Service
from app.settings import Settings
from app.streams.stream_log import Delta, Failure, LogEntry, Reader
from app.streams.timeline import IntakeTimeline
from app.text.model_folder import download_model

T = TypeVar("T")
Params = Mapping[str, Any]  # fields of a request
Conversation = Sequence[Mapping[str, Any]]  # messages with `role` and `content`
UNSUPPORTED = ("prompt", "messages", "stream", "stream_options", "n", "logprobs", "top_logprobs")  # of these fields
PROMPTS_PER_SLOT = 4  # of one `generate` in flight; further ones would fill the bounded queue and be refused


class LLM:
    """One model, served by an engine process that ends with this object. Methods may be called from any thread."""

    def __init__(self, model: str | None = None, **options: Any) -> None:
        """Load `model`: a folder or a hub name; None: the bundled one. options: those of `carousel serve`, such as
        `max_num_seqs=8`. Returns when requests are served. Raises `SettingsError`, `EngineUnavailable`."""
        settings = resolve({"model": model, **options}, {}, download=download_model)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="carousel", daemon=True)
        self._thread.start()
        self._client = self._run(_make_client(settings))
        try:
            self._service: Service = create_service(settings, self._client, load_text(settings))
            self._run(self._client.start())
            self._run(self._client.ready())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine; running requests fail. Further calls do nothing."""
        if self._thread.is_alive():
            self._run(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def generate(self, prompts: str | Sequence[str], params: Params | None = None) -> list[str]:
        """Return the completion of each prompt, in order. Any number may be given. Raises `ApiError`."""
        return self._run(self._generate(_as_list(prompts, str), params))

    def chat(self, conversations: Conversation | Sequence[Conversation], params: Params | None = None) -> list[str]:
        """Return the answer to each conversation, in order, without its reasoning. Raises `ApiError`."""
        return self._run(self._generate(_as_list(conversations, Mapping), params))

    def stream(self, prompt: str | Conversation, params: Params | None = None) -> Iterator[str]:
        """Yield a completion, or the answer to a conversation, in pieces as it is generated. Raises `ApiError`.

        Closing the iterator cancels it.
        """
        pieces: SimpleQueue[str | BaseException | None] = SimpleQueue()

        async def forward() -> None:
            try:
                async for piece in self._stream(prompt, params):
                    pieces.put(piece)
                pieces.put(None)
            except asyncio.CancelledError:
                pieces.put(EngineUnavailable("the model is closed"))
                raise
            except Exception as error:
                pieces.put(error)

        running = asyncio.run_coroutine_threadsafe(forward(), self._loop)
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            running.cancel()

    async def agenerate(self, prompts: str | Sequence[str], params: Params | None = None) -> list[str]:
        """Do as `generate`, for asyncio programs."""
        return await self._run_async(self._generate(_as_list(prompts, str), params))

    async def achat(
        self, conversations: Conversation | Sequence[Conversation], params: Params | None = None
    ) -> list[str]:
        """Do as `chat`, for asyncio programs."""
        return await self._run_async(self._generate(_as_list(conversations, Mapping), params))

    async def astream(self, prompt: str | Conversation, params: Params | None = None) -> AsyncIterator[str]:
        """Do as `stream`, for asyncio programs."""
        pieces = self.stream(prompt, params)
        try:
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece
        finally:
            pieces.close()  # type: ignore[attr-defined]

    async def _generate(self, prompts: Sequence[str | Conversation], params: Params | None) -> list[str]:
        places = asyncio.Semaphore(PROMPTS_PER_SLOT * self._client.config.max_num_seqs)

        async def complete(prompt: str | Conversation) -> str:
            async with places:
                return "".join([piece async for piece in self._stream(prompt, params)])

        tasks = [asyncio.create_task(complete(prompt)) for prompt in prompts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # if one failed, the others are of no use

    async def _stream(self, prompt: str | Conversation, params: Params | None) -> AsyncIterator[str]:
        intake = IntakeTimeline(time.monotonic(), "")
        intake.body_received(time.monotonic())
        generation = await self._service.generate(_request(prompt, params or {}), ANONYMOUS, intake)
        log, changed = generation.log, asyncio.Event()
        log.follow(changed.set)
        try:
            with Reader(log, 0) as reader:
                while not reader.is_done:
                    for item in reader.read():
                        if isinstance(item, LogEntry) and isinstance(item.record, Delta):
                            if text := item.record.text:  # empty while a character or a stop string is incomplete
                                yield text
                        elif isinstance(item, LogEntry) and isinstance(item.record, Failure):
                            raise ApiError(500, item.record.message, param=item.record.param, code=item.record.code)
                    if not reader.is_done:
                        await changed.wait()
                        changed.clear()
        finally:
            log.unfollow(changed.set)
            generation.on_reader_left()

    async def _stop(self) -> None:
        await self._client.stop()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _run_async(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _as_list(given: Any, single: type) -> list[Any]:
    """Return the prompts or conversations in `given`, which may be one. single: type of a prompt or of a message."""
    if isinstance(given, single):
        return [given]
    every = list(given)
    return [every] if single is Mapping and every and isinstance(every[0], Mapping) else every


def _request(prompt: str | Conversation, params: Params) -> GenerationRequest:
    """Return the request for a prompt or a conversation. Raises `ApiError` for a parameter that is not supported."""
    for name in UNSUPPORTED:
        if params.get(name) is not None:
            raise ApiError(400, f"unsupported parameter: {name}", param=name, code="unsupported_parameter")
    if isinstance(prompt, str):
        return validate(CompletionRequest, {"prompt": prompt, **params}).generation_request()
    return validate(ChatRequest, {"messages": [dict(message) for message in prompt], **params}).generation_request()


async def _make_client(settings: Settings) -> EngineClient:
    """Create the client on its event loop."""
    return EngineClient(settings.engine, watchdog=settings.watchdog_timeout, logs=("warning", "text"))
