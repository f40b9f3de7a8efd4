"""Schedules: a factor per generation, parsed from text.

The factor depends only on the generation's number. It uses plain float64 operations, so its bits
are the same everywhere, unlike those of a library's ``pow``.
"""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.errors import form_error
from es_queue.numerics.fingerprint import power
from es_queue.text import parse_finite, parse_whole

FORMS = "constant, exponential:RATE[,LEAST], linear:END,N or piecewise:N=FACTOR,N=FACTOR,..."
LARGEST_FACTOR = 1e6
MAX_STEPS = 1000


@dataclass(frozen=True)
class RateSchedule:
    """The factor of a setting, per generation.

    kind:  "constant", "exponential", "linear" or "piecewise"
    rate:  exponential: factor of each generation; linear: the factor from ``last`` on
    least: exponential: the smallest factor
    last:  linear: the generation that reaches ``rate``, from 1 at generation 0
    steps: piecewise: (first generation, factor), ascending; 1 before the first
    """

    kind: str
    rate: float = 1.0
    least: float = 0.0
    last: int = 0
    steps: tuple[tuple[int, float], ...] = ()

    @property
    def lowest(self) -> float:
        """The smallest factor in the text."""
        return min([self.rate, *(factor for _, factor in self.steps)])

    def factor(self, generation: int) -> float:
        """The factor of a generation, at least 0."""
        if self.kind == "exponential":
            return max(self.least, power(self.rate, generation))
        if self.kind == "linear":
            if generation >= self.last:
                return self.rate
            return 1.0 + (self.rate - 1.0) * (generation / self.last)
        return next((factor for first, factor in reversed(self.steps) if generation >= first), 1.0)


@dataclass(frozen=True)
class RateFactors:
    """The factors of one generation: of the learning rate, of sigma, and of both decays."""

    learning_rate: float = 1.0
    sigma: float = 1.0
    decay: float = 1.0


def parse_rate_schedule(name: str, text: str) -> RateSchedule:
    """Parse a schedule; ``name`` is the setting, for error messages. Raises UsageError."""
    kind, _, rest = text.partition(":")
    try:
        if text == "constant":
            return RateSchedule("constant")
        if kind == "exponential":
            return _parse_exponential(*rest.split(","))
        if kind == "linear":
            end, last = rest.split(",")
            return RateSchedule(
                "linear", rate=_parse_factor(end), last=parse_whole(last.strip(), 1)
            )
        if kind == "piecewise":
            return _parse_piecewise(rest.split(","))
    except (ValueError, TypeError):
        pass
    raise form_error(name, text, FORMS)


def _parse_exponential(rate: str, least: str = "0") -> RateSchedule:
    factor = _parse_factor(rate)
    if not 0 < factor <= 1:  # a factor that grows for ever overflows; the other forms allow growth
        raise ValueError
    return RateSchedule("exponential", rate=factor, least=_parse_factor(least))


def _parse_piecewise(parts: list[str]) -> RateSchedule:
    steps = []
    for part in parts:
        first, factor = part.split("=")
        steps.append((parse_whole(first.strip(), 0), _parse_factor(factor)))
    firsts = [first for first, _ in steps]
    if len(steps) > MAX_STEPS or sorted(set(firsts)) != firsts:
        raise ValueError
    return RateSchedule("piecewise", steps=tuple(steps))


def _parse_factor(text: str) -> float:
    return parse_finite(text, 0, LARGEST_FACTOR)
