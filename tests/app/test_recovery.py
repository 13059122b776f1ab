"""API processes that are started again with their stores, beside one that may have adopted their answers meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from app.engine_client.adoption import AdoptedRequest, Adoptions
from app.engine_client.client import EngineClient
from app.engine_client.engine_sources import FixedEngines
from app.engine_client.tcp_engine import EngineAccess
from app.errors import ApiError
from app.http.siblings import Siblings
from app.recovery import HELD_SECONDS
from app.server import create_app
from app.service import Service
from app.settings import Settings
from app.store.location import process_file
from app.store.state_file import StateFile
from app.streams.stream_log import Record, Usage
from engine.config import EngineConfig
from tests.app.engine_client.test_client import CONFIG
from tests.app.engine_client.test_tcp_engine import TOKEN, ListeningEngine, immediate_retry, until  # noqa: F401
from tests.app.text_models import byte_level
from tests.limits import HANG_SECONDS

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LENGTH = 700  # tokens; a step takes at least 2 ms
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": LENGTH}
STORED = {"input": "hi", "max_output_tokens": LENGTH, "background": True}


class Process:
    """An API process without a socket."""

    def __init__(self, service: Service, http: httpx.AsyncClient) -> None:
        self.service = service
        self.http = http

    async def begin(self, tokens: int = 5, **more: Any) -> str:
        """Begin a chat completion, leave once some tokens have arrived, and return its stream."""
        posting = asyncio.create_task(self.http.post(CHAT, json=BODY | more, headers={"X-Carousel-Resume": "60"}))
        await until(lambda: any(each.completion_tokens >= tokens for each in self.service.registry.live()))
        [generation] = self.service.registry.live()
        posting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await posting
        return generation.log.id

    def records(self, stream: str) -> list[Record]:
        """Return the records of a stream, but for its last one, which has times."""
        generation = self.service.registry.get_any_owner(stream)
        assert generation is not None
        return [record for record in generation.log.records if not isinstance(record, Usage)]

    async def more(self, stream: str, records: int) -> None:
        """Wait until a stream has more than some records, or all of them."""
        await until(lambda: len(self.records(stream)) > records or not self.service.registry.live())

    async def text(self, stream: str) -> str:
        """Return the text of an answer once it has ended."""
        while (answer := await self.http.get(f"/v1/requests/{stream}")).status_code == 503 or (
            answer.status_code == 200 and answer.json()["state"] != "ended"
        ):
            await asyncio.sleep(0.01)
        assert answer.status_code == 200, answer.text
        generation = self.service.registry.get_any_owner(stream)
        assert generation is not None and generation.encoder is not None
        body = generation.encoder.body(generation.log, 1)
        return str(body["choices"][0]["message"]["content"])

    async def restored(self) -> Process:
        """Wait until the answers of the process before are restored."""
        await until(lambda: not self.service.registry.awaited)
        return self


class Machine:
    """The files of API processes, and an engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = ListeningEngine()

    def file(self, index: int) -> Path:
        return process_file(self.folder / "s.db", index)

    @property
    def computed(self) -> int:
        """Return the tokens that the engine has computed."""
        return self.engine.engine.load().counters.generated_tokens

    def replace_engine(self) -> None:
        """Let the engine die, and start another one."""
        self.engine.stop()
        self.engine = ListeningEngine()

    @asynccontextmanager
    async def process(
        self, index: int = 0, siblings: Siblings | None = None, *, reads_other: bool = True
    ) -> AsyncIterator[Process]:
        """Yield a process that loses its connection at the end, as one that is killed does.

        reads_other: it can read the file of the other process; otherwise only the engine knows what that one has.
        """
        client = EngineClient(CONFIG, remote=FixedEngines([self.engine.address], EngineAccess(TOKEN)))
        file = StateFile(self.file(index), others=[self.file(1 - index)] if reads_other else ())
        settings = Settings(
            engine=EngineConfig(model="fake"),
            model_name="fake",
            metering=str(self.folder / "usage.db"),
            drain_timeout=0,
        )
        app = create_app(settings, client, byte_level(), state_file=file, siblings=siblings)
        async with app.router.lifespan_context(app):
            await asyncio.wait_for(client.ready(), HANG_SECONDS)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", timeout=None) as http:
                yield Process(app.state.service, http)

    def journal(self, index: int) -> dict[str, bool]:
        """Return the answers in a file, and whether each has ended."""
        with contextlib.closing(sqlite3.connect(self.file(index))) as connection:
            return dict(connection.execute("SELECT id, ended IS NOT NULL FROM request"))

    def records(self, index: int) -> dict[str, bool]:
        """Return the stored responses and chat completions in a file, and whether each has ended."""
        with contextlib.closing(sqlite3.connect(self.file(index))) as connection:
            return dict(connection.execute("SELECT id, body <> x'' FROM record"))

    def usage(self) -> list[tuple[str, str, int, int]]:
        """Return the rows of usage: IDs, outcomes, and tokens of prompts and answers."""
        with contextlib.closing(sqlite3.connect(self.folder / "usage.db")) as connection:
            return connection.execute("SELECT request_id, outcome, input_tokens, output_tokens FROM usage").fetchall()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.engine.stop()


