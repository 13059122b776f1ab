"""MCP server of the tests, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from tests.conftest import ROOT
from tests.limits import HANG_SECONDS

PROGRAM = ROOT / "tests" / "mcp_tools.py"


@dataclass
class McpServer:
    """A running server. url: of its endpoint."""

    process: subprocess.Popen[str]
    url: str

    @classmethod
    def start(cls, port: int = 0) -> McpServer:
        """Start a server and wait until it listens."""
        command = [sys.executable, str(PROGRAM), str(port)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return cls(process, process.stdout.readline().strip())

    @property
    def port(self) -> int:
        """Return its port, on which another one can start after it."""
        return int(self.url.split(":")[2].split("/")[0])

    def stop(self) -> None:
        """Kill it, as a crash would."""
        self.process.kill()
        self.process.wait(HANG_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
