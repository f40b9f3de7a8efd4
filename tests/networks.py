"""Models of the user's own for tests: small networks whose scores have no gradient."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch

LOADS: Iterator[int] = count()


class Network:
    """Two outputs from four numbers: a product and a sign; buffers and a tied weight, too."""

    def load(self, device: str) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(self.seed())
        layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh()
        module = torch.nn.Sequential(*layers, torch.nn.Linear(8, 2))
        for parameter in module.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 2)
        return module.to(device)

    def seed(self) -> int:
        return 1

    def score(self, module: Any, seeds: list[int]) -> list[float]:
        scores = []
        for seed in seeds:
            seen = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
            wanted = torch.stack([seen[:, 0] * seen[:, 1], seen[:, 2].sign()], 1)
            scores.append(-float((module(seen) - wanted).square().mean()))
        return scores


class Half(Network):
    """In bfloat16, with one layer trained."""

    trained = ("0.weight", "0.bias")

    def load(self, device: str) -> torch.nn.Module:
        return super().load(device).to(torch.bfloat16)

    def score(self, module: Any, seeds: list[int]) -> list[float]:
        return super().score(lambda seen: module(seen.to(torch.bfloat16)).float(), seeds)


class Drifting(Network):
    """Its first weights differ from worker to worker."""

    def seed(self) -> int:
        return next(LOADS)


class Forgetful(Network):
    """Reads a layer's weights itself, so that a hook of the layer is not called."""

    def score(self, module: Any, seeds: list[int]) -> list[float]:
        return [float(module[3].weight.sum()) for _ in seeds]


class Lucky(Network):
    def score(self, module: Any, seeds: list[int]) -> list[float]:
        return [float(torch.rand(())) for _ in seeds]


class Loss(Network):
    """Has a gradient, for comparison."""

    def loss(self, module: Any) -> torch.Tensor:
        seen = torch.randn(64, 4, generator=torch.Generator().manual_seed(5))
        return (module(seen) - seen[:, :2]).square().mean()

    def score(self, module: Any, seeds: list[int]) -> list[float]:
        return [-float(self.loss(module)) for _ in seeds]
