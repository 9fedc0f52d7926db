"""The order in which a site accepts the calls of a job."""

from collections.abc import Callable, Sequence

from fedweave.algorithms.trials import AT_ONCE
from fedweave.core.algorithm import Calls
from fedweave.core.federation import Step, step_name
from fedweave.core.types import EVALUATION, PREDICTION, SETUP, TRAINING
from fedweave.errors import CallRefused
from fedweave.experiment.rounds import Interval, is_evaluated


class Order:
    """A job's progress through the calls of its algorithm.

    Every call has a place in its round, by the occurrence of its step. Places only rise, so that no call comes twice or
    out of order. The server may leave a site out of some calls. Set-up is round 0, evaluation the end of a round.

    calls: the calls of the site's own algorithm. after: the round after which the job continues, -1 for none. rounds:
    number of rounds. every: how often the model is evaluated (`rounds.is_evaluated`). predict: whether the job predicts
    with a finished run's models after the round `after`. max_models: the number of models that may be tried in given
    rounds.
    """

    def __init__(
        self,
        calls: Calls,
        after: int,
        rounds: int,
        predict: bool = False,
        every: Interval = 1,
        max_models: Callable[[Sequence[int]], int] = lambda rounds: 0,
    ) -> None:
        self._setup, self._round = _names(calls.setup), _names((*calls.round, *calls.evaluation))
        self._training = len(calls.round)
        self._predicted = _names(calls.prediction) if predict else None
        self._first, self._last = (after, after) if predict else (after + 1, rounds)
        self._every, self._reached = every, (self._first, -1)
        self._max_models, self._tried = max_models, (self._first, 0)

    def admit(self, step: str, round: int, occurrence: int) -> None:
        """Note that a call of `step` in `round` has come, after `occurrence` earlier ones in this round."""
        due = self._due(round)
        places = [place for place, name in enumerate(due) if name == step]
        here = (round, places[occurrence] if occurrence < len(places) else -1)
        if not self._first <= round <= self._last or here[1] < 0 or here <= self._reached:
            reached, place = self._reached
            rest = dict.fromkeys(self._due(reached)[place + 1 :])
            expected = [f"{' or '.join(rest)} in round {reached}"] if rest else []
            if reached < self._last:
                expected.append(f"a later round, up to {self._last}")
            what = f"expected is {', or '.join(expected)}" if expected else "nothing more is expected in this job"
            raise CallRefused(
                f"{step}, occurrence {occurrence + 1} in round {round}, is out of the algorithm's order: {what}"
            )
        self._reached = here

    def count_tried(self, models: int) -> None:
        """Note that the last admitted call tried this number of `models`."""
        round = self._reached[0]
        max_models, total = self._max_models([round]), models + (self._tried[1] if self._tried[0] == round else 0)
        if models > AT_ONCE or total > max_models:
            raise CallRefused(
                f"models to try in round {round}: {total} so far, {models} of them in one message; the algorithm tries "
                f"{max_models} in it, and {AT_ONCE} at once"
            )
        self._tried = round, total

    @property
    def round(self) -> int:
        """The round of the last admitted call."""
        return self._reached[0]

    @property
    def purpose(self) -> str:
        """The purpose of the last admitted call: prediction, set-up, training or evaluation."""
        round, place = self._reached
        if self._predicted is not None:
            return PREDICTION
        if round == 0:
            return SETUP
        return TRAINING if place < self._training else EVALUATION

    def _due(self, round: int) -> tuple[str, ...]:
        if self._predicted is not None:
            return self._predicted
        if not round:
            return self._setup
        return self._round if is_evaluated(round, self._last, self._every) else self._round[: self._training]


def _names(steps: tuple[Step, ...]) -> tuple[str, ...]:
    return tuple(map(step_name, steps))
