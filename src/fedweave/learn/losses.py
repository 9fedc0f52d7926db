"""Losses over chosen examples of a client: of classes, which may have weights, of numbers and of labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedweave.core.target import CLASS, NUMBER, kind_of
from fedweave.errors import ConfigError

ClassWeight = str | tuple[float, ...] | Mapping[str, float]  # see `Criterion`
NumberLoss = Literal["mse", "mae", "huber", "quantile"]


def cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Mean cross-entropy over the nodes of weight 1, 0 without any: logits [n, c], target int64 [n] not negative,
    weight [n] of the logits' dtype."""
    # `gather` rather than F.cross_entropy, which has no batching rule and falls back to a slow decomposition
    entropy = -F.log_softmax(logits, -1).gather(-1, target[:, None])[:, 0]  # [n]
    return (entropy * weight).sum() / weight.sum().clamp(min=1)


def class_counts(y: Tensor, chosen: Tensor, classes: int) -> Tensor:
    """Number of `chosen` examples, bool [n], of each class: float64 [classes]; y int64 [n]."""
    truth = (y[:, None] == torch.arange(classes, device=y.device)) & chosen[:, None]
    return truth.to(torch.float64).sum(0)


def number_errors(outputs: Tensor, truth: Tensor, loss: NumberLoss, quantile: float = 0.5) -> Tensor:
    """The loss of each number, of the shape of `outputs` [e, t] and `truth`, both in units of the training targets.

    "mse" is (o − y)²; "mae" |o − y|; "huber" ½ (o − y)² up to 1 and |o − y| − ½ beyond (`torch.nn.HuberLoss`);
    "quantile" max(q (y − o), (q − 1) (y − o)), the pinball loss (Koenker and Bassett 1978).
    """
    error = outputs - truth
    if loss == "mse":
        return error.square()
    if loss == "mae":
        return error.abs()
    if loss == "huber":
        size = error.abs()
        return torch.where(size <= 1, 0.5 * error.square(), size - 0.5)
    return torch.maximum(-quantile * error, (1 - quantile) * error)


