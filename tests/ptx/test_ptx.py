"""The PTX emulator is correct on programs of a few lines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.ptx import block
from tests.ptx.block import Block
from tests.ptx.instructions import decode
from tests.ptx.memory import GlobalMemory, SharedMemory
from tests.ptx.numbers import bf16_to_float32, float32_to_bf16
from tests.ptx.program import PtxError, parse
from tests.ptx.state import State

pytestmark = pytest.mark.emulated

KERNEL = """
.visible .entry kernel(
)
.reqntid %s
{
ld.param.b64 %%rd1, [_param_0];
mov.u32 %%r1, %%tid.x;
mul.lo.s32 %%r2, %%r1, 4;
mad.wide.u32 %%rd2, %%r1, 4, %%rd1;
%s
ret;
}
"""


def run(code: str, data: Tensor, shared: int = 512, threads: int = 64, early: bool = False) -> None:
    """Run one block of a kernel. Its data begins at %rd1. Each thread has four bytes of data at %rd2, four bytes of
    shared memory at %r2, and its index in %r1."""
    program = parse(KERNEL % (threads, code), shared)
    instructions, operands = decode(program)
    state = State(
        threads,
        operands.registers([0, 0, 0, 1, 1, 1]),
        [data.data_ptr().to_bytes(8, "little")],
        GlobalMemory([data]),
        SharedMemory(shared, np.random.default_rng(0)),
        early,
        GlobalMemory([]),
    )
    Block(instructions, state).run()


EXCHANGE = """
st.shared.b32 [%r2], %r1;
{barrier}
xor.b32 %r3, %r2, 128;
ld.shared.b32 %r4, [%r3];
st.global.b32 [%rd2], %r4;
"""


def test_warps_exchange_data_across_a_barrier():
    """A value that another warp wrote can be read after a barrier."""
    data = torch.zeros(64, dtype=torch.int32)
    run(EXCHANGE.format(barrier="bar.sync 0;"), data)
    assert data.tolist() == [*range(32, 64), *range(32)]


def test_diverged_lanes_reconverge():
    """Diverged lanes reconverge at the first common instruction and are all counted there."""
    diverge = "setp.lt.u32 %p1, %r1, 10;\n@%p1 bra $L;\nmov.b32 %r3, 1;\nbra.uni $M;\n$L:\nmov.b32 %r3, 100;\n$M:\n"
    data = torch.zeros(64, dtype=torch.int32)
    run(f"{diverge} redux.sync.add.s32 %r4, %r3, -1; st.global.b32 [%rd2], %r4;", data)
    assert data.tolist() == [1022] * 32 + [32] * 32


DIVERGENT = """
setp.lt.u32 %p1, %r1, 40;
@%p1 bra $L;
bar.sync 0;
bra.uni $M;
$L:
redux.sync.add.s32 %r3, %r1, -1;
$M:
"""
NEIGHBOUR = "xor.b32 %r3, %r2, 128;"
WRONG = {
    "race: reads": (EXCHANGE.format(barrier=""), {}),
    "bytes that another warp read": (f"{NEIGHBOUR} ld.shared.b32 %r4, [%r3]; st.shared.b32 [%r2], %r1;", {}),
    "bytes that another warp wrote": (f"{NEIGHBOUR} st.shared.b32 [%r2], %r1; st.shared.b32 [%r3], 1;", {}),
    "race: threads write": ("st.shared.b32 [global_smem], %r1;", {}),
    "out of bounds of 512": ("st.shared.b32 [%r2+260], %r1;", {}),
    "out of bounds in 1 threads": ("ld.global.b32 %r3, [%rd2 + 4];", {}),
    "misaligned": ("ld.global.b32 %r3, [%rd2 + -2];", {}),
    "reads memory before": ("ld.global.b32 %r3, [%rd2]; griddepcontrol.wait;", {"early": True}),
    "writes memory before": ("st.global.b32 [%rd2], %r1; griddepcontrol.wait;", {"early": True}),
    "never executed": ("", {"early": True}),
    "deadlock": (DIVERGENT, {}),
    "endless": ("$L:\nbra.uni $L;", {}),
    "unknown: sin.approx.f32 %r3, %r1": ("sin.approx.f32 %r3, %r1;", {}),
    "unknown: add.s32 %x1, %r1, 1": ("add.s32 %x1, %r1, 1;", {}),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_forbidden_operation_is_reported(message: str, monkeypatch: pytest.MonkeyPatch):
    """A forbidden operation raises an error that quotes its statement."""
    monkeypatch.setattr(block, "MAX_STEPS", 1000)
    code, options = WRONG[message]
    with pytest.raises(PtxError, match=message):
        run(code, torch.zeros(64, dtype=torch.int32), **options)


def test_a_copy_arrives_only_when_it_is_waited_for():
    """Copies arrive in the order in which they were committed."""
    copies = "".join(
        f"cp.async.ca.shared.global [%r2+{at}], [%rd2 + 0], 0x4; cp.async.commit_group;" for at in (0, 256)
    )
    for left, arrived in ((2, [False, False]), (1, [True, False]), (0, [True, True])):
        data = torch.arange(1000, 1192, dtype=torch.int32)
        reads = "ld.shared.b32 %r3, [%r2]; ld.shared.b32 %r4, [%r2+256];"
        stores = "st.global.b32 [%rd2 + 256], %r3; st.global.b32 [%rd2 + 512], %r4;"
        run(f"{copies} cp.async.wait_group {left}; {reads} {stores}", data)
        assert [torch.equal(data[64 * part : 64 * part + 64], data[:64]) for part in (1, 2)] == arrived


def test_bfloat16_is_rounded_as_torch_rounds():
    """Every bfloat16 converts exactly, and numbers between two of them round to the nearest."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    numbers = bf16_to_float32(every.view(torch.int16).numpy().view(np.uint16))
    np.testing.assert_array_equal(numbers, every.float().numpy())
    between = torch.cat((every.float() * 1.001, every.float() * (1 + 2**-8)))
    rounded = bf16_to_float32(float32_to_bf16(between.numpy()))
    np.testing.assert_array_equal(rounded, between.bfloat16().float().numpy())
