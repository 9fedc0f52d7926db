"""Whether the replies that a site's policy still allows last for a whole run of an experiment."""

from collections.abc import Iterator

from fedweave.config import General
from fedweave.core.algorithm import Calls
from fedweave.core.federation import step_name
from fedweave.deploy.flare.policy import Spent, is_of, replies_of
from fedweave.deploy.flare.sitefile import Rules


def ending(rules: Rules, spent: Spent, calls: Calls, general: General) -> Iterator[str]:
    """A sentence for each cap of `policy.calls` that the run would reach.

    spent: what the site's journals come to, those of earlier jobs of the same run included.
    """
    every, rounds = general.eval_every, general.rounds
    evaluations = rounds // every + (rounds % every > 0) if every else 1  # and after the last round
    times = ((calls.setup, 1), (calls.round, rounds), (calls.evaluation, evaluations))
    for name, most in rules.calls.items():
        wanted = sum(many * sum(is_of(step_name(step), name) for step in steps) for steps, many in times)
        done = replies_of(spent, name)
        if wanted and done + wanted > most:
            yield (
                f"policy.calls: {name} may reply {most:,} times and has replied {done:,} times, but {rounds:,} rounds "
                f"ask for {wanted:,} replies"
            )
