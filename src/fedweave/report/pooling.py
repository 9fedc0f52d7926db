"""What was pooled of members' data although no message shows it, in plain words."""

from fedweave.experiment.config import Document

POOLED = (
    "This baseline needs all members' features, labels and edges at one place. The rows below are what that place "
    "exchanged; that every member handed over everything is not among them."
)
SCALED = {
    "simulation": "Features are scaled (normalise = {how!r}) by numbers over all nodes, which this simulation computed "
    "of the whole data before it was cut; the exchange “(scale)” is what members would send to get them.",
    "flare": "Every site scales its features by its own numbers, or leaves them as they are, as its own site.toml "
    "says; nothing left for that, and the experiment's normalise = {how!r} counts in simulations alone. Data that "
    "`fedweave sites init --split` cut for sites had been scaled by it before, by numbers over all nodes.",
}


def pooled(config: Document, at_one_place: bool) -> list[str]:
    """Sentences on a run: whether all its data was `at_one_place`, and by which numbers features were scaled."""
    if at_one_place:
        return [POOLED]
    how, engine = config.get("data", {}).get("normalise", "none"), config.get("engine", {}).get("name", "simulation")
    own = how in ("none", "row", "binary")  # each row by itself; see `datasets.features`
    return [] if own or engine not in SCALED else [SCALED[engine].format(how=how)]
