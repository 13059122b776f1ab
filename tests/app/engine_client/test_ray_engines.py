"""Engines in the directory of a Ray cluster, whose child process is a program of the test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from app.engine_client.ray_engines import MAX_LIST_SECONDS, RayEngines
from app.engine_client.tcp_engine import EngineAccess
from app.remote_settings import RayService
from tests.app.engine_client.test_tcp_engine import until
from tests.limits import HANG_SECONDS

SERVICE = RayService("10.0.0.2:6379", "fast")
REPORT = '{"token": "t", "engines": ["10.0.0.3:40001", "10.0.0.4:40001"]}'
NAMES = ["engine 10.0.0.3:40001", "engine 10.0.0.4:40001"]
WAIT = "; time.sleep(3600)"


@pytest.fixture
def made() -> Iterator[list[RayEngines]]:
    """Yield a list of sources that are closed at the end."""
    sources: list[RayEngines] = []
    yield sources
    for source in sources:
        source.close()


def source_of(made: list[RayEngines], code: str, access: EngineAccess | None = None, **more) -> RayEngines:
    command = [sys.executable, "-c", f"import sys, time; say = lambda text: print(text, flush=True); {code}"]
    made.append(RayEngines(SERVICE, access or EngineAccess(""), command, **more))
    return made[-1]


async def test_engines_and_their_token_come_from_the_last_report(made: list[RayEngines]):
    """Lines of other kinds are skipped, and the program is told the cluster and the service."""
    access = EngineAccess("")
    code = f"assert sys.argv[1:] == ['10.0.0.2:6379', 'fast']; say('connected'); say({REPORT!r}){WAIT}"
    source = source_of(made, code, access)
    assert list(await source.engines()) == NAMES and access.token == "t"


async def test_without_a_recent_report_the_engines_are_not_known(made: list[RayEngines]):
    """A program that hangs reports nothing about engines that come and go."""
    now = 0.0
    source = source_of(made, f"say({REPORT!r}){WAIT}", clock=lambda: now)
    await source.engines()
    now = MAX_LIST_SECONDS + 1
    with pytest.raises(OSError, match=r"ray://10\.0\.0\.2:6379/fast: the last answer of the directory is 11 s old"):
        await source.engines()


async def test_a_problem_is_the_reason_and_the_program_is_started_again(made: list[RayEngines]):
    """Its end is no end of the server."""
    source = source_of(made, 'say(\'{"problem": "no cluster"}\')')
    processes = set()

    async def has_failed_twice() -> None:
        while len(processes) < 2:
            with pytest.raises(OSError, match="fast: no cluster"):
                await source.engines()
            assert source._process is not None
            processes.add(source._process.pid)
            await asyncio.to_thread(source._process.wait)

    await asyncio.wait_for(has_failed_twice(), HANG_SECONDS)


async def test_a_program_that_ends_without_a_report_is_a_failure(made: list[RayEngines]):
    """It is not waited for."""
    source = source_of(made, "pass")
    with pytest.raises(OSError, match="there is no answer of the directory yet"):
        await source.engines()


async def test_the_program_ends_with_the_source(made: list[RayEngines]):
    """At once."""
    source = source_of(made, f"say({REPORT!r}){WAIT}")
    await source.engines()
    process = source._process
    assert process is not None and process.poll() is None
    source.close()
    await until(lambda: process.poll() is not None)
