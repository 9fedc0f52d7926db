"""The settings of links as examples: their split, the edges that carry messages, and the pairs that rank a link."""

from dataclasses import asdict, dataclass
from typing import Literal

from fedweave.core.types import Record
from fedweave.errors import ConfigError

OF_DATA = ("seed", "relations", "loops")  # fields of `Links` that are not settings: the run and the data define them


@dataclass(frozen=True)
class Links:
    """The settings of [data] for links as examples.

    ratios:         shares of the links to train on, to validate and to test, where no column `split` says it.
    message:        along which edges messages go: "train", only training edges; "train+val", for test examples also
                    validation edges.
    disjoint:       the share of the training edges that a model is trained on and that carry no message while it is; 0
                    takes all of them for both.
    rank_negatives: how many pairs that are not links a validation or test link is ranked among, in each query; "all":
                    all of the client's, of graphs of up to some 50,000 nodes. 0 measures no ranks. By default 100, and
                    all items where there are users and items.
    users, items:   the kinds of nodes that a link leads from and to, where it joins two kinds; a candidate is an item.
    relation:       whether links have kinds, where the data says them: the label of an edge. False: all are of one.
    seed:           seed of the split and of the pairs that are not links; the run's.
    relations:      names of the kinds of links; () where all are of one.
    loops:          whether links join nodes with themselves, so that such a pair is a candidate like any other.
    """

    ratios: tuple[float, float, float] = (0.85, 0.05, 0.1)
    message: Literal["train", "train+val"] = "train"
    disjoint: float = 0.0
    rank_negatives: int | Literal["all"] | None = None
    users: str | None = None
    items: str | None = None
    relation: bool = True
    seed: int = 0
    relations: tuple[str, ...] = ()
    loops: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratios", tuple(self.ratios))
        train, val, test = self.ratios
        if not (train > 0 and val >= 0 and test >= 0 and train + val + test <= 1 + 1e-9):
            raise ConfigError(
                f"data.ratios = {list(self.ratios)}: must be three shares of at most 1 in all, the first above 0. "
                "Write ratios = [0.85, 0.05, 0.1].",
                code="config.value",
            )
        if not 0 <= self.disjoint < 1:
            raise ConfigError(
                f"data.disjoint = {self.disjoint}: must be at least 0 and below 1. Write disjoint = 0.3.",
                code="config.value",
            )
        if isinstance(self.rank_negatives, int) and self.rank_negatives < 0:
            raise ConfigError(
                f"data.rank_negatives = {self.rank_negatives}: must be at least 0, or 'all'. 0 measures no ranks.",
                code="config.value",
            )
        if (self.users is None) != (self.items is None):
            raise ConfigError(
                f"data.users = {self.users!r}, data.items = {self.items!r}: name both kinds of nodes, or neither.",
                code="config.value",
            )

    def plain(self) -> Record:
        """The keys of [data] that produce these settings."""
        table = {**asdict(self), "ratios": list(self.ratios)}
        return {name: value for name, value in table.items() if name not in OF_DATA and value is not None}

    @property
    def candidates(self) -> int | Literal["all"]:
        """`rank_negatives`, or its default."""
        if self.rank_negatives is None:
            return 100 if self.items is None else "all"
        return self.rank_negatives

    @property
    def levels(self) -> bool:
        """Whether the edges that messages go along depend on the split of the example that they serve."""
        return self.disjoint > 0 or self.message == "train+val"