@dataclass(frozen=True)
class Criterion:
    """The loss of a client's examples: for classes the cross-entropy, for numbers `number_loss`, and for several labels
    the binary cross-entropy. The last two are means over all known targets.

    Classes may have different weights. A client counts its training examples itself, within its steps; it sends none of
    these counts.

    class_weight:     w_c of each class c: "none", 1; "balanced", n / (C n_c) for n training examples in C classes;
                      numbers in the order of the classes; or by a class's number, {"1": 30.0}, 1 for the others. With
                      several labels it weighs a yes and a no of each: "balanced" by n / (2 n_c), numbers weigh a yes.
    focal:            gamma of -w_c (1 - p_c)^gamma log p_c (Lin et al. 2017).
    logit_adjustment: tau; trains on the logits + tau log(n_c / n) (Menon et al. 2021), where a class without an
                      example counts as if it had one.
    number_loss:      loss of numbers (`number_errors`).
    quantile:         quantile of the quantile loss.
    counts:           training examples of each class [c], instead of the client's own counts.

    Raises:
        ValueError: a weight, the quantile or another number is out of range, such as negative or not finite, or the
            weights have another name.
    """

    class_weight: ClassWeight = "none"
    focal: float = 0.0
    logit_adjustment: float = 0.0
    number_loss: NumberLoss = "mse"
    quantile: float = 0.5
    counts: Tensor | None = field(default=None, compare=False)

    @property
    def plain(self) -> bool:
        """Whether the loss of classes is the plain cross-entropy."""
        return self.class_weight == "none" and not self.focal and not self.logit_adjustment

    def __call__(self, logits: Tensor, target: Tensor, weight: Tensor, counts: Tensor | None = None) -> Tensor:
        """The mean over the examples of weight 1, weighted by class; 0 without examples. Arguments as in
        `cross_entropy`; counts: training examples of each class [c], if `counts_classes`."""
        if self.plain:
            return cross_entropy(logits, target, weight)
        truth = (target[:, None] == torch.arange(logits.shape[-1], device=logits.device)) * weight[:, None]
        return self.soft(logits, truth.to(logits.dtype), counts)

    def of(self, logits: Tensor, target: Tensor, weight: Tensor, y: Tensor, train: Tensor) -> Tensor:
        """The same mean; counts the classes `y` int64 [e] of the `train`ing examples, bool [e], if weights need it."""
        if kind_of(y) != CLASS:
            return self.several(logits, target, weight, self._label_weights(y, train))
        counts = class_counts(y, train, logits.shape[-1]) if self.counts_classes and self.counts is None else None
        return self(logits, target, weight, counts)

    def several(
        self, outputs: Tensor, target: Tensor, weight: Tensor, label_weights: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """The mean over all known numbers, or labels, of the examples of weight 1, 0 without any.

        outputs [e, t]; target: `core.graph.Graph.truth` of the same examples [e, t]; weight [e]. label_weights: weights
        of a no and a yes of each label, [t] each; 1 without.
        """
        if outputs.shape != target.shape:  # broadcasting would compare each output with several targets
            raise ConfigError(
                f"model: its outputs are {list(outputs.shape)}, and the targets {list(target.shape)}. Give it an "
                "output for each target.",
                code="config.outputs",
            )
        numbers = kind_of(target) == NUMBER
        known = ~target.isnan() if numbers else target >= 0
        truth = torch.where(known, target, 0).to(outputs.dtype)
        if numbers:
            errors = number_errors(outputs, truth, self.number_loss, self.quantile)
        else:
            errors = F.softplus(outputs) - truth * outputs  # binary cross-entropy: log(1 + e^o) − y o
        share = known * weight[:, None]  # [e, t]
        if label_weights is None:
            return (errors * share).sum() / share.sum().clamp(min=1)
        share = share * torch.where(truth > 0, label_weights[1], label_weights[0]).to(outputs.dtype)
        total = share.sum()
        return (errors * share).sum() / torch.where(total > 0, total, torch.ones_like(total))

    def _label_weights(self, y: Tensor, train: Tensor) -> tuple[Tensor, Tensor] | None:
        """Weights of a no and a yes of each label by `class_weight`: "balanced" is n / (2 n_c) over the `train`ing
        examples; numbers weigh a yes. None if all weights are 1."""
        if self.class_weight == "none" or y.is_floating_point():
            return None
        if self.class_weight == "balanced":
            no = ((y == 0) & train[:, None]).to(torch.float64).sum(0)  # [t]
            yes = ((y == 1) & train[:, None]).to(torch.float64).sum(0)
            return (no + yes) / (2 * no.clamp(min=1)), (no + yes) / (2 * yes.clamp(min=1))
        ones = torch.ones(y.shape[1], dtype=torch.float64, device=y.device)
        return ones, torch.stack([ones[0] * value for value in self._numbers(y.shape[1])])

    def soft(self, logits: Tensor, truth: Tensor, counts: Tensor | None = None) -> Tensor:
        """The mean over examples with a share of each class, `truth` [n, c], weighted by class."""
        if self.plain:
            loss: Tensor = -(truth * F.log_softmax(logits, -1)).sum(-1).mean()
            return loss
        counts = counts if self.counts is None else self.counts
        counts = torch.ones_like(logits[0]) if counts is None else counts.to(logits.dtype)
        if self.logit_adjustment:
            logits = logits + self.logit_adjustment * torch.log(counts.clamp(min=1) / counts.sum().clamp(min=1))
        log_p = F.log_softmax(logits, -1)
        entropy = -log_p
        if self.focal:
            entropy = entropy * (-torch.expm1(log_p)).clamp(min=torch.finfo(log_p.dtype).eps) ** self.focal
        weighted = truth * self._weights(counts)
        total = weighted.sum()
        return (entropy * weighted).sum() / torch.where(total > 0, total, torch.ones_like(total))

    def by(self, counts: Tensor | None) -> "Criterion":
        """The same loss with these `counts`, if there are any."""
        return self if counts is None else replace(self, counts=counts)

    @property
    def counts_classes(self) -> bool:
        """Whether the loss depends on the number of training examples of each class."""
        return self.class_weight == "balanced" or self.logit_adjustment > 0

    def _weights(self, counts: Tensor) -> Tensor:
        """w_c [c] of classes with these `counts` of training examples."""
        if self.class_weight == "none":
            return torch.ones_like(counts)
        if self.class_weight == "balanced":
            return counts.sum() / (len(counts) * counts.clamp(min=1))
        return torch.stack([torch.full_like(counts[0], value) for value in self._numbers(len(counts))])

    def _numbers(self, classes: int) -> tuple[float, ...]:
        weights = self.class_weight
        if isinstance(weights, Mapping):
            unknown = [name for name in weights if not (name.isdecimal() and int(name) < classes)]
            if unknown:
                raise ConfigError(
                    f"class_weight: there is no class {unknown[0]!r}; give numbers from 0 to {classes - 1}.",
                    code="config.no-class",
                )
            return tuple(weights.get(str(number), 1.0) for number in range(classes))
        if isinstance(weights, str) or len(weights) != classes:
            raise ConfigError(f"class_weight: has {len(weights)} numbers, and there are {classes} classes.")
        return weights


PLAIN = Criterion()


def by_number(weights: object, labels: Sequence[str], classes: int) -> object:
    """A `class_weight` by classes' names, as numbers in their order; any other value as it is.

    Raises:
        ConfigError: there is no such class.
    """
    if not isinstance(weights, Mapping):
        return weights
    names = [str(name) for name in labels] or [str(number) for number in range(classes)]
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise ConfigError(
            f"algorithm.class_weight: there is no class {unknown[0]!r}. The classes are {', '.join(names)}.",
            code="config.no-class",
        )
    return tuple(float(weights.get(name, 1.0)) for name in names)
