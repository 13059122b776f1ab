"""Launches of Triton's kernels as runs of their blocks, one after the other in any order."""

from __future__ import annotations

import random
import struct
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel

from tests.ptx.block import Block
from tests.ptx.instructions import Instruction, decode
from tests.ptx.memory import GlobalMemory, SharedMemory
from tests.ptx.operands import Operands
from tests.ptx.program import Program, parse
from tests.ptx.state import State

LEAST_SHARED = 16  # bytes
PACKED = {"i32": "<i", "i64": "<q", "fp32": "<f"}
# Of the arguments of a kernel that begins early what it may read before its turn (`kernels.early`).
KNOWN = {"gain", "norm", "q_norm", "k_norm", "cos_sin", "positions", "slots", "page_table", "tasks", "num_tasks"}
SCRATCH = [bytes(8)] * 2  # null pointers behind a kernel's own parameters: memory for Triton's purposes, unused here


class Device:
    """What Triton asks a driver: a Hopper chip, whose memory is the CPU's."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def program_of(compiled: CompiledKernel) -> Program:
    """The statements of a kernel. Raises PtxError."""
    return parse(compiled.asm["ptx"], max(compiled.metadata.shared, LEAST_SHARED))


@cache
def decoded(compiled: CompiledKernel) -> tuple[Program, list[Instruction], Operands]:
    """The same as instructions, once. Raises PtxError."""
    program = program_of(compiled)
    return program, *decode(program)


def launch(compiled: CompiledKernel, arguments: dict[str, Any], grid: tuple[int, ...]) -> None:
    """All blocks of a grid. arguments: by name, tensors and numbers. Raises PtxError."""
    program, instructions, operands = decoded(compiled)
    kinds = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
    memory = GlobalMemory(value for value in arguments.values() if isinstance(value, Tensor))
    known = GlobalMemory(value for name, value in arguments.items() if name in KNOWN and isinstance(value, Tensor))
    parameters = [_packed(arguments[name], kind) for name, kind in kinds.items()] + SCRATCH
    size = (*grid, 1, 1)[:3]
    blocks = [(x, y, z) for z in range(size[2]) for y in range(size[1]) for x in range(size[0])]
    random.Random(0).shuffle(blocks)
    noise = np.random.default_rng(0)
    for index in blocks:
        state = State(
            program.threads,
            operands.registers([*index, *size]),
            parameters,
            memory,
            SharedMemory(program.shared, noise),
            early=bool(arguments.get("EARLY")),
            known=known,
        )
        Block(instructions, state).run()


def _packed(value: Any, kind: str) -> bytes:
    """An argument as a kernel finds it."""
    if isinstance(value, Tensor):
        return struct.pack("<Q", value.data_ptr())
    return struct.pack(PACKED[kind], value)
