"""A site's own file, `site.toml`: where its data is, and what may leave."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from fedweave.core.links import Links
from fedweave.core.types import CLASS, Record
from fedweave.datasets.base import REFUSE, WIDENING, check_external, check_loops
from fedweave.datasets.features import check_normalize
from fedweave.datasets.links import TASK as LINKS
from fedweave.datasets.settings import DataSettings
from fedweave.deploy.flare.folder import SITE_FILE as SITE_FILE
from fedweave.deploy.flare.folder import About, check_private, table
from fedweave.errors import ConfigError
from fedweave.experiment.config import dumps, load
from fedweave.experiment.config.toml import check_keys

LEARNED = "learned"  # of `SiteData.features`
SECRET, IDS_KEY = "privacy.secret", "ids.key"  # in a site's folder

# What is told of an evaluation besides hits (`Rules.measures`).
Measure = Literal[
    "classes", "loss", "auc", "group_auc", "average_precision", "recall_at_1", "precision_at_1", "histogram", "ranks"
]
FINE: tuple[Measure, ...] = get_args(Measure)
HEAD = r"^(0|[1-9][0-9]{0,14}):([0-9a-f]{32}|)$"  # an entry of a site's accounts, see `chain.Head`
# As openssl prints it, or without colons.
_Fingerprint = Annotated[str, Field(pattern=r"^([0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}$")]


@dataclass(frozen=True, kw_only=True)
class SiteData(DataSettings):
    """The table [data]: the settings of a user's own data, and what a site alone says.

    Every site gives the same classes or labels, targets, missing, node_labels, edge_labels and degrees; those with the
    same columns the same categories and groups. Of target_normalize, sites do not exchange what "all" takes.

    path:      the graph, relative to the site's folder: an .npz file, or a folder with nodes and edges; for small
               graphs, with graphs, nodes and edges. An .npz file's classes are numbered by labels or classes, too.
    features:  "learned": nodes have no features, but a vector each that is learned (`entities`); the experiment says
               the same, and so does every site.
    test:      the global test graph that all sites hold, if there is one; a path likewise.
    users, items, relation: of links (`core.links.Links`); the experiment says the same, and so does every site.
    pairs:     a table of pairs of nodes, source and target and, of several relations, relation, whose scores
               `sites predict` writes beside those of the links; a path likewise.
    train_until, val_until: both of them, instead of a split in the data, a time or date: examples up to the first
               train, those up to the second validate and later ones test (`partition.divided`); every site gives the
               same.
    split, shares: "column", the data's own column split; or "hash": by a keyed hash (`ids.key`) of each id, of a party
               of a vertical run, or of both ends of a link, with these shares for train, val and test; every site gives
               the same. Without shares they are .6, .2 and .2, of links .85, .05 and .1. Links without a column split
               are split so in any case.
    random_id:  client id that random draws are made for instead of the site's name. `sites init --split` sets it so
               that the federation draws as the simulation of its configuration does.
    """

    path: str
    features: Literal["given", "learned"] = "given"
    test: str | None = None
    users: str | None = None
    items: str | None = None
    relation: bool = True
    pairs: str | None = None
    train_until: float | str | None = None
    val_until: float | str | None = None
    split: Literal["column", "hash"] = "column"
    shares: tuple[float, float, float] | None = None
    random_id: str | None = None

    def __post_init__(self) -> None:
        """Refuse what means nothing in whatever form the data is."""
        try:
            check_normalize(self.normalize)
            check_loops(self.loops, carries=True)
            check_external(self.external, (REFUSE, *WIDENING))
        except ConfigError as error:
            raise ConfigError(f"data.{error}", code=error.code) from error
        if self.classes is not None and self.labels is not None:
            raise ConfigError("data: give classes (labels are numbers) or labels (labels are names), not both.")
        if self.target_normalize not in ("own", "none"):
            raise ConfigError(
                f'data.target_normalize = "{self.target_normalize}": sites scale by their own training examples or not '
                'at all. Set it to "own" or "none".',
                code="config.target-normalize",
            )
        for column, values in (self.categories or {}).items():
            if isinstance(values, str):
                raise ConfigError(
                    f'data.categories.{column} = "{values}": sites that train together need the same columns, each '
                    "with values that others must not learn. Agree on a list of all values that may occur, and write "
                    f'it into every site.toml: {column} = ["…", "…"].',
                    code="config.categories-listed",
                )
        self._check_until()
        self._check_shares()
        self._check_links()

    def _check_links(self) -> None:
        if self.task != LINKS:
            usual = {"users": None, "items": None, "relation": True, "pairs": None}
            if odd := [name for name, value in usual.items() if getattr(self, name) != value]:
                raise ConfigError(
                    f'data.{odd[0]}: is of task = "links". Leave it out, or set the task.', code="config.links"
                )
            return
        Links(self.ratios, users=self.users, items=self.items)  # refuses one kind of nodes without the other
        for name, usual_value in (("test", None), ("external", REFUSE), ("target", CLASS)):
            if getattr(self, name) != usual_value:
                raise ConfigError(
                    f'data.{name}: does not go with task = "links", where each site tests on links of its own. Leave '
                    "it out.",
                    code="config.links",
                )

    def _check_shares(self) -> None:
        if self.split != "hash":
            return
        if self.timed:
            raise ConfigError("data.split = 'hash' with train_until and val_until: set one of them.")
        train, val, test = self.ratios
        if not (train > 0 <= min(val, test) and train + val + test <= 1 + 1e-9):
            raise ConfigError(
                f"data.shares = {list(self.ratios)}: they are of train, val and test; make train positive, none "
                "negative and their sum at most 1.",
                code="config.value",
            )

    def _check_until(self) -> None:
        bounds = {"train_until": self.train_until, "val_until": self.val_until}
        if absent := [name for name, until in bounds.items() if until is None and self.timed]:
            raise ConfigError(f"data.{absent[0]}: is lacking; a split by time has both ends.")
        for name, until in bounds.items():
            if not isinstance(until, str) and until is not None and 0 < until < 1:
                raise ConfigError(
                    f"data.{name} = {until}: shares would be of each site's own examples; give a time, or a date, "
                    "that all sites take."
                )

    @property
    def timed(self) -> bool:
        """Whether the file says until when examples train and validate."""
        return (self.train_until, self.val_until) != (None, None)

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Shares of examples to train on, to validate and to test, where a keyed hash says which each is."""
        if self.shares is not None:
            return self.shares
        return Links().ratios if self.task == LINKS else (0.6, 0.2, 0.2)

    @property
    def class_count(self) -> int | None:
        """How many classes the file says there are; None where it does not."""
        return self.classes if self.labels is None else len(self.labels)


