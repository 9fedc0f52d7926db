"""Early stopping: when a run ends before its last round. Nothing here needs torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fedweave.core.bounds import CountOrNone, NonNegative
from fedweave.core.settings import Beside, Settings
from fedweave.errors import UserError
from fedweave.metrics.selection import judged_by, rank, title_of

STOPPING = "stopping"  # "stopping/round" and "stopping/score" in a summary: the last improvement on validation


@dataclass(frozen=True)
class Stopping(Settings):
    """When a run ends before its last round: once the selection metric, as the mean over clients on validation
    examples, has not improved by more than `min_delta` for `patience` rounds.

    patience:  rounds without an improvement until the run stops; 0 never stops. Only evaluated rounds count.
    min_delta: improvement of the selection metric that a round must exceed.
    """

    patience: CountOrNone = 0
    min_delta: Annotated[NonNegative, Beside("patience")] = 0.0

    def improves(self, metric: str, score: float, best: float) -> bool:
        """Whether a score of a metric is better than the best one before by more than `min_delta`."""
        return rank(metric, score) - rank(metric, best) > self.min_delta

    def watched(self, number: int, score: float | None, summary: Mapping[str, float]) -> dict[str, float]:
        """The summary's entries for the last improvement, after a round's evaluation.

        score: the mean on validation examples (`measured.Measurement.validated`). summary: of the evaluation before,
        with the entry for the selection metric.

        Raises:
            UserError: no evaluation had a score.
        """
        if not self.patience:
            return {}
        before = {name: value for name, value in summary.items() if name.startswith(f"{STOPPING}/")}
        if score is None and not before:
            raise UserError(
                f"evaluation.patience = {self.patience}: {judged_by(summary)} is of no client's validation examples. "
                "Leave examples for validation (partition.val), or leave patience out.",
                code="user.no-validation",
            )
        if score is None or (before and not self.improves(judged_by(summary), score, before[f"{STOPPING}/score"])):
            return before
        return {f"{STOPPING}/round": float(number), f"{STOPPING}/score": score}

    def stops(self, number: int, summary: Mapping[str, float]) -> bool:
        """Whether the run ends after a round with this summary."""
        return self.patience > 0 and number - summary.get(f"{STOPPING}/round", number) >= self.patience

    def sentence(self, number: int, summary: Mapping[str, float]) -> str:
        """Why the run stops, as a sentence."""
        best, score = int(summary[f"{STOPPING}/round"]), summary[f"{STOPPING}/score"]
        return (
            f"stopped after round {number}: {title_of(judged_by(summary))} on validation examples "
            f"has not improved by more than {self.min_delta:g} since round {best} ({score:.4f}; patience "
            f"{self.patience})"
        )
