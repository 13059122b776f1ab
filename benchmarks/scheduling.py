"""What people, bulk work and tenants get from each policy, on one engine.

    python -m benchmarks.scheduling live        # the mixed load on a real server, policies interleaved
    python -m benchmarks.scheduling tenants     # one tenant floods, the other asks now and then
    python -m benchmarks.scheduling overload    # ten times more than fits: how soon is who told to come again
    python -m benchmarks.scheduling check       # the simulator against the live engine
    python -m benchmarks.scheduling million     # every policy through a million simulated requests, and a plot

`live`: people come as a Poisson process, first on a server that has nothing else to do, then with a backlog that keeps
every slot taken; bulk work alone is measured too. What people took of the machine is its busy time while they were
alone on it. Every figure is a ratio inside one run; in `live` and `tenants` all servers are up and take turns
(`windows.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import shlex
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from app.bench.workloads import WORKLOADS, Asked, Scale, prompt_ids, workload
from app.tenants import TIERS
from benchmarks.peers.model import SHAPES, make_model
from benchmarks.results import FOLDER, save, spread
from benchmarks.serving import Serving
from benchmarks.sse_client import stream
from benchmarks.tally import Tally, percentile
from benchmarks.windows import PATIENCE, QUIET, Turns, Window, by_chance, figures, over, stolen, stolen_since
from engine.config import EngineConfig
from engine.engine import Engine
from engine.scheduling.batch import Batch
from engine.simulation import StepCost, simulate
from engine.types import Event, Request, SamplingParams, ServiceClass

SLOTS, CONTEXT = 8, 512
PERSON = {"prompt": 128, "answer": 32}
BULK = {"prompt": 48, "answer": 96}
MODELS = Path.home() / ".cache/carousel/peers/models"
SHAPE = "llama-12m"  # random weights, every token of which is a word: an event is a token
PEOPLE_PER_SECOND = 3.0
LOADS = {"people": (True, 0), "bulk": (False, 3 * SLOTS), "both": (True, 3 * SLOTS)}  # whether people come, and callers
ROWS: dict[str, tuple[str, ...]] = {
    "carousel": (),
    "fcfs": ("--scheduling-policy", "orca"),
    "vllm priority": ("--scheduling-policy", "vllm"),
    "sglang priority": ("--scheduling-policy", "sglang"),
    "static": ("--batching", "static", "--scheduling-policy", "orca"),
}


def model() -> str:
    """The folder of the model, made by the first run."""
    make_model(MODELS / SHAPE, SHAPE)
    return str(MODELS / SHAPE)


# Live -------------------------------------------------------------------------------------------------------------


def body(kind: str, number: int, prompt: int, answer: int, vocabulary: int) -> dict[str, Any]:
    """A request that nobody else makes, in token ids."""
    ids = prompt_ids(Asked(0.0, prompt, answer), hash((kind == "bulk", number)) & 0xFFFFFFFF, vocabulary)
    return {
        "prompt": ids,
        "max_tokens": answer,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "service_tier": "flex" if kind == "bulk" else "priority",
    }


class Live:
    """One server and its clients."""

    def __init__(self, server: Serving, vocabulary: int) -> None:
        self.server = server
        self.vocabulary = vocabulary
        self.number = 0
        self.bulk_tokens = 0
        self.stopping = False

    def books(self) -> tuple[float, float]:
        """Busy seconds, and tokens generated for bulk work, as the server counts them."""
        with urllib.request.urlopen(f"http://{self.server.host}:{self.server.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        busy = next(line for line in lines if line.startswith("carousel:busy_seconds_total"))
        bulk = [line for line in lines if line.startswith("vllm:generation_tokens_total") and '"batch"' in line]
        return float(busy.rsplit(" ", 1)[1]), sum(float(line.rsplit(" ", 1)[1]) for line in bulk)

    async def ask(self, kind: str, shape: dict[str, int]) -> list[float]:
        """Moments of a request's tokens, with that of its sending first."""
        self.number += 1
        asked = body(kind, self.number, shape["prompt"], shape["answer"], self.vocabulary)
        began = time.perf_counter()
        moments = await stream(self.server.host, self.server.port, "/v1/completions", asked)
        return [began, *moments[: shape["answer"]]]

    async def bulk(self) -> None:
        """One caller of bulk work: the next request follows the last."""
        while not self.stopping:
            self.number += 1
            asked = body("bulk", self.number, BULK["prompt"], BULK["answer"], self.vocabulary)
            await stream(self.server.host, self.server.port, "/v1/completions", asked)

    async def people(self, seconds: float, seed: int) -> list[list[float]]:
        """The moments of those who come in `seconds`."""
        dice = random.Random(seed)
        tasks, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            tasks.append(asyncio.create_task(self.ask("person", PERSON)))
            await asyncio.sleep(dice.expovariate(PEOPLE_PER_SECOND))
        return await asyncio.gather(*tasks)

    async def window(self, seconds: float, *, people: bool, bulk: int, seed: int) -> Window:
        """`seconds` of people, of `bulk` callers of bulk work, or of both."""
        self.stopping = False
        callers = [asyncio.create_task(self.bulk()) for _ in range(bulk)]
        if bulk:
            await asyncio.sleep(2.0)  # until every slot is taken
        before, began, had = await asyncio.to_thread(self.books), time.perf_counter(), stolen()
        answers: list[list[float]] = []
        if people:
            answers = await self.people(seconds, seed)
        else:
            await asyncio.sleep(seconds)
        lost = stolen_since(had)
        after, took = await asyncio.to_thread(self.books), time.perf_counter() - began
        self.stopping = True
        await asyncio.gather(*callers)
        busy, tokens = ((now - then) / took for now, then in zip(after, before, strict=True))
        return felt(answers, lost, busy, tokens)


