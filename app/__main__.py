"""The `carousel` command: serve a model, edit its API keys, measure a server, show where time and tokens went."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from app import __version__
from app.cli.bench.options import Options, check
from app.cli.bench.options import add_arguments as add_bench_arguments
from app.cli.build_kernels import build_kernels
from app.options import add_arguments, reread_tenants, resolve
from app.settings import Settings, SettingsError
from app.text.model_folder import ModelNotFound, download_model, find_model
from app.text.packaged_model import DEFAULT_MODEL
from engine.errors import ConfigError
from engine.log_queue import start_logging

LAST_LINES_SECONDS = 1.0  # for queued log lines when the server ends
ASCII_FALLBACK = str.maketrans("█–×", "#-x")  # ASCII fallback for the characters of bars and tables


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0 for success, 1 for failure, 2 for a usage error."""
    _open_standard_streams()
    options = make_parser(sys.argv[1:] if arguments is None else arguments).parse_args(arguments)
    try:
        if options.command == "bench":
            return _bench(check(vars(options)))
        if options.command == "fetch":
            return _fetch(options.model, options.revision)
        if options.command == "build-kernels":
            return build_kernels()
        if options.command == "explain":
            return _explain(options)
        if options.command == "usage":
            return _usage(options)
        if options.command == "keys":
            return _keys(options)
        if options.command == "store":
            return _store(options)
        if options.command == "engine":
            return _engine(vars(options))
        settings = resolve(vars(options), download=download_model)
        return _serve(settings, vars(options))
    except (SettingsError, ConfigError) as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has closed it, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for output written while Python exits
        return 141


def make_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of a command line. Options of rare commands are added only if `arguments` begin with them."""
    parser = argparse.ArgumentParser(prog="carousel", description="An LLM server for when humans are waiting.")
    parser.add_argument("--version", action="version", version=f"carousel {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    fetch = commands.add_parser("fetch", help="fetch a model, so that a later start needs no network")
    hub_names = "a hub name: owner/name, owner/name:Q4_K_M or owner/name:FILE.gguf; default: %(default)s"
    fetch.add_argument("model", nargs="?", default=DEFAULT_MODEL.name, help=hub_names)
    fetch.add_argument("--revision", help="branch, tag or commit of a hub name; default: the default branch")
    commands.add_parser("build-kernels", help="compile the CPU kernels, so that a later start needs no compiler")
    serve = commands.add_parser("serve", help="serve a model on HTTP and WebSocket, with a chat page")
    add_arguments(serve)
    engine = commands.add_parser("engine", help="compute for servers on this or other machines, see `serve --engines`")
    if "engine" in arguments[:1]:  # imported only for this command, so that a server starts faster
        from app.engine_options import EngineSettings

        add_arguments(engine, EngineSettings)
    explain_parser = commands.add_parser("explain", help="show where the time of a request went")
    explain_parser.add_argument("id", help="request ID: the id of an answer, or its X-Request-Id header")
    explain_parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="URL of the server; default: %(default)s"
    )
    explain_parser.add_argument("--api-key", help="the key that the request was made with")
    usage = commands.add_parser("usage", help="sum up recorded usage from the file of `serve --metering`")
    if "usage" in arguments[:1]:
        from app.cli.usage import add_arguments as add_usage_arguments

        add_usage_arguments(usage)
    keys = commands.add_parser("keys", help="add, list and revoke API keys, in the file of `serve --keys-file`")
    if "keys" in arguments[:1]:
        from app.cli.keys_command import add_arguments as add_keys_arguments

        add_keys_arguments(keys)
    store = commands.add_parser("store", help="show, prune or export what a server keeps over a restart")
    if "store" in arguments[:1]:
        from app.cli.store_command import add_arguments as add_store_arguments

        add_store_arguments(store)
    add_bench_arguments(commands.add_parser("bench", help="measure a running server under a load, or compare two"))
    return parser


def _serve(settings: Settings, flags: dict[str, Any]) -> int:
    from app.cli.serve import run  # imported after the options are checked, because it imports the whole server
    from app.cli.supervisor import supervise
    from app.cli.thread_limits import check_threads

    check_threads()
    logs = start_logging(settings.log_level, settings.log_format)
    try:
        if settings.api_processes > 1:
            status = supervise(settings, flags, logs)
        else:
            status = run(settings, logs, lambda: reread_tenants(flags))
    finally:
        logs.writer.close(LAST_LINES_SECONDS)
    if status < 0:  # re-raised so that a supervisor sees which signal ended the process
        signal.raise_signal(-status)
    return status


def _engine(flags: dict[str, Any]) -> int:
    from app.cli.engine_command import run
    from app.engine_options import resolve_engine

    settings = resolve_engine(flags, download=download_model)
    logs = start_logging(settings.log_level, settings.log_format)
    try:
        return run(settings, logs)
    finally:
        logs.writer.close(LAST_LINES_SECONDS)


def _fetch(model: str, revision: str | None) -> int:
    try:
        path = find_model(model, download_model, revision).path
    except ModelNotFound as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 1
    print_text(f"{model} is in {path}")
    return 0


def _explain(options: argparse.Namespace) -> int:
    from app.cli.bench.client import ServerUnreachable  # imported late, as for `bench`
    from app.cli.explain import explain

    try:
        text = explain(options.url, options.id, options.api_key)
    except ServerUnreachable as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 1
    print_text(text)
    return 0


def _usage(options: argparse.Namespace) -> int:
    from app.cli.usage import report
    from app.observe.metering import MeteringError

    try:
        text = report(options)
    except MeteringError as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 1
    if options.format == "table":
        print_text(text)
    else:
        # for programs: always UTF-8, so that no name changes with the terminal's encoding
        sys.stdout.buffer.write(f"{text}\n".encode())
        sys.stdout.flush()
    return 0


def _keys(options: argparse.Namespace) -> int:
    from app.admission.keys_file import KeysFileError
    from app.cli.keys_command import run

    try:
        text, remark = run(options)
    except KeysFileError as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 1
    if text:
        print_text(text)
    if remark:
        print(remark, file=sys.stderr)
    return 0


def _store(options: argparse.Namespace) -> int:
    from app.cli.store_command import print_lines, run
    from app.store.database import StoreError

    try:
        print_lines(run(options))
    except StoreError as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 1
    return 0


def _bench(options: Options) -> int:
    from app.cli.bench.client import (
        ServerUnreachable,  # imported late: numpy and others would slow down the start of a server
    )
    from app.cli.bench.command import bench

    try:
        text, status = bench(options)
    except ServerUnreachable as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 1
    print_text(text)
    return status


def print_text(text: str) -> None:
    """Print text, with ASCII replacements on a terminal that cannot encode it."""
    encoding = sys.stdout.encoding
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(ASCII_FALLBACK).encode(encoding, "replace").decode(encoding)
    print(text, flush=True)


def _open_standard_streams() -> None:
    """Open standard streams that the parent has closed on /dev/null. Otherwise the next file or socket would take their
    descriptor and receive their output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free descriptor, which is this one
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


if __name__ == "__main__":
    sys.exit(main())
