"""Exact sums of whole numbers that represent real ones. The order of addition does not change them. So pads
between sites cancel exactly (`privacy.aggregation`), and a simulation without pads has the very same sum."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedweave.core.federation import Sends
from fedweave.core.mechanism import Derived, SecureSum
from fedweave.errors import UserError

BEYOND = "beyond"  # message field: how many of a client's numbers were cut to the bound, itself a word of the sum


@dataclass(frozen=True)
class FixedPoint:
    """Masked integers (words) of `bits` binary digits, `fraction` of them behind the point, added modulo 2^bits."""

    bits: int = 32
    fraction: int = 16

    DTYPES: ClassVar = {32: torch.int32, 64: torch.int64}

    def __post_init__(self) -> None:
        if self.bits not in self.DTYPES or not 0 <= self.fraction < self.bits - 1:
            raise ValueError(f"words have 32 or 64 bits (here {self.bits}), and a fraction of fewer ({self.fraction})")

    @classmethod
    def of(cls, mechanism: SecureSum) -> "FixedPoint":
        """The format of words that a mechanism declares."""
        return cls(mechanism.bits, mechanism.fraction)

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the words."""
        return self.DTYPES[self.bits]

    def check(self, bound: float, clients: int, what: str) -> None:
        """Raise an error if the sum of terms within ±`bound` over `clients` clients could wrap around."""
        if clients * self.word(bound) >= 1 << (self.bits - 1):
            max_bound = 2.0 ** (self.bits - 1 - self.fraction) / clients
            raise UserError(
                f"{what}: terms up to {bound:g} of {clients} clients with {self.fraction} of {self.bits} bits behind "
                f"the point may overflow; lower bound to below {max_bound:g}, lower fraction, or take 64 bits",
                code="user.overflow",
            )

    def word(self, value: float) -> int:
        """The word that represents a number."""
        result: int = round(value * 2**self.fraction)
        return result

    def encode(self, value: Tensor, limit: Any) -> Tensor:
        """The words of `value`, rounded and limited to ±`limit`, a word or float64 scalar. A value that is not finite
        becomes the smallest word, which represents no number (`has_diverged`)."""
        scaled = (value.to(torch.float64) * 2.0**self.fraction).round_()
        words = scaled.clamp(-limit, limit).to(self.dtype)
        return torch.where(value.isfinite(), words, torch.iinfo(self.dtype).min)

    def beyond(self, value: Tensor, limit: float | Tensor) -> Tensor:
        """Number of elements of `value` that `encode` cuts to ±`limit`: int64 scalar."""
        result: Tensor = ((value.to(torch.float64) * 2.0**self.fraction).round_().abs() > limit).sum()
        return result

    def decode(self, total: Tensor, dtype: torch.dtype) -> Tensor:
        """The number that a sum of words represents."""
        return (total.to(torch.float64) * 2.0**-self.fraction).to(dtype)


def has_diverged(words: Tensor) -> bool:
    """Whether a word represents a number that is not finite, which a sum of words would hide."""
    return bool((words == torch.iinfo(words.dtype).min).any())


def even_share(words: FixedPoint, share: Tensor) -> Tensor:
    """The largest word that each of 1 / `share` clients may send without a sum that wraps around. It is a
    float64 scalar, which holds words of 32 bits exactly."""
    clients = (1 / share.to(torch.float64)).round()
    return ((2.0 ** (words.bits - 1) - 1) / clients).floor()


def beyond_declaration(of: str, mechanism: SecureSum) -> dict[str, Sends]:
    """The declaration of `BEYOND` for the message field `of` in such a sum: it is in the sum too."""
    reveals = "nothing by itself; with the others' the number of all values that were cut to the bound of the sum"
    return {BEYOND: Sends(reveals, (Derived(of), replace(mechanism, bits=64, fraction=0)))}


def update_tally(before: Tensor | None, cut: Tensor, values: int, bound: float) -> Tensor:
    """Running totals of secure sums, float64 [4]: numbers that were cut, all numbers, sums with cuts, and the bound of
    the last such sum.

    before: earlier totals; None before the first sum. cut, values: counts of a sum.
    """
    total = torch.zeros(4, dtype=torch.float64, device=cut.device) if before is None else before
    has_cuts = float(cut > 0)
    change = [float(cut), values, has_cuts, (bound - float(total[3])) * has_cuts]
    return total + torch.tensor(change, dtype=torch.float64, device=total.device)


def cut_counts(tally: Tensor | None) -> dict[str, float]:
    """A tally's entries for a summary: {} if nothing was cut."""
    if tally is None or not tally[0] > 0:
        return {}
    names = ("secure_sum/cut", "secure_sum/values", "secure_sum/sums", "secure_sum/bound")
    return dict(zip(names, tally.tolist(), strict=True))
