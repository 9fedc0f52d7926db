"""What a step at a site finds of other sites."""

import logging

from fedweave.core.federation import step_info
from fedweave.core.tree import Tree
from fedweave.deploy.flare.participation import Participation
from fedweave.deploy.flare.requests import Call
from fedweave.engines.steps import find_step


def read_received(job: Participation, asked: Call, site: str, log: logging.Logger) -> tuple[Tree, dict[str, str]]:
    """What the step that is `asked` for finds of its peers at `site`, and {peer: "missing" or "refused"} of those who
    left nothing of use."""
    of = asked.received
    if of is None:
        return {}, {}
    info, call = step_info(find_step(job.algorithm, of.step)), (asked.round, of.again)
    message, faults, refused = job.inbox.open(of.step, info, call, of.sources[site], of.clients)
    for peer, why in refused.items():
        log.error("what %s sent is of no use: %s", peer, why)
    return message, faults
