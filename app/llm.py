"""Python API: a model and its engine inside a program, without HTTP.

    from app.llm import LLM

    with LLM("Qwen/Qwen3-0.6B") as llm:
        texts = llm.generate(["Once upon a time", "The capital of France is"], {"max_tokens": 40, "temperature": 0})
        for piece in llm.stream("Count from 1 to 5:", {"max_tokens": 20}):
            print(piece, end="", flush=True)

`agenerate` and `astream` are the same for asyncio programs. Parameters are the fields of `/v1/completions`
(`app.protocols.completions`), with the same defaults and checks; options are those of `carousel serve`.
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
from app.protocols.common import validate
from app.protocols.completions import CompletionRequest
from app.server import create_service
from app.service import Service
from app.settings import Settings, resolve
from app.streams.stream_log import Delta, Failure, LogEntry, Reader
from app.streams.timeline import IntakeTimeline
from app.text.model_folder import download_model
from engine.types import ServiceClass

T = TypeVar("T")
Params = Mapping[str, Any]  # fields of a completion request
UNSUPPORTED = ("prompt", "stream", "stream_options", "n", "logprobs")  # of these fields
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
        return self._run(self._generate(prompts, params))

    def stream(self, prompt: str, params: Params | None = None) -> Iterator[str]:
        """Yield the completion in pieces, as it is generated. Closing the iterator cancels it. Raises `ApiError`."""
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
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._generate(prompts, params), self._loop))

    async def astream(self, prompt: str, params: Params | None = None) -> AsyncIterator[str]:
        """Do as `stream`, for asyncio programs."""
        pieces = self.stream(prompt, params)
        try:
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece
        finally:
            pieces.close()  # type: ignore[attr-defined]

    async def _generate(self, prompts: str | Sequence[str], params: Params | None) -> list[str]:
        places = asyncio.Semaphore(PROMPTS_PER_SLOT * self._client.config.max_num_seqs)

        async def complete(prompt: str) -> str:
            async with places:
                return "".join([piece async for piece in self._stream(prompt, params)])

        every = [prompts] if isinstance(prompts, str) else prompts
        tasks = [asyncio.create_task(complete(prompt)) for prompt in every]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # if one failed, the others are of no use

    async def _stream(self, prompt: str, params: Params | None) -> AsyncIterator[str]:
        intake = IntakeTimeline(time.monotonic(), "")
        intake.body_received(time.monotonic())
        for name in UNSUPPORTED:
            if (params or {}).get(name) is not None:
                raise ApiError(400, f"unsupported parameter: {name}", param=name, code="unsupported_parameter")
        request = validate(CompletionRequest, {"prompt": prompt, **(params or {})})
        service_class = request.requested_class or ServiceClass.STANDARD
        ids = await self._service.encode(prompt, service_class, add_special_tokens=True, intake=intake)
        generation = self._service.generate(
            ids,
            request,
            max_tokens=request.token_limit(self._service.token_limit(None, len(ids))),
            logprobs=None,
            encoder=None,
            tenant=ANONYMOUS,
            service_class=service_class,
            intake=intake,
            continues_prompt=True,
        )
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

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _make_client(settings: Settings) -> EngineClient:
    """Create the client on its event loop."""
    return EngineClient(settings.engine, watchdog=settings.watchdog_timeout, logs=("warning", "text"))
