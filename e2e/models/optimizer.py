"""Muon: momentum whose matrix is replaced by its nearest semi-orthogonal one, for all matrices of a shape at once.

Source: K. Jordan and others, "Muon: An optimizer for hidden layers in neural networks" (2024); the five
coefficients of the quintic iteration are theirs. The expert stacks make the batched form worth its few lines.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon:
    """Nesterov momentum with orthogonalised updates.

    A parameter is [rows, columns], or a stack [n, rows, columns] each of whose members holds ``parts`` matrices
    one above the other (gate and up); every matrix is orthogonalised by itself.
    """

    def __init__(self, parameters: list[tuple[nn.Parameter, int]], momentum: float = 0.95) -> None:
        self.parameters = [parameter for parameter, _ in parameters]
        self.parts = [parts for _, parts in parameters]
        self.momentum = momentum
        self.buffers = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def directions(self, rank: int, world_size: int) -> list[Tensor]:
        """Absorb the gradients into the momentum; returns each parameter's orthogonalised direction.

        The matrices are shared out: what another rank works out is zero here, so that a sum over ranks completes it.
        """
        found = []
        for number, (parameter, buffer) in enumerate(zip(self.parameters, self.buffers, strict=True)):
            if parameter.grad is None:
                raise ValueError(f"parameter {number} has no gradient")
            buffer.lerp_(parameter.grad, 1 - self.momentum)
            if number % world_size != rank:
                found.append(torch.zeros_like(parameter))
                continue
            update = parameter.grad.lerp(buffer, self.momentum)
            rows, columns = parameter.shape[-2] // self.parts[number], parameter.shape[-1]
            direction = orthogonalise(update.reshape(-1, rows, columns)).reshape(parameter.shape)
            found.append(direction * max(1.0, rows / columns) ** 0.5)
        return found

    @torch.no_grad()
    def apply(self, directions: list[Tensor], learning_rate: float, weight_decay: float) -> None:
        """Move every parameter; weight decay is decoupled."""
        for parameter, direction in zip(self.parameters, directions, strict=True):
            parameter.mul_(1 - learning_rate * weight_decay).sub_(direction, alpha=learning_rate)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring every singular value of each matrix [..., rows, columns] near 1 by Newton-Schulz iteration."""
    a, b, c = COEFFICIENTS
    x: Tensor
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