@dataclass(frozen=True)
class Rules:
    """The table [policy]; by default everything that an installed algorithm sends may leave.

    algorithms: refuse jobs that run any other, or one of these with more parts than it has by itself; names, or
                "file.py:Name"; empty allows all.
    parts:      parts that these may have besides, by name or "file.py:Name".
    files:      Python files of this site that a job may name plug-ins in, "file.py:Name"; to look one up is to run it.
    deny:       top-level reply keys that never leave.
    mixup:      {key: smallest mixup batch}. noise: {key: least Gaussian noise}, the
                standard deviation over what a record changes at most, where the algorithm bounds that.
    secure_sum: keys that may only leave in a secure sum (`privacy.aggregation`) of all sites.
    partial_sums: whether one that sites may be missing from will do; two of them that differ in one site tell nearly
                what it sent.
    epsilon:    cap on the ε of all that ever left the site; what has no bound may not leave then.
    delta:      δ of that ε.
    unbounded:  keys that may leave without a bound despite `epsilon`, which does not hold for them.
    repeats:    whether a run with a target ε may send more than that is for, by rounds that are done again, or as
                another run of the same configuration.
    lost:       entries of the site's accounts, "number:hash" as a refusal names them, that have gone from its ledgers;
                what they counted is counted no more.
    bytes:      cap on the bytes that ever left the site.
    calls:      {step: how often it may reply, over all runs}; a step's own name, such as "train", or "FedAvg.train";
                "join", "blind", "align" and "pad" are for jobs.
    min_nodes:  fewest nodes, or small graphs, edges or links where these are the examples, that are aligned, trained on
                or scored; 1 allows single ones.
    min_sites:  fewest sites of a run, this one included.
    members:    {site: SHA-256 fingerprint of its certificate}; a run with a site that is not listed is refused, and so
                is what another certificate has signed: keys of secure sums, lists of ids. Empty allows any.
    min_summed: fewest sites whose terms a secure sum is of, whatever the algorithm says.
    min_difference: fewest sites by which the sites of a run with secure sums may differ from those of an earlier one on
                the same data; the difference of two such sums is a sum over these. 1 refuses none.
    exchange:   whether sums of its nodes' features may be told of nodes that other sites hold, over edges to these; or
                the fewest of its nodes of which it tells one.
    max_ids:    most ids on the list of any party that the site blinds in an alignment. None allows any number.
    round_scores: scores leave as multiples of this, and then without all that is counted by class or group; 1 leaves
                them as they are.
    measures:   what leaves with scores besides counts of hits (`FINE`): losses and what tells how examples are ordered,
                off one of which a server that chooses what is scored reads dozens of labels; "classes" is all that is
                counted by class or group, and how many examples of each class the site says to have as it joins;
                "ranks" of links, MRR, hits and lists of items. In a secure sum counts leave anyway; "histogram", how
                many have which score, leaves in one alone.
    score_epsilon: scores are of labels that randomized response with this ε has drawn, once for good; hits alone leave
                then, corrected for what the draw changes, and none of models that the client has trained on others.
    true_labels: whether scores may be of labels as they are where the algorithm itself trains on drawn ones alone.
    evaluations: most evaluations whose scores leave, over all runs, each model that is tried one. None allows any.
    max_change: largest L2 norm of the change of what the server sends, from the run's last message with the same keys,
                whatever step that was for. None allows any.
    """

    algorithms: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    mixup: dict[str, Annotated[int, Field(ge=1)]] = field(default_factory=dict)
    noise: dict[str, Annotated[float, Field(gt=0)]] = field(default_factory=dict)
    secure_sum: tuple[str, ...] = ()
    partial_sums: bool = False
    epsilon: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    unbounded: tuple[str, ...] = ()
    repeats: bool = False
    lost: tuple[Annotated[str, Field(pattern=HEAD)], ...] = ()
    bytes: Annotated[int, Field(gt=0)] | None = None
    calls: dict[str, Annotated[int, Field(ge=0)]] = field(default_factory=dict)
    min_nodes: Annotated[int, Field(ge=1)] = 10
    min_sites: Annotated[int, Field(ge=1)] = 1
    members: dict[str, _Fingerprint] = field(default_factory=dict)
    min_summed: Annotated[int, Field(ge=2)] = 2
    min_difference: Annotated[int, Field(ge=1)] = 2
    exchange: bool | Annotated[int, Field(ge=1)] = False
    max_ids: Annotated[int, Field(ge=1)] | None = None
    round_scores: Annotated[int, Field(ge=1)] = 1
    measures: tuple[Measure, ...] = ()
    score_epsilon: Annotated[float, Field(gt=0)] | None = None
    true_labels: bool = False
    evaluations: Annotated[int, Field(ge=0)] | None = None
    max_change: Annotated[float, Field(gt=0)] | None = None

    def plain(self) -> Record:
        """The rules that say something else than they do when they are left out, for JSON."""
        usual = asdict(Rules())
        odd = {key: value for key, value in asdict(self).items() if value != usual[key]}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in odd.items()}

    @classmethod
    def read(cls, plain: object) -> "Rules":
        """Undo `plain`.

        Raises:
            ConfigError: it is not of that form.
        """
        return table({"policy": plain}, "policy", cls)

    def freed(self, keys: Iterable[str]) -> "Rules":
        """The rules for what no owner can deny: nothing is, and the `keys` may leave without a bound."""
        return replace(self, deny=(), unbounded=(*self.unbounded, *keys))


