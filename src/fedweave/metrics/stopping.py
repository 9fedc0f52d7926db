"""Early stopping: when a run ends before its last round. Nothing here needs torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fedweave.core.bounds import CountOrNone, NonNegative
from fedweave.core.settings import Beside, Settings
from fedweave.errors import UserError
from fedweave.metrics.selection import METRICS, PLAIN, rank, selection_metric_of, title_of

# A summary holds the last improvement on validation examples: "stopping/round" is its round, "stopping/score" the
# selection metric in that round.
STOPPING = "stopping"


@dataclass(frozen=True)
class Stopping(Settings):
    """When a run ends before its last round: once the selection metric, as the mean over clients on validation
    examples, has not improved by more than `min_delta` for `patience` rounds.

    patience:  rounds, evaluated or not, since the last improvement until the run stops; 0 never stops. Whether it has
               come is seen in evaluated rounds.
    min_delta: improvement of the selection metric that a round must exceed.
    """

    patience: CountOrNone = 0
    min_delta: Annotated[NonNegative, Beside("patience")] = 0.0

    def update(self, number: int, score: float | None, summary: Mapping[str, float]) -> dict[str, float]:
        """The summary's entries for the last improvement, after the evaluation of round `number`; {} without patience.

        score:   the selection metric, as the mean over clients on validation examples (`best_rounds.validated`); None
                 if no client has one.
        summary: names the selection metric, and has the entries that the previous evaluation left.

        Raises:
            UserError: neither this evaluation nor an earlier one has a score.
        """
        if not self.patience:
            return {}
        metric = selection_metric_of(summary)
        last = {name: value for name, value in summary.items() if name.startswith(f"{STOPPING}/")}
        if score is None and not last:
            measure = METRICS[metric].measure or metric
            at_sites = "" if metric == PLAIN else f'; sites send it with "{measure}" in policy.measures'
            raise UserError(
                f"evaluation.patience = {self.patience}: {metric} on validation examples is known of no client. "
                f"Leave examples for validation (partition.val{at_sites}), or leave patience out.",
                code="user.no-validation",
            )
        if score is None:
            return last
        if last:
            improvement = rank(metric, score) - rank(metric, last[f"{STOPPING}/score"])
            if not improvement > self.min_delta:
                return last
        return {f"{STOPPING}/round": float(number), f"{STOPPING}/score": score}

    def stops(self, number: int, summary: Mapping[str, float]) -> bool:
        """Whether the run ends after round `number`, which has this summary."""
        return self.patience > 0 and number - summary.get(f"{STOPPING}/round", number) >= self.patience

    def sentence(self, number: int, summary: Mapping[str, float]) -> str:
        """Why the run stops after round `number`, as a sentence."""
        best, score = int(summary[f"{STOPPING}/round"]), summary[f"{STOPPING}/score"]
        return (
            f"stopped after round {number}: {title_of(selection_metric_of(summary))} on validation examples "
            f"has not improved by more than {self.min_delta:g} since round {best} ({score:.4f}; patience "
            f"{self.patience})"
        )
