"""An axis with round numbers."""

import math
import sys


class Axis:
    """From `low` to `high` or a little beyond, between the pixels `begin` and `end`; `ticks` are round numbers, about
    as many as `parts`."""

    def __init__(self, low: float, high: float, begin: float, end: float, parts: int = 6) -> None:
        span = high - low if high - low > sys.float_info.min * parts else max(1.0, abs(high))
        rough = span / parts
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * by for by in (1, 2, 5, 10) if power * by >= rough * (1 - 1e-9))
        first, last = math.floor(low / step + 1e-9), math.ceil((low + span) / step - 1e-9)
        self.ticks = [number * step for number in range(first, last + 1)]
        self._begin, self._scale = begin, (end - begin) / (self.ticks[-1] - self.ticks[0])

    def place(self, value: float) -> float:
        """The pixel of a value."""
        return self._begin + (value - self.ticks[0]) * self._scale
