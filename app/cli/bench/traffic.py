"""Traffic of a workload to one or two servers: the body, time and destination of each request."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.cli.bench.client import Answer, ServerUnreachable, Target, request_json, resolve_address, stream_completion
from app.cli.bench.measure import Record
from app.cli.bench.options import Options
from app.cli.bench.workloads import WorkloadRequest, prompt_ids, workload

MIN_IDS = 16  # minimum number of token ids for prompts that differ

# Prompts are drawn from the token ids of this text, because no route reports a model's vocabulary or special tokens.
VOCABULARY_TEXT = """
Early in the morning, before the market opened, an old gardener walked along the river with a basket of apples, three
letters and a broken clock. He wanted to know why water runs downhill, how bridges carry heavy trains, and whether the
moon is really as far away as his brother used to say. The baker laughed: every question costs a penny, but answers are
free on Sunday! Meanwhile the children counted boats: one, two, three, four, five, six, seven, eight, nine, ten. Some
were painted green and white, others blue, black, yellow or red; most had small engines, a few still used sails.
Scientists measure temperature, pressure, distance and time; musicians hear rhythm, harmony and silence. A computer adds
numbers, stores pages of memory, and waits patiently for the next instruction. Please describe the following picture:
a table near the window, two wooden chairs, fresh bread, cheese, a glass jar full of honey, and a grey cat asleep under
yesterday's newspaper. If it rains tomorrow, we will stay at home, read stories about foxes, kings and distant islands,
then cook soup with carrots, onions and rice. Doctors, teachers, farmers, drivers, nurses, writers and engineers often
work late. Nobody could explain what happened during that strange winter of 1947, when snow covered the whole valley and
the postman came by sledge. "Never mind," said my grandmother, "spring always returns." Mathematics begins with simple
ideas: points, lines, circles, equal parts, sums and limits. History remembers wars, inventions, journeys, plagues and
great cities; geography draws mountains, deserts, forests, oceans and borders. Would you rather travel by train, bicycle
or horse? Buy cheap tickets early, check both addresses twice, bring warm clothes, and do not forget your passport. The
quick brown fox jumps over the lazy dog while twelve jolly wizards quiz Max about vexing boxes. Thank you very much for
listening; good night, sleep well, and remember to switch off the kitchen light before you lock the door.
"""


@dataclass(frozen=True, slots=True)
class TargetServer:
    """A server and the model that it serves."""

    target: Target
    model: str
    context: int | None  # maximum tokens of prompt and answer together; None if the server does not report it
    ids: tuple[int, ...]  # distinct token ids of plain text

    @property
    def view(self) -> dict[str, Any]:
        """Return the server as the report shows it."""
        return {"url": self.target.url, "model": self.model, "max_model_len": self.context}


@dataclass(frozen=True, slots=True)
class Job:
    """One request that is ready to be sent."""

    number: int
    server: str  # a or b
    requested: WorkloadRequest
    model: str
    ids: list[int]
    ban_eos: bool

    @property
    def body(self) -> dict[str, Any]:
        """Return the body of POST /v1/completions. Either way the answer has exactly the tokens of the workload."""
        return {
            "model": self.model,
            "prompt": self.ids,
            "max_tokens": self.requested.output_tokens,
            **({"min_tokens": self.requested.output_tokens} if self.ban_eos else {"ignore_eos": True}),
            "temperature": 0,
            "seed": self.number,
            "service_tier": self.requested.tier,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


async def query_server(url: str, name: str | None, key: str | None) -> TargetServer:
    """Return a server's model and tokenizer. Raises `ServerUnreachable`, and `SettingsError` for an invalid URL."""
    target = await resolve_address(Target.parse(url))
    listed = await request_json(target, "GET", "/v1/models", key=key)
    try:
        models = {str(model["id"]): model.get("max_model_len") for model in listed["data"]}
    except (KeyError, TypeError, AttributeError):
        raise ServerUnreachable(
            f"{target.url}/v1/models does not list models: is that the address of a server?"
        ) from None
    if not models or name not in (None, *models):
        description = "a model" if name is None else repr(name)
        raise ServerUnreachable(f"{target.url} does not serve {description}, but {', '.join(models) or 'nothing'}")
    model = next(iter(models)) if name is None else name
    tokenized = await request_json(target, "POST", "/tokenize", {"model": model, "prompt": VOCABULARY_TEXT}, key)
    tokens = tokenized.get("tokens") if isinstance(tokenized, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise ServerUnreachable(f"{target.url}/tokenize does not return token ids")
    context = models[model] if isinstance(models[model], int) else None
    return TargetServer(target, model, context, tuple(sorted(set(tokens))))


def jobs(options: Options, servers: Mapping[str, TargetServer]) -> Iterator[Job]:
    """Yield the workload's requests in order of time, cut to the models' context. Raises `ServerUnreachable` if two
    servers have too few token ids in common for the same prompts.
    """
    ids = sorted(set.intersection(*(set(served.ids) for served in servers.values())))
    if len(ids) < MIN_IDS:
        raise ServerUnreachable(f"the tokenizers have only {len(ids)} token ids of plain text in common")
    # Each workload and seed has its own prompts, so that none is in a prefix cache from an earlier run.
    random.Random(f"{options.workload} {options.seed}").shuffle(ids)
    contexts = [served.context for served in servers.values() if served.context is not None]
    longest = max(2, min(contexts)) if contexts else None
    return _jobs(options, servers, ids, longest)


def _jobs(options: Options, servers: Mapping[str, TargetServer], ids: list[int], longest: int | None) -> Iterator[Job]:
    for number, requested in enumerate(workload(options.workload, options.requests, options.scale, options.seed)):
        fitting = requested if longest is None else cut_to_context(requested, longest)
        server = "b" if goes_to_b(options.seed, number, options.share_b) else "a"
        prompt = [ids[at] for at in prompt_ids(fitting, number, len(ids))]
        yield Job(number, server, fitting, servers[server].model, prompt, options.ban_eos)


def cut_to_context(requested: WorkloadRequest, context: int) -> WorkloadRequest:
    """Return a request shortened to what a model of this context can answer."""
    prompt = min(requested.prompt_tokens, context - 1)
    return replace(requested, prompt_tokens=prompt, output_tokens=min(requested.output_tokens, context - prompt))


def goes_to_b(seed: int, number: int, share: float) -> bool:
    """Return whether B gets a request: at random, but reproducibly."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64


class Traffic:
    """Sender of jobs at their times. Keeps a record of each sent job."""

    def __init__(
        self, servers: Mapping[str, TargetServer], key_of: Callable[[str], str | None], limit: int | None = None
    ) -> None:
        """key_of: returns the key of a tenant. limit: maximum requests in flight."""
        self.records: list[Record] = []
        self._servers = servers
        self._key_of = key_of
        self._gate = None if limit is None else asyncio.Semaphore(limit)
        self._began = 0.0

    async def drive(self, coming: Iterator[Job], ended: Callable[[Record], object]) -> None:
        """Send all jobs and wait for the answers. On cancellation, running requests are abandoned and recorded too."""
        self._began = time.perf_counter()
        async with asyncio.TaskGroup() as sending:
            for job in coming:
                await asyncio.sleep(job.requested.at - self._clock())
                if self._gate is not None:
                    await self._gate.acquire()
                sending.create_task(self._send(job, ended))

    def _clock(self) -> float:
        return time.perf_counter() - self._began

    async def _send(self, job: Job, ended: Callable[[Record], object]) -> None:
        answer, sent = Answer(), self._clock()
        target, key = self._servers[job.server].target, self._key_of(job.requested.tenant)
        try:
            await stream_completion(target, job.body, key, self._clock, answer)
        finally:
            if self._gate is not None:
                self._gate.release()
            self.records.append(_record(job, sent, self._clock(), answer))
            ended(self.records[-1])


def _record(job: Job, sent: float, ended: float, answer: Answer) -> Record:
    return Record(
        number=job.number,
        server=job.server,
        tier=job.requested.tier,
        tenant=job.requested.tenant,
        requested_prompt=job.requested.prompt_tokens,
        requested_output=job.requested.output_tokens,
        due=_seconds(job.requested.at),
        sent=_seconds(sent),
        ended=_seconds(ended),
        outcome=answer.outcome,
        status=answer.status,
        error=answer.error,
        message=answer.message,
        retry_after=answer.retry_after,
        tokens=_all(answer.tokens),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        time_ms=answer.time_ms,
    )


def _all(moments: Sequence[float]) -> tuple[float, ...]:
    return tuple(_seconds(moment) for moment in moments)


def _seconds(moment: float) -> float:
    return round(moment, 6)
