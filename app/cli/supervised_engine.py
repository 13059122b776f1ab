"""Engine process of a supervisor: serves the API processes of its machine until a signal."""

from __future__ import annotations

import os
import socket
import sys

from app.cli.supervised import EngineChild, EngineReady, Loading, read_child, report
from app.engine_client.engine_process import ENGINE_ENVIRONMENT_DEFAULTS
from engine.errors import EngineError
from engine.heartbeat import Heartbeat
from engine.log_queue import start_logging
from engine.parent_death import end_with_parent
from engine.server import ServerOptions, build_server

LAST_LINES_SECONDS = 1.0  # for queued log lines at the end


def main() -> int:
    """Serve until a signal. Returns the exit status."""
    child = read_child(EngineChild)
    end_with_parent(child.parent)
    logs = start_logging(child.log_level, child.log_format)
    for name, value in ENGINE_ENVIRONMENT_DEFAULTS.items():
        os.environ.setdefault(name, value)  # read when torch is imported
    options = ServerOptions(
        sock=socket.socket(fileno=child.listen),
        token=child.token,
        tls=None,
        orphan_grace=child.orphan_grace,
        drain_seconds=child.drain_seconds,
    )
    try:
        server = build_server(
            child.config,
            options,
            lambda stage, done, total: report(child.status, Loading(stage, done, total)),
            Heartbeat(child.heartbeat),
        )
        report(child.status, EngineReady(server.info))
        server.serve()
    except (EngineError, OSError) as error:
        logs.write_plain(f"carousel: {error}")
        return 1
    finally:
        logs.writer.close(LAST_LINES_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
