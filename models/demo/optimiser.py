"""Muon for the matrices inside the layers, AdamW for the embedding and the norms.

Muon (Keller Jordan, 2024) replaces the momentum of each matrix by the nearest orthogonal matrix, found by a
Newton-Schulz iteration.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the quintic of Keller Jordan's Muon
NEWTON_SCHULZ_STEPS = 5


def orthogonalise(gradients: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly, of a stack [N, rows, columns]."""
    a, b, c = COEFFICIENTS
    tall = gradients.shape[1] > gradients.shape[2]
    x = gradients.mT if tall else gradients
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(Optimizer):
    """Momentum, orthogonalised. Matrices of the same shape are treated as one stack."""

    def __init__(self, params: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "Muon takes its gradients as they are"
        for group in self.param_groups:
            stacks: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                stacks.setdefault(weight.shape, []).append(weight)
            for shape, weights in stacks.items():
                updates = orthogonalise(torch.stack([self.momentum(weight, group["momentum"]) for weight in weights]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for weight, update in zip(weights, updates, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)

    def momentum(self, weight: Tensor, decay: float) -> Tensor:
        """The Nesterov momentum of one weight's gradient."""
        assert weight.grad is not None, "a weight without a gradient takes no part in the loss"
        buffer: Tensor = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
        buffer.lerp_(weight.grad, 1 - decay)
        return weight.grad.lerp(buffer, decay)


def optimisers(model: torch.nn.Module, matrix_lr: float, other_lr: float) -> list[Optimizer]:
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]
    outer = [p for name, p in model.named_parameters() if not (p.ndim == 2 and "layers" in name)]
    return [Muon(inner, matrix_lr), torch.optim.AdamW(outer, other_lr, betas=(0.9, 0.95), weight_decay=0.0)]
