"""Whether the replies and the ε that a site's policy still allows last for a whole run of an experiment."""

from collections.abc import Iterator

from fedweave.config import General
from fedweave.core.algorithm import Calls
from fedweave.core.federation import step_name
from fedweave.core.text import counted
from fedweave.deploy.flare.foretold import overspent
from fedweave.deploy.flare.policy import Spent, is_of, replies_of
from fedweave.deploy.flare.sitefile import Rules
from fedweave.rounds import evaluated


def ending(rules: Rules, spent: Spent, calls: Calls, general: General) -> Iterator[str]:
    """A sentence for each cap of `policy.calls`, and for that on ε, that the run would reach, and for one on bytes that
    is reached already: how many a run sends depends on its data.

    spent: what the site's journals come to, those of a run that is to be continued included, which asks for less.
    """
    if rules.bytes is not None and spent.bytes >= rules.bytes:
        yield (
            f"policy.bytes: {spent.bytes:,} have left and {rules.bytes:,} may, so that a run that begins now would "
            f"lose the site in round 1 of {general.rounds:,}"
        )
    yield from _of_replies(rules, spent, calls, general)
    if why := overspent(rules, spent, calls, general):
        yield why


def _of_replies(rules: Rules, spent: Spent, calls: Calls, general: General) -> Iterator[str]:
    for name, most in rules.calls.items():
        begin, each, judged = (
            sum(is_of(step_name(step), name) for step in steps)
            for steps in (calls.setup, calls.round, calls.evaluation)
        )
        done, wanted = replies_of(spent, name), begin
        for round in range(1, general.rounds + 1):
            wanted += each + judged * evaluated(round, general.rounds, general.eval_every)
            if done + wanted > most:
                yield (
                    f"policy.calls: {name} has replied {counted(done, 'time')} and may {counted(most, 'time')}, so "
                    f"that a run that begins now would lose the site in round {round:,} of {general.rounds:,}"
                )
                break
