"""The order in which a site answers calls: that in which its own algorithm makes them."""

from fedweave.core.algorithm import Calls
from fedweave.core.federation import Step, step_name
from fedweave.core.purposes import EVALUATION, PREDICTION, SETUP, TRAINING
from fedweave.errors import CallRefused
from fedweave.experiment.rounds import evaluated


class Order:
    """How far a job has come among the calls that its algorithm makes.

    Every call has a place in its round, the occurrence of its step there, and places only rise: no call comes twice, or
    after what follows it. A site may be left out of some. Set-up is round 0, evaluation the end of a round.

    calls: those of the site's own algorithm. after: the round whose state the job continues from, -1 for none. rounds:
    how many there are. every: in which of them there are evaluations (`rounds.evaluated`). predict: the job has a
    finished run's models predict, which are those after that round.
    """

    def __init__(self, calls: Calls, after: int, rounds: int, predict: bool = False, every: int = 1) -> None:
        self._setup, self._round = _names(calls.setup), _names((*calls.round, *calls.evaluation))
        self._training = len(calls.round)
        self._predicted = _names(calls.prediction) if predict else None
        self._first, self._last = (after, after) if predict else (after + 1, rounds)
        self._every, self._reached = every, (self._first, -1)

    def admit(self, step: str, round: int, again: int) -> None:
        """Note that the `again`-th further call of `step` in `round` has come.

        Raises:
            CallRefused: it is not its turn; names what is due.
        """
        due = self._due(round)
        places = [place for place, name in enumerate(due) if name == step]
        here = (round, places[again] if again < len(places) else -1)
        if not self._first <= round <= self._last or here[1] < 0 or here <= self._reached:
            raise CallRefused(
                f"{step}, occurrence {again + 1} in round {round}, is out of the algorithm's order: {self._expected()}"
            )
        self._reached = here

    @property
    def purpose(self) -> str:
        """What the call is for that was admitted last."""
        round, place = self._reached
        if self._predicted is not None:
            return PREDICTION
        return SETUP if round == 0 else TRAINING if place < self._training else EVALUATION

    def _due(self, round: int) -> tuple[str, ...]:
        if self._predicted is not None:
            return self._predicted
        if not round:
            return self._setup
        return self._round if evaluated(round, self._last, self._every) else self._round[: self._training]

    def _expected(self) -> str:
        round, place = self._reached
        rest = list(dict.fromkeys(self._due(round)[place + 1 :]))
        words = [f"{' or '.join(rest)} in round {round}"] if rest else []
        if round < self._last:
            words.append(f"a later round, up to {self._last}")
        return f"expected is {', or '.join(words)}" if words else "nothing more is expected in this job"


def _names(steps: tuple[Step, ...]) -> tuple[str, ...]:
    return tuple(map(step_name, steps))
