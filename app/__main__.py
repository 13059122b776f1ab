"""The `carousel` command: serve a model, edit its API keys, measure a server, show where time and tokens went."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app import __version__
from app.bench.options import Options, check
from app.bench.options import add_arguments as add_bench_arguments
from app.settings import Settings, SettingsError, add_arguments, read_again, resolve
from engine.errors import ConfigError
from engine.log_queue import start_logging

LAST_LINES_SECONDS = 1.0  # for queued log lines when the server ends
PLAIN = str.maketrans("█–×", "#-x")  # what bars and tables are drawn of where there is nothing but ASCII


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 it failed, 2 the command line is wrong."""
    _open_standard_streams()
    parser = argparse.ArgumentParser(prog="carousel", description="An LLM server for when humans are waiting.")
    parser.add_argument("--version", action="version", version=f"carousel {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a model on HTTP and WebSocket, with a chat page")
    add_arguments(serve)
    account = commands.add_parser("explain", help="say where the time of a request went")
    account.add_argument("id", help="of the request: an answer's id, or its X-Request-Id header")
    account.add_argument("--url", default="http://127.0.0.1:8000", help="of the server; default: %(default)s")
    account.add_argument("--api-key", help="the key that the request was made with")
    usage = commands.add_parser("usage", help="sum up what was used, from the file of `serve --metering`")
    given = sys.argv[1:] if arguments is None else arguments
    if "usage" in given[:1]:  # imported for whoever asks for it, so that a server starts as fast without it
        from app.usage import add_arguments as add_usage_arguments

        add_usage_arguments(usage)
    keys = commands.add_parser("keys", help="add, list and revoke API keys, in the file of `serve --keys-file`")
    if "keys" in given[:1]:
        from app.keys_command import add_arguments as add_keys_arguments

        add_keys_arguments(keys)
    add_bench_arguments(commands.add_parser("bench", help="measure a running server under a load, or compare two"))
    options = parser.parse_args(arguments)
    try:
        if options.command == "bench":
            return _bench(check(vars(options)))
        if options.command == "explain":
            return _explain(options)
        if options.command == "usage":
            return _usage(options)
        if options.command == "keys":
            return _keys(options)
        settings = resolve(vars(options), download=_download)
        return _serve(settings, vars(options))
    except (SettingsError, ConfigError) as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read it, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is written when Python ends
        return 141


def _serve(settings: Settings, flags: dict[str, Any]) -> int:
    from app.launch import run  # after the options are known to be good: it imports the whole server

    logs = start_logging(settings.log_level, settings.log_format)
    try:
        status = run(settings, logs, lambda: read_again(flags))
    finally:
        logs.writer.close(LAST_LINES_SECONDS)
    if status < 0:  # so that a supervisor sees which signal ended the process
        signal.raise_signal(-status)
    return status


def _explain(options: argparse.Namespace) -> int:
    from app.bench.client import NoServer  # as for `bench`
    from app.explain import explain

    try:
        told = explain(options.url, options.id, options.api_key)
    except NoServer as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 1
    say(told)
    return 0


def _usage(options: argparse.Namespace) -> int:
    from app.metering import MeteringRefused
    from app.usage import report

    try:
        told = report(options)
    except MeteringRefused as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 1
    if options.format == "table":
        say(told)
    else:
        sys.stdout.buffer.write(f"{told}\n".encode())  # for programs: whatever the terminal is, no name may change
        sys.stdout.flush()
    return 0


def _keys(options: argparse.Namespace) -> int:
    from app.keys_command import run
    from app.keys_file import KeysFileError

    try:
        text, remark = run(options)
    except KeysFileError as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 1
    if text:
        say(text)
    if remark:
        print(remark, file=sys.stderr)
    return 0


def _bench(options: Options) -> int:
    from app.bench.client import NoServer  # numpy and what else a server starts faster without
    from app.bench.command import bench

    try:
        told, status = bench(options)
    except NoServer as error:
        print(f"carousel: {error}", file=sys.stderr)
        return 1
    say(told)
    return status


def say(text: str) -> None:
    """Print for people, who may have a terminal without such characters."""
    encoding = sys.stdout.encoding
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(PLAIN).encode(encoding, "replace").decode(encoding)
    print(text, flush=True)


def _open_standard_streams() -> None:
    """Whoever starts it may have closed them. The next file or socket would take their place, and be written to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _download(name: str) -> Path:
    """Bring a model from the Hugging Face hub, with its own progress bars."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise SettingsError(f"model {name!r}: no such folder, and it cannot be fetched from the hub: {first}") from None


if __name__ == "__main__":
    sys.exit(main())