def felt(answers: list[list[float]], lost: float, busy: float = 0.0, bulk: float = 0.0) -> Window:
    """Of requests' moments, that of their sending first."""
    return Window(
        firsts=[a[1] - a[0] for a in answers],
        gaps=[b - a for moments in answers for a, b in pairwise(moments[1:])],
        whole=[a[-1] - a[0] for a in answers],
        stolen=lost,
        busy=busy,
        bulk=bulk,
    )


def live(options: argparse.Namespace) -> None:
    """People alone, bulk work alone, and both, for each policy."""
    serve = [options.model or model(), *options.serve, "--max-num-seqs", str(SLOTS), "--max-model-len", str(CONTEXT)]
    names = options.policies.split(",")
    turns = Turns([f"{name}, {part}" for name in names for part in LOADS])
    with ExitStack() as stack:
        clients = {name: Live(stack.enter_context(Serving(*serve, *ROWS[name])), options.vocabulary) for name in names}

        async def measure(part: str, seed: int) -> Window:
            name, load = part.split(", ")
            people, bulk = LOADS[load]
            return await clients[name].window(options.seconds, people=people, bulk=bulk, seed=seed)

        async def measured() -> None:
            for client in clients.values():  # so that nobody counted is the first
                await client.window(2.0, people=True, bulk=SLOTS, seed=0)
            await turns.take(measure, options.runs)

        asyncio.run(measured())
    summary: dict[str, Any] = {}
    for kind, windows in turns.kinds():
        summary[kind] = {part: figures(of) for part, of in windows.items()}
        for name in names:
            ratios = by_chance(_beside, *(windows[f"{name}, {load}"] for load in LOADS))
            summary[kind][f"{name}, both over alone"] = ratios
            shown = (f"{key} {r['ratio']:.2f} ({r['from']:.2f} to {r['to']:.2f})" for key, r in ratios.items())
            print(f"{kind}, {name}: {', '.join(shown)}")
    save("scheduling_live", {**vars(options), "slots": SLOTS, "person": PERSON, "bulk": BULK}, turns.rows, summary)


def _beside(people: list[Window], bulk: list[Window], both: list[Window]) -> dict[str, float]:
    """What people feel beside bulk work over what they do alone; and what bulk work gets beside them, over what it does
    alone in the time that they leave."""
    left = figures(bulk)["bulk"] * (1 - figures(people)["busy"])
    return over(both, people) | {"bulk": figures(both)["bulk"] / left}


# Tenants ----------------------------------------------------------------------------------------------------------

CALM, FLOOD = "calm", "flood"
HALF, BESIDE, FIRST_COME = "on its half, the other half flooded", "beside a flood", "beside a flood, fcfs"


