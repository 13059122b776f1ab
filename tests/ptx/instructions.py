"""Statements as instructions that can be executed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache

from tests.ptx import matrices, movement
from tests.ptx.arithmetic import arithmetic
from tests.ptx.operands import Make, Operands
from tests.ptx.program import Program, PtxError, Statement
from tests.ptx.state import Execute, Source

OF_WARPS = {"shfl", "redux", "ldmatrix", "stmatrix", "mma", "wgmma", "bar"}


class Kind(Enum):
    """What an instruction means to the order in which threads go on."""

    ORDINARY = auto()
    TOGETHER = auto()  # a warp's lanes execute it together
    BRANCH = auto()
    RETURN = auto()
    BARRIER = auto()


@dataclass(frozen=True)
class Instruction:
    """execute: what it does, if anything. guard: which threads do it, where it says so. target: of a branch."""

    text: str
    kind: Kind
    execute: Execute | None
    guard: Source | None
    target: int | None


def decode(program: Program) -> tuple[list[Instruction], Operands]:
    """All instructions of a program, and whose registers they use. Raises PtxError."""
    operands = Operands(program.threads)
    return [_decode(statement, program, operands) for statement in program.statements], operands


def _decode(statement: Statement, program: Program, operands: Operands) -> Instruction:
    kind = _meaning(statement)
    executed = kind in (Kind.ORDINARY, Kind.TOGETHER)
    return Instruction(
        statement.text,
        kind,
        _effect(statement, operands) if executed else None,
        _guard(statement, operands),
        program.labels[statement.operands[0]] if kind == Kind.BRANCH else None,
    )


def _effect(statement: Statement, operands: Operands) -> Execute:
    make = _maker(".".join(statement.opcode))
    try:
        return make(statement, operands)
    except (PtxError, ValueError, LookupError) as error:  # of a form that is not known, or with other operands
        raise PtxError(f"unknown: {statement.text} ({error})") from error


@cache
def _maker(opcode: str) -> Make:
    made = movement.MADE | matrices.MADE
    return next((make for form, make in made.items() if re.fullmatch(form, opcode)), arithmetic)


def _guard(statement: Statement, operands: Operands) -> Source | None:
    if not statement.guard:
        return None
    holds = operands.source(statement.guard, "pred")
    return (lambda state: ~holds(state)) if statement.negated else holds


def _meaning(statement: Statement) -> Kind:
    match statement.opcode, statement.operands:
        case ("bra",) | ("bra", "uni"), _:
            return Kind.BRANCH
        case ("ret",), _:
            return Kind.RETURN
        case ("bar", "sync"), ("0",):
            return Kind.BARRIER
    return Kind.TOGETHER if statement.opcode[0] in OF_WARPS else Kind.ORDINARY
