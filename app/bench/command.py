"""`carousel bench`: from options to a run to a report."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from app import __version__
from app.bench import report
from app.bench.measure import Record, Slo
from app.bench.options import Options
from app.bench.page import page
from app.bench.report import Run
from app.bench.traffic import Job, Served, Traffic, jobs, look
from app.settings import SettingsError

INTERRUPTED = 130


def bench(options: Options) -> tuple[str, int]:
    """Measure and write the report. Returns what to tell, and the exit status: 0 when something was answered, 1 when
    nothing was, 130 when it was stopped. Raises `NoServer` and `SettingsError` (a url that is none, a folder that
    cannot be written)."""
    run, folder = asyncio.run(_measure(options))
    told = write(run, folder)
    status = INTERRUPTED if run.interrupted else 0 if told["all"]["done"] else 1
    stopped = "Stopped. " if run.interrupted else ""
    return f"{stopped}{report.text(told)}\n\nThe report is in {folder / 'report.html'}", status


async def _measure(options: Options) -> tuple[Run, Path]:
    origin = _origin()  # before the load of our own
    key = options.api_key or next(iter(options.tenant_keys.values()), None)
    urls = {"a": options.url} | ({} if options.url_b is None else {"b": options.url_b})
    servers = {name: await look(url, options.model, key) for name, url in urls.items()}
    coming = jobs(options, servers)
    folder = _folder(options)
    records, interrupted = await _drive(options, servers, coming)
    run = Run(
        origin=origin,
        options=options.view,
        servers={name: served.view for name, served in servers.items()},
        records=records,
        slo=Slo(options.slo_ttft, options.slo_itl),
        seed=options.seed,
        interrupted=interrupted,
    )
    return run, folder


async def _drive(options: Options, servers: dict[str, Served], coming: Iterator[Job]) -> tuple[list[Record], bool]:
    """The records, and whether Ctrl-C cut it short; a second Ctrl-C ends the process."""
    traffic, loop = Traffic(servers, options.key_of, options.max_concurrency), asyncio.get_running_loop()
    gc.collect()
    gc.freeze()  # what is loaded stays: the collector need not walk through it while answers are timed
    with tqdm(total=options.requests, unit=" requests", disable=None, smoothing=0.05) as bar:
        driving = asyncio.create_task(traffic.drive(coming, lambda record: bar.update()))
        loop.add_signal_handler(signal.SIGINT, driving.cancel)
        try:
            with suppress(asyncio.CancelledError):
                await driving
        finally:
            loop.remove_signal_handler(signal.SIGINT)
    return traffic.records, driving.cancelled()


def write(run: Run, folder: Path) -> dict[str, Any]:
    """The three files; returns the summary. Raises `OSError`."""
    told = run.summary()
    lines = (json.dumps(asdict(record)) for record in sorted(run.records, key=lambda record: record.number))
    (folder / "requests.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps(told, indent=1) + "\n")
    (folder / "report.html").write_text(page(run, told), encoding="utf-8")
    return told


def _folder(options: Options) -> Path:
    now = datetime.now().astimezone()
    folder = options.out or Path(f"bench-{options.workload}-{now:%Y%m%d-%H%M%S}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requests.jsonl").touch()  # better to hear it now than after an hour
    except OSError as error:
        raise SettingsError(f"--out {folder} cannot be written: {error.strerror}") from None
    return folder


def _origin() -> dict[str, Any]:
    """What a reader needs to judge a figure. Of this machine: the client's."""
    return {
        "when": datetime.now().astimezone().isoformat(timespec="seconds"),
        "carousel": __version__,
        "python": platform.python_version(),
        "client": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load_before": round(os.getloadavg()[0], 2),
    }