@pytest.fixture
async def alone(machine: Machine) -> str:
    """Return the text of an answer that nothing disturbs."""
    async with machine.process() as process:
        body = (await process.http.post(CHAT, json=BODY)).json()
    for path in machine.folder.iterdir():
        path.unlink()
    machine.replace_engine()
    return str(body["choices"][0]["message"]["content"])


async def adopted(process: Process, stream: str) -> None:
    """Let a process adopt an answer, once its engine has noticed that the one before has gone."""
    while process.service.registry.get_any_owner(stream) is None:
        answer = await process.http.get(f"/v1/requests/{stream}")
        assert answer.status_code in (200, 503), answer.text


async def test_an_answer_goes_on_in_the_engine_that_has_it(machine: Machine, alone: str):
    """Each token is computed once, and comes once; the metering file has one row."""
    async with machine.process() as process:
        stream = await process.begin()
    async with machine.process() as process:
        assert await (await process.restored()).text(stream) == alone
    assert machine.computed == LENGTH
    assert [(row[0], row[1], row[3]) for row in machine.usage()] == [(stream, "length", LENGTH)]
    assert machine.journal(0) == {stream: True}


async def test_an_answer_that_no_engine_knows_is_computed_again(machine: Machine, alone: str):
    """From the tokens in the store."""
    async with machine.process() as process:
        stream = await process.begin(50)
    machine.replace_engine()
    async with machine.process() as process:
        assert await (await process.restored()).text(stream) == alone
    assert 0 < machine.computed < LENGTH
    assert [(row[0], row[3]) for row in machine.usage()] == [(stream, LENGTH)]


