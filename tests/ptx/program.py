"""The text of a PTX module as statements. Knows nothing of what they do."""

from __future__ import annotations

import re
from dataclasses import dataclass


class PtxError(Exception):
    """What a program did that it must not, or what is not known of PTX here; quotes the statement."""


@dataclass(frozen=True)
class Statement:
    """One instruction: `@%p1 ld.global.b32 {%r1}, [%rd1]` has the guard %p1, three parts of an opcode, two operands."""

    text: str
    guard: str
    negated: bool
    opcode: tuple[str, ...]
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """One kernel. threads: of a block. shared: bytes of its memory. labels: name -> index of a statement."""

    statements: tuple[Statement, ...]
    labels: dict[str, int]
    threads: int
    shared: int


def parse(ptx: str, shared: int) -> Program:
    """The one kernel of a module, whose size of shared memory a launch says. Raises PtxError."""
    entry = ptx[ptx.index(".visible .entry") :]
    threads = re.search(r"\.reqntid (\d+)", entry)
    if threads is None:
        raise PtxError("the kernel does not say how many threads it has")
    statements: list[Statement] = []
    labels: dict[str, int] = {}
    for line in entry[entry.index("\n{") + 2 :].splitlines():
        code = line.split("//")[0].strip()
        if line.startswith("}"):
            break  # what is behind is for debuggers
        if code.startswith(".") or code in ("{", "}"):
            continue
        if code.endswith(":"):
            labels[code[:-1]] = len(statements)
            continue
        statements += [parse_statement(part.strip()) for part in code.split(";") if part.strip()]
    return Program(tuple(statements), labels, int(threads[1]), shared)


def parse_statement(text: str) -> Statement:
    """Without the semicolon. Raises PtxError."""
    found = re.fullmatch(r"(?:@(!?)(%p\d+)\s+)?(\S+)\s*(.*)", text)
    if found is None:
        raise PtxError(f"no statement: {text}")
    negated, guard, opcode, rest = found.groups()
    operands = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,\s])+", rest)
    return Statement(text, guard or "", bool(negated), tuple(opcode.split(".")), tuple(operands))


def parts(operand: str) -> list[str]:
    """Those of a vector {%r1, %r2}; an operand that is none is its own."""
    return [part.strip() for part in operand.strip("{} ").split(",")]
