"""Statements decoded into executable instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache

from tests.ptx import matrices, movement
from tests.ptx.arithmetic import arithmetic
from tests.ptx.operands import Builder, Operands
from tests.ptx.program import Program, PtxError, Statement
from tests.ptx.state import Execute, Source

WARP_WIDE_OPCODES = {"shfl", "redux", "ldmatrix", "stmatrix", "mma", "wgmma", "bar"}


class Kind(Enum):
    """Kind of an instruction for the scheduling of threads."""

    ORDINARY = auto()
    WARP_WIDE = auto()  # all lanes of a warp execute it together
    BRANCH = auto()
    RETURN = auto()
    BARRIER = auto()


@dataclass(frozen=True)
class Instruction:
    """One decoded instruction. `execute`: effect, or None. `guard`: predicate of the threads that execute it, or None.
    `target`: index of the statement that a branch jumps to."""

    text: str
    kind: Kind
    execute: Execute | None
    guard: Source | None
    target: int | None


def decode(program: Program) -> tuple[list[Instruction], Operands]:
    """Decode all instructions of a program and its registers. Raises PtxError."""
    operands = Operands(program.threads)
    return [_decode(statement, program, operands) for statement in program.statements], operands


def _decode(statement: Statement, program: Program, operands: Operands) -> Instruction:
    kind = _kind(statement)
    executed = kind in (Kind.ORDINARY, Kind.WARP_WIDE)
    return Instruction(
        statement.text,
        kind,
        _effect(statement, operands) if executed else None,
        _guard(statement, operands),
        program.labels[statement.operands[0]] if kind == Kind.BRANCH else None,
    )


def _effect(statement: Statement, operands: Operands) -> Execute:
    build = _builder(".".join(statement.opcode))
    try:
        return build(statement, operands)
    except (PtxError, ValueError, LookupError) as error:  # unsupported form or operands
        raise PtxError(f"unknown: {statement.text} ({error})") from error


@cache
def _builder(opcode: str) -> Builder:
    builders = movement.BUILDERS | matrices.BUILDERS
    return next((build for form, build in builders.items() if re.fullmatch(form, opcode)), arithmetic)


def _guard(statement: Statement, operands: Operands) -> Source | None:
    if not statement.guard:
        return None
    predicate = operands.source(statement.guard, "pred")
    return (lambda state: ~predicate(state)) if statement.negated else predicate


def _kind(statement: Statement) -> Kind:
    match statement.opcode, statement.operands:
        case ("bra",) | ("bra", "uni"), _:
            return Kind.BRANCH
        case ("ret",), _:
            return Kind.RETURN
        case ("bar", "sync"), ("0",):
            return Kind.BARRIER
    return Kind.WARP_WIDE if statement.opcode[0] in WARP_WIDE_OPCODES else Kind.ORDINARY
