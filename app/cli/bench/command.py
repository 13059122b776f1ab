"""`carousel bench`: run a workload and write its report."""

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
from app.cli.bench import report
from app.cli.bench.measure import Record, Slo
from app.cli.bench.options import Options
from app.cli.bench.page import page
from app.cli.bench.report import Run
from app.cli.bench.traffic import Job, TargetServer, Traffic, jobs, query_server
from app.settings import SettingsError

INTERRUPTED_STATUS = 130


def bench(options: Options) -> tuple[str, int]:
    """Measure and write the report. Return the text to print, and the exit status: 0 if something was answered, 1 if
    nothing was, 130 if it was interrupted. Raises `ServerUnreachable` and `SettingsError` (an invalid URL, a folder
    that cannot be written).
    """
    run, folder = asyncio.run(_measure(options))
    summary = write(run, folder)
    status = INTERRUPTED_STATUS if run.interrupted else 0 if summary["all"]["done"] else 1
    stopped = "Stopped. " if run.interrupted else ""
    return f"{stopped}{report.text(summary)}\n\nThe report is in {folder / 'report.html'}", status


async def _measure(options: Options) -> tuple[Run, Path]:
    origin = _origin()  # before this client adds load
    key = options.api_key or next(iter(options.tenant_keys.values()), None)
    urls = {"a": options.url} | ({} if options.url_b is None else {"b": options.url_b})
    servers = {name: await query_server(url, options.model, key) for name, url in urls.items()}
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


async def _drive(
    options: Options, servers: dict[str, TargetServer], coming: Iterator[Job]
) -> tuple[list[Record], bool]:
    """Return the records, and whether Ctrl-C stopped the run; a second Ctrl-C ends the process."""
    traffic, loop = Traffic(servers, options.key_of, options.max_concurrency), asyncio.get_running_loop()
    gc.collect()
    gc.freeze()  # loaded objects stay: the collector skips them while answers are timed
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
    """Write the three files and return the summary. Raises `OSError`."""
    summary = run.summary()
    lines = (json.dumps(asdict(record)) for record in sorted(run.records, key=lambda record: record.number))
    (folder / "requests.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    (folder / "report.html").write_text(page(run, summary), encoding="utf-8")
    return summary


def _folder(options: Options) -> Path:
    now = datetime.now().astimezone()
    folder = options.out or Path(f"bench-{options.workload}-{now:%Y%m%d-%H%M%S}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requests.jsonl").touch()  # fail now rather than at the end of the run
    except OSError as error:
        raise SettingsError(f"--out {folder} cannot be written: {error.strerror}") from None
    return folder


def _origin() -> dict[str, Any]:
    """Return the conditions of the measurement, which are needed to judge a figure. The machine is the client's."""
    return {
        "when": datetime.now().astimezone().isoformat(timespec="seconds"),
        "carousel": __version__,
        "python": platform.python_version(),
        "client": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load_before": round(os.getloadavg()[0], 2),
    }
