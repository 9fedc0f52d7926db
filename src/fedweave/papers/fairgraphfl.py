"""FairGraphFL: Pan et al. 2024, "Towards fair graph federated learning via incentive mechanisms".

Settings come from `experiments/fairgraphfl-*.toml`: every method makes 200 rounds of one step of Adam on all of an
agent's training graphs, with the same GIN, except for FedSage and FedStar, which are about another model. Accuracies
are from the last round; next to them are accuracies from the best round, chosen on test, because the paper does not
specify which it prints. `algorithms.fairgraphfl` and `partition.graphs` list what the paper leaves open and the
decision here. No published version of its script produces its numbers.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fedweave.experiment.config import Document
from fedweave.papers.paper import NOTHING, Paper, PaperCell, PaperTable, Printed, parse_numbers, printed_tables
from fedweave.papers.quantities import best_on_test, summary_metric
from fedweave.papers.reward_quantities import METHOD, QUALITIES, contribution, fairness, order_of_payoffs, payoff

PRINTED = printed_tables("fairgraphfl")

SEEDS = 5
SERVER_VAL = 0.1  # of the graphs, which CFFL's server validates on
AGENTS, PARTS = 5, 5  # of Figure 1; and into how many parts its rounds are taken together
FIXED, REDRAWN = "", ", split by seed"
LARGE = "TWITTER-Real-Graph-Partial"

WIDTHS: Document = {"hidden": 64, "layers": 3, "dropout": 0.5, "pool": "sum"}
MODELS = {"FedSage": "sage", "FedStar": "star"}  # of the others a GIN
DESCENT: Document = {"local_steps": 1, "optimizer": "adam", "lr": 1e-3, "weight_decay": 5e-4}
NORMED, NORM = "FairGraphFL, one norm", 0.15  # Γ, chosen on validation graphs (docs/fairgraphfl.md)
METHODS: dict[str, str] = {
    "Self-train": "local",
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "FedSage": "fedavg",
    "GCFL": "gcfl",
    "GCFL+": "gcfl_plus",
    "FedStar": "fedstar",
    "DW": "dw",
    "EU": "eu",
    "RFFL": "rffl",
    "CFFL": "cffl",
    "CGSV": "cgsv",
    METHOD: "fairgraphfl",
    NORMED: "fairgraphfl",
}
NO_GLOBAL_MODEL = ("Self-train", "GCFL", "GCFL+", "FedStar")
CUTS: dict[str, Document] = {"IMDB-BINARY": {"eps1": 0.025, "eps2": 0.045}}  # of GCFL's authors; else its defaults
SERIES: dict[str, Document] = {"PROTEINS": {"length": 10}}
ABLATIONS: dict[str, Document] = {
    METHOD: {},
    "without gradient alignment": {"alignment": False},
    "without graph diversity": {"alpha2": 0.0},
    "without model gradient": {"rewards": False},
    "without value-based weights": {"weights": "size"},
    "without motif prototypes": {"prototypes": False},
}
ACCURACY = {  # by the split of their tests
    split: replace(summary_metric(f"{split}/accuracy", "accuracy", digits=3), best=partial(best_on_test, split))
    for split in ("global", "local")
}


def experiment(dataset: str, method: str = METHOD, partition: Document | None = None, **changes: object) -> Document:
    """The document of `method` on the paper's `dataset`; `partition` replaces the partition, `changes` are settings of
    the algorithm."""
    split = {"name": "graphs_iid", "clients": 10, "split_seed": 0} | (partition or {})
    if method == "CFFL":
        split["server_val"] = SERVER_VAL
    if split["split_seed"] is None:
        del split["split_seed"]
    algorithm: Document = {"name": METHODS[method]}
    if method == NORMED:
        algorithm["norm"] = NORM
    if method in ("GCFL", "GCFL+"):
        algorithm |= CUTS.get(dataset, {})
    if method == "GCFL+":
        algorithm |= SERIES.get(dataset, {})
    return {
        "rounds": 200,
        "eval_every": 10,
        "data": {"name": dataset.lower()},
        "partition": split,
        "model": {"name": MODELS.get(method, "gin")} | WIDTHS,
        "algorithm": algorithm | DESCENT | changes,
    }


def _accuracy_cells(row: str, column: str, document: Document, paper: dict[str, Printed]) -> list[PaperCell]:
    """Personalized and global accuracy, and fairness against self-training on the same split, where the method has
    them."""
    baseline = document | {"model": {"name": "gin"} | WIDTHS, "algorithm": {"name": METHODS["Self-train"]} | DESCENT}
    local = PaperCell(row, column, "local", document, ACCURACY["local"], paper["personalized"])
    whole = PaperCell(row, column, "global", document, ACCURACY["global"], paper["global"])
    fair = PaperCell(row, column, "local", document, fairness(), paper["fairness"], baseline=baseline)
    return [local, *([] if row in NO_GLOBAL_MODEL else [whole]), *([] if row == "Self-train" else [fair])]


def _numbers(table: Mapping[tuple[str, str], Printed], method: str) -> dict[str, Printed]:
    return {column: table.get((method, column), NOTHING) for column in ("fairness", "global", "personalized")}


def _comparison() -> PaperTable:
    cells = []
    for split, seed in ((FIXED, 0), (REDRAWN, None)):
        for dataset, text in PRINTED[2].items():
            paper = parse_numbers(text) if split == FIXED else {}
            for method in METHODS:
                document = experiment(dataset, method, {"split_seed": seed})
                cells += _accuracy_cells(method, dataset + split, document, _numbers(paper, method))
    return _table(
        "Accuracy, and fairness of rewards", cells, SPLITS, PULLED, VALIDATED, SCALED, against=(METHOD, NORMED)
    )


def _ablations() -> PaperTable:
    cells, paper = [], parse_numbers(PRINTED[4])
    for name, changes in ABLATIONS.items():
        cells += _accuracy_cells(name, "PROTEINS", experiment("PROTEINS", **changes), _numbers(paper, name))
    return _table("FairGraphFL without each of its parts", cells, against=(METHOD,))


def _large() -> PaperTable:
    cells, paper = [], parse_numbers(PRINTED[5])
    for method in dict.fromkeys(row for row, _ in paper):
        document = experiment(LARGE, method)
        cells += _accuracy_cells(method, LARGE, document, _numbers(paper, method))
    return _table("Accuracy and fairness on many graphs", cells, NO_LOADER)


def _contributions() -> PaperTable:
    cells = []
    for method in ("FedAvg", METHOD):
        document = experiment("PROTEINS", method, {"clients": AGENTS})
        for agent in range(AGENTS):
            for part in range(PARTS):
                place = f"agent {agent + 1}", f"{method}, part {part + 1}"
                cells.append(PaperCell(*place, "global", document, contribution(agent, part, PARTS)))
    return _table("What each agent contributes over the rounds", cells, LEAVE_ONE_OUT, over="part")


def _payoffs() -> PaperTable:
    perturbed = {"name": "perturbed", "split_seed": None}
    cells = []
    for dataset in PRINTED[2]:
        document = experiment(dataset, METHOD, perturbed)
        rows = {scheme: (document, scheme) for scheme in (METHOD, "equal", "union", "individual", "shapley")}
        rows["without graph diversity"] = experiment(dataset, METHOD, perturbed, alpha2=0.0), METHOD
        for row, (run, scheme) in rows.items():
            quantities = {quality: payoff(scheme, quality) for quality in QUALITIES}
            quantities["low < medium < high"] = order_of_payoffs(scheme)
            cells += [PaperCell(row, f"{dataset}, {of}", "", run, it) for of, it in quantities.items()]
    return _table("Payoffs by quality of data", cells, PERTURBED)


def _table(
    title: str, cells: list[PaperCell], *notes: str, over: str = "", against: tuple[str, ...] = ()
) -> PaperTable:
    return PaperTable(title, tuple(cells), SEEDS, (SETTINGS, *notes), over=over, against=against)


SETTINGS = (
    "Every run makes 200 rounds of one step of Adam, learning rate 0.001, weight decay 0.0005, on all of an agent's "
    "training graphs, and is evaluated after the last."
)
SPLITS = (
    "The split is the same for all seeds; in the columns “split by seed” every seed has its own, and of these the "
    "paper has no numbers. Fairness is Pearson's correlation with self-training of the same seed and split. Agents "
    "have about 10 test graphs each."
)
PULLED = (
    "FedProx is FedAvg here, number for number: the gradient of its proximal term is 0 at the received weights, where "
    "an agent's only step starts."
)
VALIDATED = (
    "The paper's “CFFL” cites Xu and Lyu 2021, which is RFFL here. CFFL (Lyu et al. 2020) validates on graphs that the "
    f"server holds, {100 * SERVER_VAL:.0f} % of all, which its agents lack, and so does the self-training that it is "
    "compared with."
)
SCALED = (
    f"“{NORMED}”, which the paper does not have, scales every update to the norm {NORM}: Theorem 1 supposes that all "
    "have the same. It also makes steps longer, and longer steps alone have most of its gain on PROTEINS "
    "(docs/fairgraphfl.md)."
)
NO_LOADER = f"{LARGE} has 144,033 graphs; there is no loader of it here."
LEAVE_ONE_OUT = (
    "PROTEINS in five equal parts. Numbers are the global test accuracy of the model after a round minus the accuracy "
    "of the model from the same round without the agent's update, in the mean over each fifth of the rounds. "
    "The paper divides by the accuracy, and draws colors without numbers; single rounds are in the runs' "
    "leave_one_out.parquet."
)
PERTURBED = (
    "Figure 3 (b): shares of the budget per round and agent; the paper draws bars without numbers and does not specify "
    "the data. Every seed has its own split and perturbation. The four schemes know only agents' numbers of graphs, "
    "which differ by one at most."
)
FAIRGRAPHFL = Paper(
    "FairGraphFL (Pan et al. 2024)",
    {2: _comparison(), 4: _ablations(), 5: _large()},
    {1: _contributions(), 3: _payoffs()},
)