@pytest.mark.parametrize("has_ended", [False, True])
async def test_an_answer_that_another_process_has_adopted_is_left_to_it(machine: Machine, alone: str, has_ended: bool):
    """In progress, or ended a short while ago: it is whole there, and there is no error, nor a second row."""
    async with machine.process() as process:
        stream = await process.begin()
    async with machine.process(1) as other:
        await adopted(other, stream)
        if has_ended:
            await other.text(stream)
        async with machine.process(reads_other=False) as process:
            await process.restored()
            assert process.service.registry.get_any_owner(stream) is None
            answer = await process.http.get(f"/v1/streams/{stream}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "held_elsewhere")
            assert await other.text(stream) == alone
    assert machine.journal(0) == {} and machine.computed == LENGTH
    assert [(row[0], row[1], row[3]) for row in machine.usage()] == [(stream, "length", LENGTH)]


async def test_the_store_of_the_latest_adopter_has_an_answer_after_the_end_of_all(machine: Machine, alone: str):
    """No engine knows it, and two stores do."""
    async with machine.process() as process:
        stream = await process.begin()
    async with machine.process(1) as other:
        await adopted(other, stream)
    machine.replace_engine()
    assert machine.journal(0) == machine.journal(1) == {stream: False}
    async with machine.process() as process, machine.process(1) as other:
        await process.restored()
        assert process.service.registry.get_any_owner(stream) is None
        assert await (await other.restored()).text(stream) == alone
    assert machine.journal(0) == {} and machine.journal(1) == {stream: True}
    assert [row[0] for row in machine.usage()] == [stream]


@pytest.mark.parametrize(
    ("path", "body"), [(RESPONSES, STORED), (CHAT, BODY | {"store": True})], ids=["response", "chat"]
)
async def test_the_adopter_of_a_stored_answer_has_its_record(machine: Machine, path: str, body: dict[str, Any]):
    """The process that had it drops its own, which has no end."""
    async with machine.process() as process:
        posting = asyncio.create_task(process.http.post(path, json=body, headers={"X-Carousel-Resume": "60"}))
        await until(lambda: any(each.completion_tokens >= 5 for each in process.service.registry.live()))
        stream = process.service.registry.live()[0].log.id
        posting.cancel()
        await asyncio.wait((posting,))
    record = f"resp_{stream}" if path == RESPONSES else f"chatcmpl-{stream}"
    assert machine.records(0) == {record: False}
    async with machine.process(1) as other:
        await adopted(other, stream)
        async with machine.process() as process:
            await process.restored()
            await until(lambda: not other.service.registry.live())
            assert (await other.http.get(f"{path}/{record}")).status_code == 200
    assert machine.records(0) == {} and machine.records(1) == {record: True}


async def test_a_response_whose_context_another_process_lacks_is_left_to_its_store(machine: Machine):
    """It is computed again from there, and stored with what it continues."""
    async with machine.process() as process:
        first = (await process.http.post(RESPONSES, json=STORED | {"background": False, "max_output_tokens": 3})).json()
        body = STORED | {"previous_response_id": first["id"]}
        second = (await process.http.post(RESPONSES, json=body)).json()["id"]
        stream = second.removeprefix("resp_")
        await until(lambda: any(each.completion_tokens >= 5 for each in process.service.registry.live()))
        owner = process.service.registry.live()[0].log.owner
    async with machine.process(1, Siblings(1, [1, 2])) as other:
        assert other.service.adopt is not None
        with pytest.raises(ApiError, match="retry until it is reached"):
            await other.service.adopt(stream, owner)
        assert not other.service.registry.live()
        async with machine.process() as process:
            await process.restored()
            assert [each.log.id for each in process.service.registry.live()] == [stream]
            await until(lambda: not process.service.registry.live())
            answer = (await process.http.get(f"{RESPONSES}/{second}")).json()
    assert answer["previous_response_id"] == first["id"] and answer["usage"]["output_tokens"] == LENGTH
    assert machine.records(0) == {first["id"]: True, second: True} and machine.records(1) == {}


async def test_an_answer_is_not_adopted_by_the_process_that_restores_it(machine: Machine, alone: str):
    """A request for it waits until it is restored."""
    async with machine.process() as process:
        stream = await process.begin()
    async with machine.process() as process:
        process.service.registry.awaited.add(stream)
        for path in ("streams", "requests"):
            answer = await process.http.get(f"/v1/{path}/{stream}")
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert await (await process.restored()).text(stream) == alone
    assert machine.computed == LENGTH


CHOICES = {"n": 3, "max_tokens": 150, "stop": ["\u20ac", "zz", "q"], "temperature": 1.0, "seed": 4}


@pytest.mark.parametrize("more", [CHOICES, {"logprobs": True, "max_tokens": 200}, CHOICES | {"logprobs": True}])
async def test_records_that_a_process_has_written_are_those_of_the_adopter(machine: Machine, more: dict[str, Any]):
    """Those of choices that had ended too, each with its number; so are those of the next adopter."""
    machine.engine.engine.info = replace(machine.engine.engine.info, is_exact=True)
    async with machine.process() as process:
        stream = await process.begin(120, **more)
        before = process.records(stream)
    for index, kept in ((1, machine.file(0)), (0, machine.file(1))):
        kept.unlink()  # so that only the engine knows it
        async with machine.process(index) as other:
            await adopted(other, stream)
            await other.more(stream, len(before))
            assert other.records(stream)[: len(before)] == before
            before = other.records(stream)
            if index == 0:
                await until(lambda: not other.service.registry.live())
                assert other.records(stream)[: len(before)] == before
                assert other.records(stream)[-1].reason in ("stop", "length")  # type: ignore[union-attr]
    assert len([row for row in machine.usage() if row[0] == stream]) == 1


@pytest.mark.parametrize("has_engine", [True, False])
async def test_choices_go_on_at_a_process_that_is_started_again(machine: Machine, has_engine: bool):
    """In the engine, where none is computed twice, or from the store. Then another process adopts them."""
    async with machine.process() as process:
        stream = await process.begin(120, **CHOICES)
        before = process.records(stream)
    if not has_engine:
        machine.replace_engine()
    async with machine.process() as process:
        await process.restored()
        assert process.records(stream)[: len(before)] == before
        await process.more(stream, len(before))
        before = process.records(stream)
    async with machine.process(1) as other:
        await adopted(other, stream)
        await until(lambda: not other.service.registry.live())
        assert other.records(stream)[: len(before)] == before
    assert not has_engine or machine.computed <= 3 * 150
    assert len([row for row in machine.usage() if row[0] == stream]) == 1


class Clock:
    """Clock on which only questions to engines take time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


async def test_held_answers_have_one_time_of_waiting(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    """Not one each, so that new requests do not wait long."""
    async with machine.process() as process:
        begun = [(await process.http.post(RESPONSES, json=STORED)).json()["id"] for _ in range(5)]
    asked: list[float] = []
    clock, ask = Clock(), Adoptions.adopt

    async def adopt(self: Adoptions, name: str, cache_salt: str, seconds: float = 0.0) -> AdoptedRequest | None:
        asked.append(seconds)
        clock.now += seconds
        return await ask(self, name, cache_salt)

    async with machine.process(1) as other:
        for response in begun:
            await adopted(other, response.removeprefix("resp_"))
        monkeypatch.setattr(Adoptions, "adopt", adopt)
        monkeypatch.setattr("app.recovery.time", clock)
        async with machine.process(reads_other=False) as process:
            await process.restored()
            assert not process.service.registry.live()
    assert asked == [0.0] * 5 + [HELD_SECONDS] + [0.0] * 4