async def _tenant_window(calm: Serving, flooded: Serving | None, options: argparse.Namespace, seed: int) -> Window:
    """The calm tenant asks one server as a Poisson process; 32 callers of the other flood that one, or another."""
    dice, stopping, number = random.Random(seed), False, seed * 1_000_000

    async def ask(server: Serving, key: str, shape: dict[str, int]) -> list[float]:
        nonlocal number
        number += 1
        asked = body("person", number, shape["prompt"], shape["answer"], options.vocabulary) | {
            "service_tier": "default"
        }
        began = time.perf_counter()
        moments = await stream(server.host, server.port, "/v1/completions", asked, key=key)
        return [began, *moments[: shape["answer"]]]

    async def flooding(server: Serving) -> None:
        while not stopping:
            await ask(server, FLOOD, BULK)

    callers = [asyncio.create_task(flooding(flooded)) for _ in range(4 * SLOTS)] if flooded else []
    await asyncio.gather(*(ask(calm, CALM, PERSON) for _ in range(4)))  # so that nobody counted is the first
    await asyncio.sleep(2.0)
    tasks, end, had = [], time.perf_counter() + options.seconds, stolen()
    while time.perf_counter() < end:
        tasks.append(asyncio.create_task(ask(calm, CALM, PERSON)))
        await asyncio.sleep(dice.expovariate(PEOPLE_PER_SECOND))
    answers = await asyncio.gather(*tasks)
    lost = stolen_since(had)
    stopping = True
    await asyncio.gather(*callers)
    return felt(answers, lost)


