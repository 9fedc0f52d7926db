"""FedPer: Arivazhagan et al. 2019, "Federated learning with personalization layers", algorithms 1 and 2.

Clients share all layers but the last. Deviation: heads start in common, for all draw the same first weights.
"""

from dataclasses import dataclass

from fedweave.algorithms.parts import Needs, Part, Training
from fedweave.algorithms.preset import preset_of


@dataclass(frozen=True)
class OwnHead(Part):
    """The last layer's weights stay at their client, which trains them with the rest.

    head: patterns of the weights that stay, "-1/*" being the last layer's.
    """

    head: tuple[str, ...] = ("-1/*",)
    recorded = True

    @property
    def needs(self) -> Needs:
        return Needs(private=self.head)

    def check(self, training: Training) -> None:
        single = len(training.model) < 2 or training.model[-1].runs_alone  # a module's, whose last layer has no weights
        if not self.head or (single and "-1/*" in self.head):
            raise ValueError(
                "head names the weights that stay at clients, and has to leave some to be shared; of a model of one "
                "layer or a module of one's own name these, such as head = ['0/classifier.*']"
            )


@preset_of(OwnHead)
class FedPer:
    """FedAvg of all layers but the last, which every client has for itself."""
