"""A small transformer that adds three-digit numbers: a model for ``es-master --model``.

``python addition.py`` trains it by back-propagation for some seconds and writes ``addition.pt``.
Then ``es-master --model addition:Addition`` improves it by its share of exactly right sums, which
has no gradient. ``python addition.py RUN`` counts right sums among 10,000 other problems.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SYMBOLS = "0123456789+="
#: As 123+456=0579: a problem, and its answer.
LENGTH, PROBLEM = 12, 8
FILE = Path(__file__).with_name("addition.pt")
#: Right sums by which back-propagation ends, of a thousand.
ENOUGH = 550


def problems(count: int, seed: int) -> Tensor:
    """Symbols int64 [count, LENGTH] of problems with answers; all from the seed."""
    drawn = torch.randint(0, 1000, (2, count), generator=torch.Generator().manual_seed(seed))
    first, second = ([number // 10**power % 10 for power in (2, 1, 0)] for number in drawn)
    total = [drawn.sum(0) // 10**power % 10 for power in (3, 2, 1, 0)]
    plus, equals = (torch.full((count,), SYMBOLS.index(sign)) for sign in "+=")
    return torch.stack([*first, plus, *second, equals, *total], 1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, seen: Tensor) -> Tensor:
        rows, places, width = seen.shape
        parts = self.attention(self.before_attention(seen))
        parts = parts.view(rows, places, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        seen = seen + self.out(found.transpose(1, 2).reshape(rows, places, width))
        inner = nn.functional.gelu(self.up(self.before_layers(seen)))
        return seen + self.down(inner)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Predicts each next symbol; 102,476 parameters by default."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(len(SYMBOLS), width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(SYMBOLS))

    def forward(self, symbols: Tensor) -> Tensor:
        seen = self.symbols(symbols) + self.places.weight[: symbols.shape[1]]
        return self.head(self.norm(self.blocks(seen)))  # type: ignore[no-any-return]


def right_sums(module: nn.Module, asked: Tensor) -> int:
    """How many of the problems it answers exactly. Symbol after symbol, it would get the same ones
    right: up to the first wrong symbol, it sees the right answer's.
    """
    answers = module(asked[:, :-1])[:, PROBLEM - 1 :].argmax(-1)
    return int((answers == asked[:, PROBLEM:]).all(1).sum())


class Addition:
    """The model of the run. A score is of 256 problems."""

    problems = 256

    def load(self, device: str) -> nn.Module:
        module = Transformer()
        module.load_state_dict(torch.load(FILE, weights_only=True))
        return module.to(device)

    def score(self, module: nn.Module, seeds: list[int]) -> list[float]:
        device = next(module.parameters()).device
        sets = (problems(self.problems, seed).to(device) for seed in seeds)
        return [right_sums(module, asked) / self.problems for asked in sets]


def pretrain(module: nn.Module, enough: int = ENOUGH, most: int = 6000) -> None:
    """Back-propagation on 20,000 problems, until enough of a thousand others are right."""
    known, others = problems(20_000, 1), problems(1000, 99)
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(module.parameters(), 3e-3)
    for step in range(1, most + 1):
        batch = known[torch.randint(0, len(known), (128,), generator=generator)]
        outputs = module(batch[:, :-1])[:, PROBLEM - 1 :].flatten(0, 1)
        loss = nn.functional.cross_entropy(outputs, batch[:, PROBLEM:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 10 == 0:
            with torch.no_grad():
                right = right_sums(module, others)
            if right >= enough:
                print(f"{right / 10:.1f} % right after {step} steps of back-propagation")
                return


@torch.no_grad()
def share_right(module: nn.Module, count: int = 10_000) -> float:
    """Of problems that neither back-propagation nor a score has seen, except by chance."""
    return right_sums(module, problems(count, 2**31)) / count


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    if not words:
        torch.manual_seed(0)
        module: Any = Transformer()
        pretrain(module)
        torch.save(module.state_dict(), FILE)
        count = sum(one.numel() for one in module.parameters())
        print(f"{count:,} parameters in {FILE}: {share_right(module):.1%} right of others")
        return
    from es_queue import load_model

    for word in words:
        module = load_model(word, which="last", trust=True)
        print(f"{word}: {share_right(module):.1%} right")


if __name__ == "__main__":
    main(sys.argv[1:])
