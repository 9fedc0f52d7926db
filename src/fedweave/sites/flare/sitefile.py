"""A site's own file, `site.toml`: the place of its data, and the policy on what may leave."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field

from fedweave.core.links import Links
from fedweave.core.settings import Beside, hints_of
from fedweave.core.types import CLASS, Record
from fedweave.datasets.external import REFUSE, WIDENING, check_external
from fedweave.datasets.links import TASK as LINKS
from fedweave.datasets.settings import DataSettings
from fedweave.errors import ConfigError
from fedweave.experiment.config import dumps, load
from fedweave.experiment.config.toml import check_keys
from fedweave.sites.flare.folder import SITE_FILE as SITE_FILE
from fedweave.sites.flare.folder import check_private
from fedweave.sites.flare.machine import About, table

LEARNED = "learned"  # a value of `SiteData.features`
_REMOVED = (
    "No check then compares the next run with earlier ones, so remove at least ten at once. Members whose tables name "
    "them learn who has left, in an exchange or when they number entities (docs/forgetting.md)."
)
SECRET, IDS_KEY = "privacy.secret", "ids.key"  # in a site's folder

# Measures of an evaluation other than hits (`Rules.measures`).
Measure = Literal[
    "classes", "loss", "auc", "group_auc", "average_precision", "recall_at_1", "precision_at_1", "histogram", "ranks"
]
FINE: tuple[Measure, ...] = get_args(Measure)
# Which releases of fedweave a server may have: the site's own files, or any with the same `requests.PROTOCOL`.
Releases: TypeAlias = Literal["same-files", "same-protocol"]
HEAD = r"^(0|[1-9][0-9]{0,14}):([0-9a-f]{32}|)$"  # an entry of a site's accounts, see `chain.Head`
# As openssl prints it, or without colons.
_Fingerprint = Annotated[str, Field(pattern=r"^([0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}$")]
_OF_LINKS = Beside("task", LINKS)


@dataclass(frozen=True, kw_only=True)
class SiteData(DataSettings):
    """The table [data]: the settings of a user's own data, and settings that only sites have.

    Every site gives the same classes or labels, targets, missing, node_labels, edge_labels and degrees. Sites with the
    same columns give the same categories and groups. Sites do not support target_normalize = "all".

    path:      path of the graph, relative to the site's folder: an .npz file, or a folder with nodes and edges; for
               small graphs, with graphs, nodes and edges. labels or classes also number the classes of an .npz file.
    features:  "given", or "learned" if nodes have no features and every node gets a learned vector (`entities`); the
               same in the experiment and at every site.
    test:      path of the global test graph that all sites hold, relative to the site's folder; None without one.
    users, items: the kinds of nodes that a link leads from and to, if it joins two kinds; the same in the experiment
               and at every site.
    relation:  whether links have kinds, the labels of edges; the same in the experiment and at every site.
    pairs:     path of a table of pairs of nodes, relative to the site's folder, with the columns source and target and,
               for several relations, relation. `sites predict` scores them, too.
    train_until, val_until: times or dates that replace a split in the data: examples up to the first train, examples up
               to the second validate, and later ones test (`partition.divided`); both or none, the same at every site.
    split, shares: "column" for the data's own column split, or "hash" for a split by a keyed hash (`ids.key`) of each
               id of a party in a vertical run, or of both ends of a link, with these shares for train, val and test;
               the same at every site. Default shares are .6, .2 and .2, for links .85, .05 and .1. Links without a
               column split always have a split by hash.
    forget:     path of a text file with an id per line, relative to the site's folder: nodes, edges or small graphs
               that no run and no prediction of the site uses from then on. They do not leave the site.
    random_id:  client id for random draws instead of the site's name. `sites init --split` sets it so that the
               federation has the same draws as the simulation of its configuration.
    """

    path: str
    features: Literal["given", "learned"] = "given"
    test: str | None = None
    users: Annotated[str | None, _OF_LINKS] = None
    items: Annotated[str | None, _OF_LINKS] = None
    relation: Annotated[bool, _OF_LINKS] = True
    pairs: Annotated[str | None, _OF_LINKS] = None
    train_until: float | str | None = None
    val_until: float | str | None = None
    split: Literal["column", "hash"] = "column"
    shares: tuple[float, float, float] | None = None
    forget: str | None = None
    random_id: str | None = None

    def __post_init__(self) -> None:
        """Refuse settings that apply to no form of data."""
        try:
            check_external(self.external, (REFUSE, *WIDENING))
        except ConfigError as error:
            raise ConfigError(f"data.{error}", code=error.code) from error
        if self.classes is not None and self.labels is not None:
            raise ConfigError("data: give classes (labels are numbers) or labels (labels are names), not both.")
        if self.target_normalize not in ("own", "none"):
            raise ConfigError(
                f'data.target_normalize = "{self.target_normalize}": sites scale by their own training examples or not '
                'at all. Set it to "own" or "none".',
                code="config.target-normalise",
            )
        for column, values in (self.categories or {}).items():
            if isinstance(values, str):
                raise ConfigError(
                    f'data.categories.{column} = "{values}": sites that train together need the same columns, and must '
                    "not learn each other's values. Agree on a list of all values that may occur, and write it into "
                    f'every site.toml: {column} = ["…", "…"].',
                    code="config.categories-listed",
                )
        # Splits by time, and by a hash.
        bounds = {"train_until": self.train_until, "val_until": self.val_until}
        for name, end in bounds.items():
            if end is None and self.splits_by_time:
                raise ConfigError(f"data.{name}: is missing; a split by time needs both train_until and val_until.")
            if not isinstance(end, str) and end is not None and 0 < end < 1:
                raise ConfigError(
                    f"data.{name} = {end}: a share would be of each site's own examples. Give one time or date for "
                    "all sites."
                )
        if self.split == "hash":
            if self.splits_by_time:
                raise ConfigError("data.split = 'hash' with train_until and val_until: set one of them.")
            train, val, test = self.ratios
            if not (train > 0 <= min(val, test) and train + val + test <= 1 + 1e-9):
                raise ConfigError(
                    f"data.shares = {list(self.ratios)}: these are the shares of train, val and test. Make train "
                    "positive, none negative and their sum at most 1.",
                    code="config.value",
                )
        # Links, and what the site leaves out.
        if self.task == LINKS:
            Links(self.ratios, users=self.users, items=self.items)  # refuses one kind of nodes without the other
            for name, default in (("test", None), ("external", REFUSE), ("target", CLASS)):
                if getattr(self, name) != default:
                    raise ConfigError(
                        f'data.{name}: does not apply to task = "links", where each site tests on its own links. '
                        "Remove it.",
                        code="config.links",
                    )
        if self.forget is None:
            return
        if self.task == LINKS or self.features == "learned":
            raise ConfigError(
                f"data.forget = {self.forget!r}: links have no ids. Remove the rows from your tables instead. "
                f"{_REMOVED}",
                code="forget.links",
            )
        if self.external != REFUSE:
            raise ConfigError(
                f"data.forget = {self.forget!r}: with external = {self.external!r} columns depend on other sites' "
                f"nodes. Remove the rows from your tables instead. {_REMOVED} Columns that other sites made of their "
                "edges to these nodes stay until they remove these edges.",
                code="forget.scaling",
            )

    @property
    def splits_by_time(self) -> bool:
        """Whether the file splits the examples by time."""
        return (self.train_until, self.val_until) != (None, None)

    @property
    def ratios(self) -> tuple[float, float, float]:
        """The shares of examples for train, val and test in a split by a keyed hash."""
        if self.shares is not None:
            return self.shares
        return Links().ratios if self.task == LINKS else (0.6, 0.2, 0.2)

    @property
    def class_count(self) -> int | None:
        """The number of classes in the file; None if the file does not state it."""
        return self.classes if self.labels is None else len(self.labels)


class Way(Enum):
    """What a rule is, in the type of its field (`way_of`). ALLOWS: fewer or lower values are stricter. DEMANDS: more or
    higher values are. NEITHER: no value is stricter than another."""

    ALLOWS = "allows"
    DEMANDS = "demands"
    NEITHER = "neither"


@dataclass(frozen=True)
class Rules:
    """The table [policy]; by default everything that an installed algorithm sends may leave.

    algorithms: algorithms that jobs may run, by name or "file.py:Name", each with its default parts; empty allows all.
    parts:      further parts that the listed algorithms may have, by name or "file.py:Name".
    files:      Python files at this site in which a job may name plug-ins, "file.py:Name". Looking one up runs the
                file.
    releases:   "same-files": the server has the site's files of fedweave. "same-protocol": it may have those of another
                release whose protocol has the same number.
    deny:       top-level message fields that never leave.
    mixup:      {key: smallest mixup batch}.
    noise:      {key: least Gaussian noise}, its standard deviation divided by the most that one record changes, where
                the algorithm bounds that.
    secure_sum: keys that may leave only in a secure aggregation (`protocols.aggregation`) of all sites.
    partial_sums: whether a secure aggregation may lack sites; two sums that differ in one site nearly reveal what that
                site sent.
    epsilon:    cap on the ε of all that ever left the site with a bound; with a cap, no field without a bound may
                leave. `fedweave audit` lists what left without one before.
    delta:      δ of that ε.
    unbounded:  keys that may leave without a bound despite `epsilon`, which does not hold for them.
    repeats:    whether a run with a target ε may send more than that target allows, by repeated rounds or as another
                run of the same configuration.
    lost:       entries of the site's accounts, "number:hash" from a refusal, that are gone from its ledgers; the owner
                accepts that no account counts them any more.
    bytes:      cap on the bytes that ever left the site.
    calls:      {step: largest number of replies over all runs}; a step's own name, such as "train", or "FedAvg.train";
                "join", "blind", "align", "pad", "match", "exchange", "take" and "unite" are requests before the first
                step.
    min_nodes:  minimum number of nodes that are aligned, trained on (also in a mini-batch) or scored, or of small
                graphs, edges or links if these are the examples, and that runs on the same data tell apart by what they
                leave out (`data.forget`); 1 allows single ones.
    min_sites:  minimum number of sites in a run, this one included.
    members:    {site: SHA-256 fingerprint of its certificate}; the site refuses a run with a site that is not listed,
                and keys of secure aggregation and lists of ids that another certificate signed. Empty allows any.
    min_summed: minimum number of sites in a secure aggregation, even if the algorithm allows fewer.
    min_difference: minimum number of sites by which two runs with secure aggregation on the same data may differ; the
                difference of two such sums is a sum over these sites. 1 refuses none.
    exchange:   whether sums of features of the site's nodes may leave over edges to nodes at other sites, or the
                minimum number of the site's nodes in each sum.
    max_ids:    largest number of ids on a party's list that the site blinds in an alignment. None allows any number.
    round_scores: step to whose multiples counts in scores are rounded; above 1, no losses and no counts by class or
                group leave. 1 does not round. It does not cover what the site reports when it joins (deny labels and
                split) and what training sends (FairFed's groups).
    measures:   measures that leave with scores in addition to counts of hits (`FINE`). "classes" are all counts by
                class or group, and the number of examples of each class when the site joins; "ranks" are MRR, hits and
                lists of items of links; all others are losses and measures of the order of examples. Without "loss",
                runs on numbers have no RMSE. From one of these, a server that chooses the scored models can read dozens
                of labels. In a secure aggregation, counts leave in any case; "histogram", the number of examples with
                each score, leaves only there. After the last round the same measures leave of what the site reaches
                alone (`baselines`), none if this is empty.
    score_epsilon: ε of a randomized response that draws the labels for scores once for good; only hits leave then,
                corrected for the bias of the draw, and none of models that the client has trained on other labels.
    true_labels: whether scores may use the true labels if the algorithm itself trains only on drawn ones.
    evaluations: largest number of evaluations whose scores leave, over all runs; each tried model counts as one, and
                one of which only zeros left does not count. None allows any.
    max_change: largest L2 norm of the change of a server's message from the run's last message with the same keys to
                any step. None allows any.
    """

    algorithms: Annotated[tuple[str, ...], Way.ALLOWS] = ()
    parts: Annotated[tuple[str, ...], Way.ALLOWS] = ()
    files: Annotated[tuple[str, ...], Way.ALLOWS] = ()
    releases: Annotated[Releases, Way.ALLOWS] = "same-files"
    deny: Annotated[tuple[str, ...], Way.DEMANDS] = ()
    mixup: Annotated[dict[str, Annotated[int, Field(ge=1)]], Way.DEMANDS] = field(default_factory=dict)
    noise: Annotated[dict[str, Annotated[float, Field(gt=0)]], Way.DEMANDS] = field(default_factory=dict)
    secure_sum: Annotated[tuple[str, ...], Way.DEMANDS] = ()
    partial_sums: Annotated[bool, Way.ALLOWS] = False
    epsilon: Annotated[Annotated[float, Field(gt=0)] | None, Way.ALLOWS] = None
    delta: Annotated[float, Field(gt=0, lt=1), Way.ALLOWS] = 1e-5
    unbounded: Annotated[tuple[str, ...], Way.ALLOWS] = ()
    repeats: Annotated[bool, Way.ALLOWS] = False
    lost: Annotated[tuple[Annotated[str, Field(pattern=HEAD)], ...], Way.NEITHER] = ()
    bytes: Annotated[Annotated[int, Field(gt=0)] | None, Way.ALLOWS] = None
    calls: Annotated[dict[str, Annotated[int, Field(ge=0)]], Way.ALLOWS] = field(default_factory=dict)
    min_nodes: Annotated[int, Field(ge=1), Way.DEMANDS] = 10
    min_sites: Annotated[int, Field(ge=1), Way.DEMANDS] = 1
    members: Annotated[dict[str, _Fingerprint], Way.ALLOWS] = field(default_factory=dict)
    min_summed: Annotated[int, Field(ge=2), Way.DEMANDS] = 2
    min_difference: Annotated[int, Field(ge=1), Way.DEMANDS] = 2
    exchange: Annotated[bool | Annotated[int, Field(ge=1)], Way.ALLOWS] = False
    max_ids: Annotated[Annotated[int, Field(ge=1)] | None, Way.ALLOWS] = None
    round_scores: Annotated[int, Field(ge=1), Way.DEMANDS] = 1
    measures: Annotated[tuple[Measure, ...], Way.ALLOWS] = ()
    score_epsilon: Annotated[Annotated[float, Field(gt=0)] | None, Way.ALLOWS] = None
    true_labels: Annotated[bool, Way.ALLOWS] = False
    evaluations: Annotated[Annotated[int, Field(ge=0)] | None, Way.ALLOWS] = None
    max_change: Annotated[Annotated[float, Field(gt=0)] | None, Way.ALLOWS] = None

    def plain(self) -> Record:
        """The rules that differ from their defaults, as a record for JSON."""
        defaults = asdict(Rules())
        changes = {key: value for key, value in asdict(self).items() if value != defaults[key]}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in changes.items()}

    @classmethod
    def read(cls, plain: object) -> "Rules":
        """Undo `plain`."""
        return table({"policy": plain}, "policy", cls)

    def exempt(self, keys: Iterable[str]) -> "Rules":
        """The rules for messages that an owner cannot deny: `deny` is empty, and the `keys` may leave without a
        bound."""
        return replace(self, deny=(), unbounded=(*self.unbounded, *keys))


def way_of(rule: str) -> Way:
    """The declared way of a rule."""
    (way,) = (one for one in get_args(hints_of(Rules)[rule])[1:] if isinstance(one, Way))
    return way


def read_site_file(path: Path) -> tuple[SiteData, Rules]:
    """The tables [data] and [policy], checked."""
    document = load(path)
    try:
        check_keys("", document, ["data", "policy", "site"])
        table(document, "site", About)
        return table(document, "data", SiteData), table(document, "policy", Rules)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", code="config.site") from error


def read_secret(path: Path) -> bytes:
    """The bytes of a site's secret file."""
    try:
        check_private(path)
        secret = bytes.fromhex(path.read_text().strip())
        if len(secret) < 32:
            raise ValueError(f"{len(secret)} bytes")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} holds no secret ({error}); it is 64 hexadecimal digits.") from error
    return secret


