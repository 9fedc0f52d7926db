"""How a site runs a step."""

from fedweave.core.federation import Client, Step
from fedweave.core.tree import Tree
from fedweave.engines.watching import Watched
from fedweave.errors import CallRefused, FedweaveError, StepFailed, raised_at


def carry_out(name: str, step: Step, client: Client, message: Tree) -> Tree:
    """What a step replies.

    Raises:
        StepFailed: it could do nothing with the data and the message. CallRefused: it wrote into the data.
    """
    watched = Watched(client.graph, client.test)
    try:
        reply = step(client, message)
    except FedweaveError:
        raise
    except Exception as error:
        raise StepFailed(f"step {name} failed{raised_at(error)}: {type(error).__name__}: {error}") from error
    watched.refuse_changes(name, "this site", CallRefused)  # which the server hears: it tells nothing of the data
    return reply
