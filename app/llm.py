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
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from app.admission.tenants import ANONYMOUS
from app.engine_client.client import EngineClient, EngineUnavailable
from app.engine_client.engine_sources import engine_source
from app.engine_client.grammar_checker import GrammarChecker
from app.engine_client.machine import machine_shares
from app.errors import ApiError
from app.generation.request import GenerationRequest
from app.options import resolve
from app.protocols.chat import ChatRequest
from app.protocols.completions import CompletionRequest
from app.protocols.schema import validate
from app.server import create_service, load_text
from app.service import Service
from app.settings import Settings
from app.streams.stream_log import Delta, Failure, LogEntry, Reader
from app.streams.timeline import IntakeTimeline
from app.text.model_folder import download_model
from engine.placement import Share

log = logging.getLogger("carousel")

T = TypeVar("T")
Params = Mapping[str, Any]  # fields of a request
Conversation = Sequence[Mapping[str, Any]]  # messages with `role` and `content`
Piece = str | BaseException | None  # of a streamed text; None: the end
UNSUPPORTED = ("prompt", "messages", "stream", "stream_options", "n", "logprobs", "top_logprobs")  # of these fields
PROMPTS_PER_SLOT = 4  # of one `generate` in flight; further ones would fill the bounded queue and be refused


class LLM:
    """One model, served by an engine process that ends with this object. Methods may be called from any thread."""

    def __init__(self, model: str | None = None, **options: Any) -> None:
        """Load `model`: a folder, a hub name, or "demo"; None: the default of `carousel serve`, with a warning in the
        log if the bundled model takes its place. options: those of `carousel serve`, such as `max_num_seqs=8`. Returns
        when requests are served. Raises `SettingsError`, `EngineUnavailable`."""
        patient = {"max_queue_wait_standard": math.inf}  # a program waits for all that it has asked for
        settings = resolve({"model": model, **patient, **options}, {}, download=download_model)
        if settings.model_warning:
            log.warning("%s", settings.model_warning)
        shares = machine_shares(settings.engine, settings.replicas)
        self._is_closed = False
        self._grammars: GrammarChecker | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="carousel", daemon=True)
        self._thread.start()
        self._client = self._run(_make_client(settings, shares))
        try:
            self._service: Service = create_service(settings, self._client, load_text(settings))
            self._grammars = self._service.grammars
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
        """Stop the engine; running and later requests raise `EngineUnavailable`. Further calls do nothing."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def generate(self, prompts: str | Sequence[str], params: Params | None = None) -> list[str]:
        """Return the completion of each prompt, in order. Any number may be given. Raises `ApiError`."""
        return self._run(self._generate(_completion_requests(prompts, params)))

    def chat(self, conversations: Conversation | Sequence[Conversation], params: Params | None = None) -> list[str]:
        """Return the answer to each conversation, in order, without its reasoning. Raises `ApiError`."""
        return self._run(self._generate(_chat_requests(conversations, params)))

    def stream(self, prompt: str | Conversation, params: Params | None = None) -> Iterator[str]:
        """Yield a completion, or the answer to a conversation, in pieces as it is generated. Raises `ApiError`.

        Closing the iterator cancels it.
        """
        pieces: SimpleQueue[Piece] = SimpleQueue()
        running = self._submit(self._forward(_request(prompt, params), pieces.put))
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            running.cancel()

    async def agenerate(self, prompts: str | Sequence[str], params: Params | None = None) -> list[str]:
        """Do as `generate`, for asyncio programs."""
        return await self._run_async(self._generate(_completion_requests(prompts, params)))

    async def achat(
        self, conversations: Conversation | Sequence[Conversation], params: Params | None = None
    ) -> list[str]:
        """Do as `chat`, for asyncio programs."""
        return await self._run_async(self._generate(_chat_requests(conversations, params)))

    async def astream(self, prompt: str | Conversation, params: Params | None = None) -> AsyncIterator[str]:
        """Do as `stream`, for asyncio programs."""
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Piece]()

        def put(piece: Piece) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        running = self._submit(self._forward(_request(prompt, params), put))
        try:
            while (piece := await pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            running.cancel()

    async def _forward(self, request: GenerationRequest, put: Callable[[Piece], object]) -> None:
        """Call `put` with each piece of the text, then with None or with the error."""
        try:
            async for piece in self._stream(request):
                put(piece)
            put(None)
        except asyncio.CancelledError:
            put(_closed())
            raise
        except Exception as error:
            put(error)

    async def _generate(self, requests: list[GenerationRequest]) -> list[str]:
        places = asyncio.Semaphore(PROMPTS_PER_SLOT * self._client.slots)

        async def complete(request: GenerationRequest) -> str:
            async with places:
                return "".join([piece async for piece in self._stream(request)])

        tasks = [asyncio.create_task(complete(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # if one failed, the others are of no use

    async def _stream(self, request: GenerationRequest) -> AsyncIterator[str]:
        intake = IntakeTimeline(time.monotonic(), "")
        intake.body_received(time.monotonic())
        generation = await self._service.generate(request, ANONYMOUS, intake)
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
        self._is_closed = True
        await self._client.stop()
        if self._grammars is not None:
            await self._grammars.close()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _run_async(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._submit(work))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._submit(work).result()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` on this object's event loop. It raises `EngineUnavailable` if `close` ends it."""
        checked = self._unless_closed(work)
        try:
            return asyncio.run_coroutine_threadsafe(checked, self._loop)
        except RuntimeError:  # the loop is closed
            checked.close()
            work.close()
            raise _closed() from None

    async def _unless_closed(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except asyncio.CancelledError:
            if self._is_closed:
                raise _closed() from None
            raise


def _closed() -> EngineUnavailable:
    return EngineUnavailable("the model is closed")


def _completion_requests(prompts: str | Sequence[str], params: Params | None) -> list[GenerationRequest]:
    """Return a request for each prompt. Raises `ApiError`."""
    every = [prompts] if isinstance(prompts, str) else prompts
    return [_completion_request(prompt, params) for prompt in every]


def _chat_requests(
    conversations: Conversation | Sequence[Conversation], params: Params | None
) -> list[GenerationRequest]:
    """Return a request for each conversation; a list of messages is one. Raises `ApiError`."""
    every: list[Any] = list(conversations)
    if every and isinstance(every[0], Mapping):
        every = [every]
    return [_chat_request(conversation, params) for conversation in every]


def _request(prompt: str | Conversation, params: Params | None) -> GenerationRequest:
    """Return the request for a prompt or a conversation. Raises `ApiError`."""
    return _completion_request(prompt, params) if isinstance(prompt, str) else _chat_request(prompt, params)


def _completion_request(prompt: str, params: Params | None) -> GenerationRequest:
    return validate(CompletionRequest, {**_supported(params), "prompt": prompt}).generation_request()


def _chat_request(messages: Any, params: Params | None) -> GenerationRequest:
    """Return the request for a conversation, which may be of a wrong type. Raises `ApiError`."""
    if isinstance(messages, Iterable) and not isinstance(messages, str):
        messages = [dict(message) if isinstance(message, Mapping) else message for message in messages]
    return validate(ChatRequest, {**_supported(params), "messages": messages}).generation_request()


def _supported(params: Params | None) -> Params:
    """Return the parameters. Raises `ApiError` for one that is not supported."""
    for name in UNSUPPORTED:
        if params is not None and params.get(name) is not None:
            raise ApiError(400, f"unsupported parameter: {name}", param=name, code="unsupported_parameter")
    return params or {}


async def _make_client(settings: Settings, shares: Sequence[Share]) -> EngineClient:
    """Create the client on its event loop."""
    return EngineClient(
        settings.engine,
        watchdog=settings.watchdog_timeout,
        logs=("warning", "text"),
        shares=shares,
        remote=engine_source(settings),
    )
