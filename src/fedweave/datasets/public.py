"""The published single graphs, one class each; how they are found stands at `lookup.Public`."""

from dataclasses import dataclass
from pathlib import Path

from fedweave.datasets.base import Dataset
from fedweave.datasets.lookup import Facts, Public


@dataclass(frozen=True)
class Cora(Public):
    """Planetoid split (Yang et al. 2016); papers by words, citations."""

    name = "cora"
    facts = Facts(2708, 5278, 1433, 7)


@dataclass(frozen=True)
class CiteSeer(Public):
    """Planetoid split (Yang et al. 2016); papers by words, citations."""

    name = "citeseer"
    facts = Facts(3327, 4552, 3703, 6)


@dataclass(frozen=True)
class PubMed(Public):
    """Planetoid split (Yang et al. 2016); papers by TF-IDF, citations."""

    name = "pubmed"
    facts = Facts(19717, 44324, 500, 3)


@dataclass(frozen=True)
class AmazonComputers(Public):
    """Shchur et al. 2018; products by words of reviews, bought together."""

    name = "amazon-computers"
    facts = Facts(13752, 245861, 767, 10)


@dataclass(frozen=True)
class CoauthorCS(Public):
    """Shchur et al. 2018; authors by keyword counts, co-authorship."""

    name = "coauthor-cs"
    facts = Facts(18333, 81894, 6805, 15)


@dataclass(frozen=True)
class DBLP(Public):
    """Bojchevski and Günnemann 2018; papers by words, citations."""

    name = "dblp"
    facts = Facts(17716, 52867, 1639, 4)


@dataclass(frozen=True)
class CoraFull(Public):
    """Bojchevski and Günnemann 2018, their whole Cora; papers by words, citations."""

    name = "corafull"
    facts = Facts(19793, 63421, 8710, 70)


@dataclass(frozen=True)
class Flickr(Public):
    """Attributed social network (Yang et al. 2023); users by tags, following."""

    name = "flickr-attributed"
    facts = Facts(7575, 239738, 12047, 9)


@dataclass(frozen=True)
class AmazonPhoto(Public):
    """Shchur et al. 2018; products by words of reviews, bought together."""

    name = "amazon-photo"
    facts = Facts(7650, 119081, 745, 8)


@dataclass(frozen=True)
class CoauthorPhysics(Public):
    """Shchur et al. 2018; authors by keyword counts, co-authorship."""

    name = "coauthor-physics"
    facts = Facts(34493, 247962, 8415, 5)


@dataclass(frozen=True)
class Actor(Public):
    """Pei et al. 2020, as Platonov et al. 2023 have it; actors by words of their pages, named together."""

    name = "actor"
    facts = Facts(7600, 26659, 932, 5)


@dataclass(frozen=True)
class Chameleon(Public):
    """Platonov et al. 2023, without duplicates; pages by nouns, links; classes of traffic."""

    name = "chameleon-filtered"
    facts = Facts(890, 8854, 2325, 5)


@dataclass(frozen=True)
class Squirrel(Public):
    """Platonov et al. 2023, without duplicates; pages by nouns, links; classes of traffic."""

    name = "squirrel-filtered"
    facts = Facts(2223, 46998, 2089, 5)


@dataclass(frozen=True)
class Minesweeper(Public):
    """Platonov et al. 2023; cells of a grid, neighbouring; mines. Judge by AUC: the majority is .80."""

    name = "minesweeper"
    facts = Facts(10000, 39402, 7, 2)


@dataclass(frozen=True)
class RomanEmpire(Public):
    """Platonov et al. 2023; words of an article, in sequence or depending; syntactic roles."""

    name = "roman-empire"
    facts = Facts(22662, 32927, 300, 18)


@dataclass(frozen=True)
class AmazonRatings(Public):
    """Platonov et al. 2023; products by words, bought together; classes of rating."""

    name = "amazon-ratings"
    facts = Facts(24492, 93050, 300, 5)


@dataclass(frozen=True)
class Tolokers(Public):
    """Platonov et al. 2023; workers by profile, of one task; who was banned. Judge by AUC."""

    name = "tolokers"
    facts = Facts(11758, 519000, 10, 2)


@dataclass(frozen=True)
class Questions(Public):
    """Platonov et al. 2023; users by words, who answered whom; who stayed. Judge by AUC."""

    name = "questions"
    facts = Facts(48921, 153540, 301, 2)


@dataclass(frozen=True)
class People(Public):
    """Base of the tables of people below; features come in years, dollars and counts, so the default scales them."""

    normalise: str = "minmax"


@dataclass(frozen=True)
class Sensitive(People):
    """Base of those whose features repeat the sensitive attribute in a column, which is dropped.

    sens_feature: keep that column, so that models are trained on the attribute.
    """

    sens_feature: bool = False

    def _allowed(self, dataset: Dataset, path: Path) -> Dataset:
        return dataset if self.sens_feature else super()._allowed(dataset, path)


@dataclass(frozen=True)
class NBA(People):
    """FairGNN (Dai and Wang 2021); players by statistics, relations online."""

    name = "nba"
    facts = Facts(403, 10621, 95, 2, sens="country")


@dataclass(frozen=True)
class German(Sensitive):
    """NIFTY (Agarwal et al. 2021); bank clients, similarity."""

    name = "german"
    facts = Facts(1000, 21742, 27, 2, sens="gender")
    sens_column = 0


@dataclass(frozen=True)
class Bail(Sensitive):
    """NIFTY (Agarwal et al. 2021); defendants, similarity."""

    name = "bail"
    facts = Facts(18876, 311870, 18, 2, sens="race")
    sens_column = 0


@dataclass(frozen=True)
class Credit(Sensitive):
    """NIFTY (Agarwal et al. 2021); card holders, similarity."""

    name = "credit"
    facts = Facts(30000, 137377, 13, 2, sens="age")
    sens_column = 1


@dataclass(frozen=True)
class Income(Sensitive):
    """Adults of the American census; similarity; who earns more than 50,000 dollars."""

    name = "income"
    facts = Facts(14821, 42831, 14, 2, sens="race")
    sens_column = 8


@dataclass(frozen=True)
class Reddit(Public):
    """GraphSAGE (Hamilton et al. 2017); posts by mean word vectors, commented on by the same user."""

    name = "reddit"
    facts = Facts(232965, 57307946, 602, 41)
    exact = True
    origin = (
        "\nThe graph is published with GraphSAGE; PyTorch Geometric's Reddit (not Reddit2) fetches it, and "
        "docs/data-format.md turns that into reddit.npz."
    )


PUBLIC: tuple[type[Public], ...] = (
    Cora,
    CiteSeer,
    PubMed,
    AmazonComputers,
    CoauthorCS,
    DBLP,
    CoraFull,
    Flickr,
    AmazonPhoto,
    CoauthorPhysics,
    Actor,
    Chameleon,
    Squirrel,
    Minesweeper,
    RomanEmpire,
    AmazonRatings,
    Tolokers,
    Questions,
    NBA,
    German,
    Bail,
    Credit,
    Income,
    Reddit,
)
