"""Process that compiles grammars to find out whether they can be used: `python -m engine.constraints.checks PID`.

Reads frames from standard input, the vocabulary first and then grammars, and answers each with a `Verdict`: it compiles
the grammar and measures the processor time of its masks on a random walk. Memory is limited, and so is the processor
time of each grammar: SIGPROF ends the process when that is used up.
"""

from __future__ import annotations

import contextlib
import signal
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from engine.errors import InvalidParameter
from engine.parent_death import end_with_parent
from engine.types import Vocabulary

if TYPE_CHECKING:
    from engine.constraints.grammars import GrammarTokenizer

LENGTH = struct.Struct("<I")  # of a frame, before its content
MAX_MEMORY_BYTES = 2 << 30  # address space
STACK_BYTES = 2 << 20
MAX_CPU_SECONDS = 0.3  # of one grammar


class Verdict(msgspec.Struct, frozen=True):
    """Result of a check: why a grammar cannot be used, empty if it can, and the error's code.

    is_final: whether another check would have the same result; one that depends on processor time might not.
    """

    error: str = ""
    code: str = "invalid_value"
    is_final: bool = True


def frame(content: bytes) -> bytes:
    """Return a frame."""
    return LENGTH.pack(len(content)) + content


def _read(stream: BinaryIO) -> bytes | None:
    """Return the content of the next frame; None at the end."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def _limit() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer until standard input ends, or the process that started this one, whose ID is the argument."""
    end_with_parent(int(sys.argv[1]))
    from engine.constraints.grammars import GrammarTokenizer

    _limit()
    first = _read(sys.stdin.buffer)
    if first is None:
        return
    refusal = ""
    tokenizer = None
    try:
        tokenizer = GrammarTokenizer(msgspec.msgpack.decode(first, type=Vocabulary))
    except InvalidParameter as error:
        refusal = str(error)
    _answer(Verdict())
    # The engine compiles in a thread of the default size. A grammar that is too deep for it must fail here first.
    threading.stack_size(STACK_BYTES)
    with ThreadPoolExecutor(1) as thread:
        _answer_all(tokenizer, refusal, thread)


def _answer_all(tokenizer: GrammarTokenizer | None, refusal: str, thread: ThreadPoolExecutor) -> None:
    while (grammar := _read(sys.stdin.buffer)) is not None:
        verdict = Verdict(refusal)
        if tokenizer is not None:
            _limit_cpu_time(MAX_CPU_SECONDS)
            verdict = thread.submit(_check, tokenizer, grammar.decode()).result()
            _limit_cpu_time(0.0)
        _answer(verdict)


def _check(tokenizer: GrammarTokenizer, grammar: str) -> Verdict:
    from engine.constraints.grammars import TOO_EXPENSIVE

    try:
        matcher = tokenizer.compile(grammar)
    except InvalidParameter as error:
        return Verdict(str(error))
    except MemoryError:
        return Verdict("it needs too much memory to compile; simplify it")
    if error_text := tokenizer.cost_error(matcher):
        return Verdict(error_text, TOO_EXPENSIVE, is_final=False)
    return Verdict()


def _limit_cpu_time(seconds: float) -> None:
    """Limit the processor time until the next call; 0: no limit. Without effect on systems without such a timer."""
    with contextlib.suppress(AttributeError):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _answer(verdict: Verdict) -> None:
    sys.stdout.buffer.write(frame(msgspec.msgpack.encode(verdict)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
