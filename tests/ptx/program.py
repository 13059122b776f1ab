"""Parser of a PTX module into statements, independent of their meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass


class PtxError(Exception):
    """A program does something forbidden, or uses PTX that is not supported here; quotes the statement."""


@dataclass(frozen=True)
class Statement:
    """One instruction. `@%p1 ld.global.b32 {%r1}, [%rd1]` has the guard %p1, three opcode parts and two operands."""

    text: str
    guard: str
    negated: bool
    opcode: tuple[str, ...]
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """One kernel. `threads`: of a block. `shared`: bytes of shared memory. `labels`: index of a statement by name."""

    statements: tuple[Statement, ...]
    labels: dict[str, int]
    threads: int
    shared: int


def parse(ptx: str, shared: int) -> Program:
    """Parse the only kernel of a module. `shared`: bytes of shared memory, which only the launch specifies. Raises
    PtxError."""
    entry = ptx[ptx.index(".visible .entry") :]
    threads = re.search(r"\.reqntid (\d+)", entry)
    if threads is None:
        raise PtxError("the kernel has no .reqntid (threads per block)")
    statements: list[Statement] = []
    labels: dict[str, int] = {}
    for line in entry[entry.index("\n{") + 2 :].splitlines():
        code = line.split("//")[0].strip()
        if line.startswith("}"):
            break  # the rest is debug information
        if code.startswith(".") or code in ("{", "}"):
            continue
        if code.endswith(":"):
            labels[code[:-1]] = len(statements)
            continue
        statements += [parse_statement(part.strip()) for part in code.split(";") if part.strip()]
    return Program(tuple(statements), labels, int(threads[1]), shared)


def parse_statement(text: str) -> Statement:
    """Parse a statement without its semicolon. Raises PtxError."""
    found = re.fullmatch(r"(?:@(!?)(%p\d+)\s+)?(\S+)\s*(.*)", text)
    if found is None:
        raise PtxError(f"invalid statement: {text}")
    negated, guard, opcode, rest = found.groups()
    operands = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,\s])+", rest)
    return Statement(text, guard or "", bool(negated), tuple(opcode.split(".")), tuple(operands))


def parts(operand: str) -> list[str]:
    """Return the elements of a vector {%r1, %r2}, or the operand itself if it is not a vector."""
    return [part.strip() for part in operand.strip("{} ").split(",")]
