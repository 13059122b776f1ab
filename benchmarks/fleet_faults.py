"""Effect on clients of faults of one of two engines, or of the network between them and the server.

32 clients follow chats, also as the page requests them, completions, messages and responses, plain, with formats and
with tools, and sessions of the realtime protocol. Once per round one engine has a fault at a random point:

    kill        kill -9; it is started again at once
    drain       SIGTERM; another one is started when it has ended, as in a rolling update
    stop        SIGSTOP, and SIGCONT when its requests have gone on elsewhere
    cut         nothing passes between it and the server, for some seconds; no connection ends
    cut to engine, cut to server    the same in one direction
    slow        everything between it and the server takes longer, for some seconds

Each answer is compared with the answer to the same request without a fault.

    python -m benchmarks.fleet_faults
    python -m benchmarks.fleet_faults --rounds 5 --only drain
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.api_deaths import row_of
from benchmarks.api_deaths_clients import KINDS, TOKENS, play, play_undisturbed
from benchmarks.fleet_processes import TwoEngines
from benchmarks.results import save, spread

STREAMS, SLOTS = 32, 16
WATCHDOG_SECONDS = 5.0
FAULT_SECONDS = 8.0  # of a network's fault: longer than the watchdog's time
DELAY_SECONDS = 0.3  # of a slow network
ROUNDS = {
    "kill": 200,
    "drain": 20,
    "stop": 10,
    "cut": 5,
    "cut to engine": 5,
    "cut to server": 5,
    "slow": 5,
}
ENGINE = ("--max-num-seqs", str(SLOTS), "--max-model-len", "512")
SERVER = ("--watchdog-timeout", f"{WATCHDOG_SECONDS:g}")


async def disturb(fleet: TwoEngines, fault: str, index: int) -> None:
    """Do something to one engine or its link, and undo it."""
    engine, link = fleet.engines[index], fleet.links[index]
    match fault:
        case "kill":
            engine.stop()
            await asyncio.to_thread(engine.start)
        case "drain":
            engine.signal(signal.SIGTERM)
            await asyncio.to_thread(engine.process.wait)
            await asyncio.to_thread(engine.start)
        case "stop":
            engine.signal(signal.SIGSTOP)
            await asyncio.sleep(FAULT_SECONDS)
            engine.signal(signal.SIGCONT)
        case "slow":
            link.seconds = DELAY_SECONDS
            await asyncio.sleep(FAULT_SECONDS)
            link.seconds = 0.0
        case _:
            link.cut(*([fault.removeprefix("cut ")] if fault != "cut" else []))
            await asyncio.sleep(FAULT_SECONDS)
            link.mend()


async def both_ready(fleet: TwoEngines) -> None:
    """Wait until both engines serve."""
    async with httpx.AsyncClient(base_url=fleet.server.url) as http:
        while True:
            engines = (await http.get("/health")).json().get("engines", [])
            if [engine["state"] for engine in engines] == ["ready", "ready"]:
                return
            await asyncio.sleep(0.05)


async def measure(fleet: TwoEngines, rounds: dict[str, int], streams: int = STREAMS) -> list[dict[str, Any]]:
    """Return a row for each fault."""
    await fleet.start()
    try:
        await both_ready(fleet)
        url, numbers = fleet.server.url, range(streams)
        undisturbed = await play_undisturbed(url, numbers)
        expected = [each.text for each in undisturbed]
        total = sum(len(each.moments) for each in undisturbed)
        chance = random.Random(1)
        rows: list[dict[str, Any]] = [{"fault": "none", **row_of(undisturbed, expected)}]
        for name, count in rounds.items():
            for number in range(count):
                await both_ready(fleet)
                share = 0.9 * chance.random()
                answers = await play(url, numbers, partial(disturb, fleet, name, number % 2), share * total)
                rows.append({"fault": name, "after": share, **row_of(answers, expected)})
                print(json.dumps(rows[-1]), flush=True)
        return rows
    finally:
        await fleet.stop()


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return figures by fault."""
    summary: dict[str, Any] = {}
    for name in dict.fromkeys(row["fault"] for row in rows):
        mine = [row for row in rows if row["fault"] == name]
        figures = {key: sum(row[key] for row in mine) for key in ("failed", "changed", "out_of_order", "ran_twice")}
        summary[name] = {"rounds": len(mine), **figures, "silence_seconds": spread([row["silence"] for row in mine])}
    return summary


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="of each fault; default: those of the committed results")
    parser.add_argument("--only", choices=list(ROUNDS), help="one fault")
    options = parser.parse_args()
    rounds = {name: options.rounds or count for name, count in ROUNDS.items() if options.only in (None, name)}
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(TwoEngines(Path(folder), ENGINE, SERVER), rounds))
    summary = summary_of(rows)
    print(json.dumps(summary, indent=1))
    settings = {"streams": STREAMS, "slots": SLOTS, "tokens": TOKENS, "kinds": KINDS, "watchdog": WATCHDOG_SECONDS}
    settings |= {"fault_seconds": FAULT_SECONDS, "delay_seconds": DELAY_SECONDS}
    print("Saved to", save("fleet_faults", settings, rows, summary))


if __name__ == "__main__":
    main()