def read_ids_key(folder: Path) -> bytes:
    """The key that blinds ids, in a site's folder."""
    key = read_secret(folder / IDS_KEY)
    if len(set(key[:32])) < 16:  # in a billion random keys, one has fewer than 22 different bytes among 32
        raise ConfigError(
            f"{folder / IDS_KEY} is a weak key: it repeats few bytes, and an attacker who guesses it can try out ids. "
            "Draw one for all sites with `openssl rand -hex 32`.",
            code="config.weak-key",
        )
    return key


def starting(sites: int, vertical: bool) -> tuple[Record, Record]:
    """The initial tables [data] and [policy] of a new site. sites: number of sites in the project. With two sites there
    is not a secure aggregation, because each site could compute the other's term.

    vertical: whether the sites hold different columns of the same nodes. They then agree on a split without a column
    for it. Only the party with labels scores, and its gradients already reveal the labels of a batch, so that its
    scores reveal little more.
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
    """Write a site file with `data` as its [data] and a `policy` for its owner to tighten."""
    head = "# The data of this site and what may leave it; see docs/site-data.md and docs/policy.md.\n"
    if not data.keys() & {"classes", "labels", "target", "targets"}:
        head += (
            '# Write below [data] how many classes all sites have, classes = 2, or their names, labels = ["a", "b"].\n'
        )
    if data.get("normalize") == "standard" and data.get("split") == "hash":
        head += "# To predict new nodes later, leave out normalize and scale the columns yourself.\n"
    if policy.get("exchange"):
        head += "# exchange: minimum number of nodes in a sum that leaves; 1, which hides no node, is the weakest.\n"
    path.write_text(head + dumps({"data": data, "policy": {"deny": []} | policy}), encoding="utf-8")
