"""Launches of Triton's kernels: blocks run one after another in random order."""

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

MIN_SHARED_BYTES = 16
PACK_FORMATS = {"i32": "<i", "i64": "<q", "fp32": "<f"}
# Arguments that an early-launched kernel may read before griddepcontrol.wait (`kernels.triton.pdl`).
READABLE_EARLY = {
    "gain",
    "norm",
    "q_norm",
    "k_norm",
    "cos_sin",
    "positions",
    "slot_mapping",
    "page_table",
    "tasks",
    "num_tasks",
}
SCRATCH = [bytes(8)] * 2  # null pointers after a kernel's own parameters: Triton's scratch memory, unused here


class Device:
    """Triton driver of a Hopper chip that uses CPU memory."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def program_of(compiled: CompiledKernel) -> Program:
    """Parse the PTX of a kernel. Raises PtxError."""
    return parse(compiled.asm["ptx"], max(compiled.metadata.shared, MIN_SHARED_BYTES))


@cache
def decoded(compiled: CompiledKernel) -> tuple[Program, list[Instruction], Operands]:
    """Decode a kernel once. Raises PtxError."""
    program = program_of(compiled)
    return program, *decode(program)


def launch(compiled: CompiledKernel, arguments: dict[str, Any], grid: tuple[int, ...]) -> None:
    """Run all blocks of a grid. `arguments`: tensors and numbers by name. Raises PtxError."""
    program, instructions, operands = decoded(compiled)
    kinds = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
    memory = GlobalMemory(value for value in arguments.values() if isinstance(value, Tensor))
    readable_early = GlobalMemory(
        value for name, value in arguments.items() if name in READABLE_EARLY and isinstance(value, Tensor)
    )
    parameters = [_pack(arguments[name], kind) for name, kind in kinds.items()] + SCRATCH
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
            early=bool(arguments.get("USE_PDL")),
            readable_early=readable_early,
        )
        Block(instructions, state).run()


def _pack(value: Any, kind: str) -> bytes:
    """Return an argument as bytes of parameter memory."""
    if isinstance(value, Tensor):
        return struct.pack("<Q", value.data_ptr())
    return struct.pack(PACK_FORMATS[kind], value)
