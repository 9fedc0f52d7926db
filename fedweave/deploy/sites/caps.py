"""Whether the replies that a site's policy still allows last for a whole run of an experiment."""

from collections.abc import Iterator

from fedweave.config import General
from fedweave.core.algorithm import Calls
from fedweave.core.federation import step_name
from fedweave.deploy.flare.policy import Spent, is_of, replies_of
from fedweave.deploy.flare.sitefile import Rules


def ending(rules: Rules, spent: Spent, calls: Calls, general: General) -> Iterator[str]:
    """A sentence for each cap of `policy.calls` that the run would reach.

    spent: what the site's journals come to, those of a run that is to be continued included, which asks for less.
    """
    for name, most in rules.calls.items():
        begin, each, judged = (
            sum(is_of(step_name(step), name) for step in steps)
            for steps in (calls.setup, calls.round, calls.evaluation)
        )
        done, wanted = replies_of(spent, name), begin
        for round in range(1, general.rounds + 1):
            last = round == general.rounds
            wanted += each + judged * (last or (bool(general.eval_every) and round % general.eval_every == 0))
            if done + wanted > most:
                yield (
                    f"policy.calls: {name} has replied {done:,} times and may {most:,} times, so that a run that "
                    f"begins now would lose the site in round {round:,} of {general.rounds:,}"
                )
                break
