"""Parts shared by the drivers of coding agents, which are programs with a prompt on the command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import common

HOME = Path.home()  # empty, and removed after the trial
WORKSPACE = HOME / "work"
SECRET_FILE = WORKSPACE / "secret.txt"
SECRET = "The number is 4711."
ANSWER = "The scripted model has answered."
AGENT_SECONDS = 120.0


class Agent:
    """A program that answers a prompt and exits.

    command: returns the command for a model and a prompt. continued: returns the one that goes on with the last
    conversation; None for an agent that cannot. environment: added to that of the driver. call: directive for
    the scripted model to read `SECRET_FILE` with a tool of the agent; empty for an agent without tools. unknown_model:
    part of the message about an unknown model. prompt_on_stdin: the prompt is sent on standard input instead.
    """

    def __init__(
        self,
        command: Callable[[str, str], list[str]],
        *,
        continued: Callable[[str, str], list[str]] | None = None,
        call: str = "",
        environment: Mapping[str, str] | None = None,
        unknown_model: str = common.UNKNOWN_MODEL,
        prompt_on_stdin: bool = False,
    ) -> None:
        WORKSPACE.mkdir()
        SECRET_FILE.write_text(f"{SECRET}\n")
        self._command = command
        self._continued = continued
        self._call = call
        self._environment = os.environ | (environment or {})
        self._unknown_model = unknown_model
        self._prompt_on_stdin = prompt_on_stdin

    def run_features(self) -> None:
        """Try every feature that an agent has, and print the outcomes."""
        turns = [self.turns] if self._continued else []
        tools = [self.tools] if self._call else []
        common.run_features(self.chat, *turns, *tools, self.errors, self.cancel)

    def chat(self) -> None:
        """Ask for a text."""
        assert ANSWER in (output := self._ask("Hello")), output

    def turns(self) -> None:
        """Ask in three turns of a conversation."""
        outputs = [self._ask(common.COUNT_QUESTION)]
        outputs += [self._run(self._continued, common.COUNT_QUESTION) for _ in range(2)]
        numbers = [int(re.findall(r"Earlier answers: (\d+)", output)[-1]) for output in outputs]
        # Some agents begin with examples of answers, and some answer a message of their own.
        assert numbers[0] < numbers[1] < numbers[2], outputs

    def tools(self) -> None:
        """Ask for a file, which the agent reads with a tool, in two turns, and for their number."""
        assert SECRET in (output := self._ask(self._call)), output
        if self._continued:
            assert SECRET in (output := self._run(self._continued, self._call)), output
            assert common.counts(4, 2) in (output := self._run(self._continued, common.COUNT_QUESTION)), output

    def errors(self) -> None:
        """Ask an unknown model."""
        assert self._unknown_model in (output := self._ask("Hello", common.UNKNOWN_MODEL)), output

    def cancel(self) -> None:
        """Interrupt an endless answer."""
        process = self._start(self._command(common.SCRIPTED_MODEL, common.ENDLESS_QUESTION), common.ENDLESS_QUESTION)
        try:
            common.wait_for_running(1, AGENT_SECONDS)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=AGENT_SECONDS)
        common.wait_for_running(0)

    def _ask(self, prompt: str, model: str = common.SCRIPTED_MODEL) -> str:
        """Return the output for the prompt of a new conversation."""
        return self._run(self._command, prompt, model)

    def _run(self, command: Callable[[str, str], list[str]], prompt: str, model: str = common.SCRIPTED_MODEL) -> str:
        """Return the output of a command for a prompt."""
        process = self._start(command(model, prompt), prompt)
        try:
            output, _ = process.communicate(timeout=AGENT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"the agent has not ended within {AGENT_SECONDS:g} s: {output}") from None
        return output

    def _start(self, command: list[str], prompt: str) -> subprocess.Popen[str]:
        read, write = os.pipe()
        with os.fdopen(read) as stdin, os.fdopen(write, "w") as prompt_file:
            if self._prompt_on_stdin:
                prompt_file.write(prompt)
            return subprocess.Popen(
                command,
                cwd=WORKSPACE,
                env=self._environment,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )


def file_call(tool: str, argument: str) -> str:
    """Return the directive to call a tool with the path of the file as its only argument."""
    return f'@call {tool} {{"{argument}": "{SECRET_FILE}"}}'