def read_site_file(path: Path) -> tuple[SiteData, Rules]:
    """The tables [data] and [policy], checked.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not valid; names it and what is.
    """
    document = load(path)
    try:
        check_keys("", document, ["data", "policy", "site"])
        table(document, "site", About)
        return table(document, "data", SiteData), table(document, "policy", Rules)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", code="config.site") from error


def read_secret(path: Path) -> bytes:
    """The bytes of a site's secret file.

    Raises:
        ConfigError: there is none, or others can read it.
    """
    try:
        check_private(path)
        secret = bytes.fromhex(path.read_text().strip())
        if len(secret) < 32:
            raise ValueError(f"{len(secret)} bytes")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} holds no secret ({error}); it is 64 hexadecimal digits.") from error
    return secret


_VARIED = 16  # different bytes, at least, among 32; drawn at random, fewer than 22 are there once in a billion keys


def read_ids_key(folder: Path) -> bytes:
    """The key that blinds ids, in a site's folder.

    Raises:
        ConfigError: see `read_secret`; or it is a key that anybody would guess first, such as zeros.
    """
    key = read_secret(folder / IDS_KEY)
    if len(set(key[:32])) < _VARIED:
        raise ConfigError(
            f"{folder / IDS_KEY} is a weak key: it repeats few bytes, and whoever guesses it can try out ids. Draw one "
            "for all sites with `openssl rand -hex 32`.",
            code="config.weak-key",
        )
    return key


def starting(sites: int, vertical: bool) -> tuple[Record, Record]:
    """The tables [data] and [policy] that one of so many new `sites` starts from. In a secure sum of two each would
    find the other's term.

    vertical: they hold different columns of the same nodes, and agree on a split without a column for it. The party
    with labels scores alone, and labels of a batch follow from its gradients anyway: what else its scores tell of them
    is little.
    """
    about: Record = {"path": "data"}
    if not vertical:
        return about, {"secure_sum": ["update"], "min_sites": sites} if sites >= 3 else {}
    about |= {"split": "hash", "shares": [0.6, 0.2, 0.2], "normalize": "standard"}
    policy: Record = {
        "deny": ["h/predictions"],
        "measures": ["classes", "loss", "auc", "group_auc", "average_precision"],
    }
    return about, policy | ({"secure_sum": ["h"], "min_sites": sites} if sites >= 3 else {})


def write_site_file(path: Path, data: Record, **policy: object) -> None:
    """A site file with `data` as its [data] and a `policy` that its owner has yet to tighten."""
    head = "# The data of this site and what may leave it; see docs/deployment.md.\n"
    if not data.keys() & {"classes", "labels"}:
        head += (
            '# Say below [data] how many classes all sites have, classes = 2, or their names, labels = ["a", "b"].\n'
        )
    if data.get("normalize") == "standard" and data.get("split") == "hash":
        head += "# To predict new nodes later, leave out normalize and scale the columns yourself.\n"
    if policy.get("exchange"):
        head += "# exchange: the fewest nodes of which others are told a sum; 1, which hides no node, is the weakest.\n"
    path.write_text(head + dumps({"data": data, "policy": {"deny": []} | policy}), encoding="utf-8")