def tenants(options: argparse.Namespace) -> None:
    """What the calm tenant feels beside the flood, over its fair share: half of the slots and of the cores, on which it
    is alone. The flood then has the other half, so that the machine is as busy in both; beside an idle half it is
    measured too."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    serve = [options.model or model(), *options.serve, "--max-model-len", str(CONTEXT), "--api-key", f"{CALM},{FLOOD}"]
    with ExitStack() as stack:

        def serving(slots: int, on: list[int], *more: str) -> Serving:
            return stack.enter_context(Serving(*serve, "--max-num-seqs", str(slots), *more, cores=set(on)))

        own, other = serving(SLOTS // 2, cores[:half]), serving(SLOTS // 2, cores[-half:])
        whole, first_come = serving(SLOTS, cores), serving(SLOTS, cores, *ROWS["fcfs"])
        parts = {
            "on its half, the other half idle": (own, None),
            HALF: (own, other),
            BESIDE: (whole, whole),
            FIRST_COME: (first_come, first_come),
        }
        turns = Turns(list(parts))
        asyncio.run(turns.take(lambda part, seed: _tenant_window(*parts[part], options, seed), options.runs))
    summary: dict[str, Any] = {}
    for kind, windows in turns.kinds():
        summary[kind] = {part: figures(of) for part, of in windows.items()}
        for name in (BESIDE, FIRST_COME):
            summary[kind][f"{name}, over {HALF}"] = by_chance(over, windows[name], windows[HALF])
    print(json.dumps(summary, indent=1))
    save("scheduling_tenants", vars(options), turns.rows, summary)


# Overload ---------------------------------------------------------------------------------------------------------


async def _knock(host: str, port: int, asked: dict[str, Any]) -> tuple[int, float, bool]:
    """Status of a request, seconds until it was known, and whether it says when to come again."""
    payload = json.dumps(asked).encode()
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode() + payload)
    headers = await reader.readuntil(b"\r\n\r\n")
    seconds = time.perf_counter() - began
    while await reader.read(1 << 16):
        pass
    writer.close()
    return int(headers.split(b" ", 2)[1]), seconds, b"retry-after:" in headers.lower()


async def _overloaded(server: Serving, options: argparse.Namespace, rate: float, seed: int) -> dict[str, Any]:
    dice, knocks, number = random.Random(seed), [], seed * 1_000_000
    end = time.perf_counter() + options.seconds
    due = time.perf_counter()
    while due < end:
        number += 1
        asked = body("bulk", number, BULK["prompt"], BULK["answer"], options.vocabulary) | {"service_tier": "default"}
        knocks.append(asyncio.create_task(_knock(server.host, server.port, asked)))
        due += dice.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    answers = await asyncio.gather(*knocks)
    refused = [seconds for status, seconds, _ in answers if status in (429, 503)]
    return {
        "rate": rate,
        "asked": len(answers),
        "served": sum(status == 200 for status, _, _ in answers),
        "refused": len(refused),
        "refused_without_retry_after": sum(s in (429, 503) and not says for s, _, says in answers),
        "other": sum(status not in (200, 429, 503) for status, _, _ in answers),
        "refusal_ms": {
            "p50": 1000 * percentile(refused, 0.5),
            "p99": 1000 * percentile(refused, 0.99),
            "max": 1000 * max(refused),
        },
    }


def overload(options: argparse.Namespace) -> None:
    """What is served at most is measured first; then ten times as much is asked for."""
    rows = []
    serve = [
        options.model or model(),
        *options.serve,
        "--max-num-seqs",
        str(SLOTS),
        "--max-model-len",
        str(CONTEXT),
        "--max-queue",
        "32",
    ]
    for run in range(options.runs):
        with Serving(*serve) as server:
            client = Live(server, options.vocabulary)
            alone = asyncio.run(client.window(5.0, people=False, bulk=2 * SLOTS, seed=run))
            capacity = alone.bulk / BULK["answer"]
            rows.append(
                {"run": run, "capacity": capacity} | asyncio.run(_overloaded(server, options, 10 * capacity, run))
            )
        print(rows[-1], flush=True)
    summary = {key: spread([r["refusal_ms"][key] for r in rows]) for key in ("p50", "p99", "max")}
    summary["served over capacity"] = spread([r["served"] / r["capacity"] / options.seconds for r in rows])
    save("scheduling_overload", vars(options), rows, summary)


# Simulated --------------------------------------------------------------------------------------------------------

GIVEN = StepCost(step=0.008, decode=0.00002, prompt=0.00005, context=2e-8, swapped_page=0.00002)  # of a GPU, roughly


def simulated(
    name: str, options: dict[str, Any], requests: int, scale: Scale, cost: StepCost, slots: int, pages: int
) -> dict[str, Any]:
    """One policy through one workload."""
    config = EngineConfig(
        model="none", max_num_seqs=slots, enable_prefix_caching=name == "prefixes", **options
    ).validate()
    tally = Tally()

    def arrivals():
        for number, asked in enumerate(workload(name, requests, scale)):
            prompt = prompt_ids(asked, number, 32_000) if asked.prefix is not None else [5] * asked.prompt_tokens
            sampling = SamplingParams(max_tokens=asked.output_tokens)
            yield tally.arrive(
                asked.at,
                Request(
                    id=str(number),
                    prompt=tuple(prompt),
                    sampling=sampling,
                    service_class=TIERS[asked.tier],
                    tenant=asked.tenant,
                ),
            )

    began = time.perf_counter()
    engine = simulate(config, cost, arrivals(), tally.take, num_pages=pages, host_pages=16 * pages)
    busy = engine.load().busy_seconds
    found = tally.figures(max(busy, 1e-9)) | {"took": time.perf_counter() - began}
    counters = engine.load().counters
    found["occupancy"] = counters.generated_tokens / counters.steps / slots  # slots that got a token in a mean step
    found["preemptions"] = sum(sum(by_class) for by_class in counters.preemptions)
    found["recomputed_tokens"] = counters.recomputed_tokens
    return found


# The simulator against the live engine ----------------------------------------------------------------------------

CHECKED, RATIOS = "uniform,sharegpt,bursts,mixed", ("tokens_per_second", "ttft_p50", "ttft_p99")
CHECK_SCALE = Scale(rate=6.0, prompt=64, output=48, longest=256)


def requests_of(name: str, count: int, scale: Scale, seed: int) -> list[tuple[float, Request]]:
    """A workload with prompts that nobody else has."""
    asked = [(number, one) for number, one in enumerate(workload(name, count, scale, seed))]
    return [
        (
            one.at,
            Request(
                id=str(number),
                prompt=tuple(prompt_ids(one, 7919 * seed + number, 4096)),
                sampling=SamplingParams(max_tokens=one.output_tokens, temperature=0.0),
                service_class=TIERS[one.tier],
                tenant=one.tenant,
            ),
        )
        for number, one in asked
    ]


def run_live(engine: Engine, arrivals: list[tuple[float, Request]]) -> tuple[Tally, list[list[float]], float]:
    """Serve `arrivals` at their times -> what came of it, each busy step with what is done around it (a number for each
    field of `StepCost`, and its seconds), and the seconds from the first arrival to the last token."""
    tally, steps, batches, clock = Tally(), [], [], time.perf_counter
    began, at, ended = clock(), 0, 0.0
    observe = engine.scheduler.observe

    def note(batch: Batch, seconds: float) -> None:
        observe(batch, seconds)
        batches.append(batch)

    with mock.patch.object(engine.scheduler, "observe", note):
        while at < len(arrivals) or engine.has_work:
            started, woken = clock(), not engine.has_work
            if woken:  # what it takes to be awake counts as well
                started = began + arrivals[at][0]
                time.sleep(max(0.0, started - clock()))
            while at < len(arrivals) and arrivals[at][0] <= clock() - began:
                engine.submit(tally.arrive(*arrivals[at])[1])
                at += 1
            contexts = {sequence.slot: sequence.num_computed for sequence in engine.scheduler.running}
            events = engine.step()
            ended = clock()
            tally.take(events, ended - began)
            for batch in batches:
                steps.append([*_work(batch, contexts), woken, ended - started])
            batches.clear()
    return tally, steps, ended - began


def _work(batch: Batch, contexts: dict[int, int]) -> list[float]:
    """What a step did, in the order of the fields of `StepCost`."""
    return [
        1.0,
        len(batch.decodes),
        sum(chunk.length for chunk in batch.chunks),
        len(batch.chunks),
        sum(contexts.get(slot, 0) for slot in batch.decodes),
        len(batch.swap_in) + len(batch.swap_out),
    ]


def fit(steps: list[list[float]]) -> StepCost:
    """Least absolute deviations, as a step that lost its core for 50 ms says nothing of what steps cost; found by least
    squares over and over, a step counting the less the farther off it is. Costs are not negative: what comes out so is
    left out, and the rest fitted again."""
    import numpy as np

    table, seconds = np.array(steps)[:, :-1], np.array(steps)[:, -1]
    kept = [column for column in range(table.shape[1]) if table[:, column].any()]
    weight = np.ones(len(seconds))
    for _ in range(50):
        found, *_ = np.linalg.lstsq(table[:, kept] * weight[:, None], seconds * weight, rcond=None)
        if (found < 0).any():
            kept.pop(int(found.argmin()))
            continue
        weight = np.abs(seconds - table[:, kept] @ found).clip(min=1e-6) ** -0.5
    by_column = dict(zip(kept, map(float, found), strict=True))
    return StepCost(*(by_column.get(column, 0.0) for column in range(table.shape[1])))


def check(options: argparse.Namespace) -> None:
    """Costs are fitted to one seed of a workload, and foretell another; both while the host leaves us our cores, if it
    does in a few tries."""
    from engine.build import build_engine

    config = EngineConfig(model=options.model or model(), max_num_seqs=SLOTS, max_model_len=CONTEXT).validate()
    engine = build_engine(config, lambda *_: None)
    gc.collect()
    gc.freeze()  # as the engine's process does: the collector's walk through all of torch is no step's cost
    info, scheduler = engine.info, engine.scheduler
    scale = replace(CHECK_SCALE, rate=options.rate)
    rows: list[dict[str, Any]] = []
    for run in range(options.runs):
        for name in options.workloads.split(","):
            arrivals = requests_of(name, options.requests, scale, 2 * run + 1)
            tries, lost = 0, 1.0
            while lost > QUIET and tries < PATIENCE:
                tries, had = tries + 1, stolen()
                _, steps, _ = run_live(engine, requests_of(name, options.requests, scale, 2 * run))
                live_tally, _, took = run_live(engine, arrivals)
                lost = stolen_since(had)
            cost = fit(steps)
            tally = Tally()
            times: list[float] = []

            def take(events: list[Event], now: float, tally: Tally = tally, times: list[float] = times) -> None:
                tally.take(events, now)
                times[:] = [now]

            simulate(
                config,
                cost,
                (tally.arrive(*arrival) for arrival in arrivals),
                take,
                num_pages=info.num_pages,
                host_pages=scheduler.memory.host.total,
                max_len=info.max_model_len,
                costs=scheduler.policy.costs,
            )
            row: dict[str, Any] = {"run": run, "workload": name, "tries": tries, "stolen": lost, "cost": asdict(cost)}
            for kind, found, seconds in (("live", live_tally, took), ("simulated", tally, times[0])):
                row[kind] = {"tokens_per_second": found.tokens / seconds, **found.all().figures()}
            row["ratio"] = {key: row["simulated"][key] / row["live"][key] for key in RATIOS}
            rows.append(row)
            print(json.dumps({k: v for k, v in row.items() if k != "cost"}), flush=True)
    summary = {
        name: {key: spread([r["ratio"][key] for r in rows if r["workload"] == name]) for key in RATIOS}
        for name in options.workloads.split(",")
    }
    print(json.dumps(summary, indent=1))
    save("scheduling_check", vars(options) | {"slots": SLOTS}, rows, summary)


# A million ---------------------------------------------------------------------------------------------------------

MILLION: dict[str, dict[str, Any]] = {
    "carousel": {},  # what takes longest comes first, so that no core waits for the other at the end
    "fastserve": {"scheduling_policy": "fastserve"},
    "carousel, --stretch inf": {"stretch": float("inf")},
    "dynamic": {"scheduling_policy": "orca", "batching": "dynamic", "batch_timeout": 0.05},
    "static": {"scheduling_policy": "orca", "batching": "static"},
    **{policy: {"scheduling_policy": policy} for policy in ("orca", "vllm", "sglang")},
}


def _one_of_million(job: tuple[str, str, int, float]) -> dict[str, Any]:
    policy, name, requests, load = job
    gc.disable()  # nothing here refers to itself, and looking for what does takes a tenth of the time
    scale = Scale(rate=load, prompt=64, output=24, longest=256)
    row = simulated(name, MILLION[policy], requests, scale, GIVEN, slots=128, pages=1024)
    return {"policy": policy, "workload": name, "rate": load, **row}


def million(options: argparse.Namespace) -> None:
    """Each policy through `requests` simulated requests, on two processes, and a plot."""
    jobs = [(policy, options.workload, options.requests, options.rate) for policy in MILLION]
    began = time.perf_counter()
    rows = []
    with ProcessPoolExecutor(2) as pool:
        for row in pool.map(_one_of_million, jobs):
            rows.append(row)
            print(json.dumps(row), flush=True)
    took = time.perf_counter() - began
    print(f"{options.requests:,} requests through each of {len(MILLION)} policies in {took:.0f} s")
    save("scheduling_million", vars(options) | {"cost": asdict(GIVEN)}, rows, {"took": took})
    plot_million(rows, FOLDER / "scheduling_million.svg")


def plot_million(rows: list[dict[str, Any]], path: Path) -> None:
    """TTFT of each class and longest gaps, policy by policy."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    classes = [c.label for c in ServiceClass if any(c.label in r for r in rows)]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    shown = (("ttft_p50", "TTFT p50, ms"), ("ttft_p99", "TTFT p99, ms"), ("longest_gap_p99", "longest pause p99, ms"))
    width = 0.8 / len(classes)
    for axis, (key, title) in zip(axes, shown, strict=True):
        for index, name in enumerate(classes):
            heights = [r.get(name, {}).get(key, 0.0) for r in rows]
            axis.bar([i + width * index for i in range(len(rows))], heights, width, label=name)
        axis.set_xticks([i + 0.3 for i in range(len(rows))], [r["policy"] for r in rows], rotation=40, ha="right")
        axis.set_yscale("log")
        axis.set_title(title)
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in (("live", live), ("tenants", tenants), ("overload", overload)):
        command = commands.add_parser(name)
        command.add_argument("--runs", type=int, default=12, help="quiet windows of each part; of overload, servers")
        command.add_argument("--seconds", type=float, default=6.0)
        command.add_argument("--model", help=f"a folder; default: random weights of the shape {SHAPE}")
        command.add_argument("--vocabulary", type=int, default=SHAPES[SHAPE]["vocab_size"])
        command.add_argument("--policies", default=",".join(ROWS))
        command.add_argument("--serve", type=shlex.split, default=[], metavar="OPTIONS", help='of the server: "--x 1"')
        command.set_defaults(run=run)
    command = commands.add_parser("check")
    command.add_argument("--model", help=f"a folder; default: random weights of the shape {SHAPE}")
    command.add_argument("--runs", type=int, default=3)
    command.add_argument("--requests", type=int, default=150)
    command.add_argument("--rate", type=float, default=CHECK_SCALE.rate)
    command.add_argument("--workloads", default=CHECKED, help=f"of {', '.join(WORKLOADS)}")
    command.set_defaults(run=check)
    command = commands.add_parser("million")
    command.add_argument("--requests", type=int, default=1_000_000)
    command.add_argument("--workload", choices=sorted(WORKLOADS), default="mixed")
    command.add_argument("--rate", type=float, default=150.0)
    command.set_defaults(run=million)
    options = parser.parse_args()
    run = options.run
    del options.run
    run(options)


if __name__ == "__main__":
    main()
