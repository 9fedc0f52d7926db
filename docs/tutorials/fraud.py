# %% [markdown]
# # Banks: accounts that launder money
#
# Three banks look for accounts that pass on money for others. Few are known, and many rings span banks: money comes
# from one bank and leaves to another. Nobody hands over customers or transfers; the banks train one model together.
#
# Accounts and transfers are generated, so that nothing has to be downloaded: transfers have amounts, channels and
# times; rings are fan-ins, fan-outs, cycles and layered chains; and groups of honest accounts pay each other in the
# same shapes. This is a small version of what `fedweave init --from fraud` writes for the command line.

# %%
from pathlib import Path
from tempfile import mkdtemp

import fedweave
from fedweave.algorithms import FedAvg, Local
from fedweave.metrics.selection import Judging

MONTHS = Path(mkdtemp())


def month(seed):
    """Accounts and transfers, and who holds and knows what: each bank is a client."""
    data = fedweave.datasets.load("transfers", accounts=9000, transfers=45_000, fraud=0.01, seed=seed)
    return data, fedweave.partition.Column(train=0.4, val=0.2, test=0.4).cut(data, seed)


data, banks = month(seed=0)
print(f"{data.nodes:,} accounts of {', '.join(data.owners)}; {data.y.sum()} are frauds")
print(data.edge_attrs)
ends = data.owner[data.edge_attrs.ends]
for kind, chosen in (("ordinary", data.edge_attrs.y == 0), ("laundering", data.edge_attrs.y == 1)):
    print(f"{(ends[0] != ends[1])[chosen].mean():.0%} of the {chosen.sum():,} {kind} transfers go to another bank")

# %% [markdown]
# Of an account the banks know its age, the customer's kind and turnover; of a transfer its amount, channel and hour. A
# model that flags nobody is nearly always right and worth nothing, so runs are judged by **average precision**, and by
# how many of the frauds are among the hundredth of the accounts with the highest scores: that many a team can look at.

# %%
judging = Judging("average_precision", positive=1)
wide = fedweave.models.GINE(hidden=16, layers=2, edge_features=data.edge_features, directed="both")
narrow = fedweave.models.GCN(hidden=16, layers=2, directed="both")


def trained(kind, model, **more):
    """What one way of training reaches, by the round that is best on validation accounts."""
    algorithm = kind(model.build(data.features, data.classes), class_weight="balanced", lr=0.01)
    fed = fedweave.federation(data, banks, algorithm, seed=0)
    *_, last = fedweave.train(algorithm, fed, rounds=16, eval_every=2, judging=judging, **more)
    return last.summary


def show(name, summary):
    """Both on test accounts, within each bank."""
    found = (summary[f"best_val/global/{figure}"] for figure in ("average_precision", "recall_at_1"))
    print("{:32} average precision {:.3f}, caught at 1 % alerts {:.0%}".format(name, *found))


show("each bank alone", trained(Local, wide))
show("together, who pays whom", trained(FedAvg, narrow))
show("together, with transfers' features", trained(FedAvg, wide, out=MONTHS / "february"))

# %% [markdown]
# `class_weight = "balanced"` lets a fraud count as much as the many others that it stands against; each bank weighs by
# its own accounts, and tells nobody how many frauds it has. Between `together, who pays whom` and the last line is what
# amounts, channels and hours add. Part of the picture is still missing: a bank's model sees no transfer whose other
# end is at another bank.
#
# The run is kept, with the threshold that was chosen on validation accounts. Each bank scores its own:

# %%
run = fedweave.load_run(MONTHS / "february")
caught = {name: run.summary["metrics"][f"pooled/{name}"] for name in ("threshold", "flagged", "recall", "precision")}
said = "from {threshold:.2f} on {flagged:.1%} are flagged: {recall:.0%} of the frauds; {precision:.0%} are"
print(said.format(**caught))

# %% [markdown]
# Next month training goes on where it ended, with new accounts and transfers: weights are kept, optimizers begin anew.

# %%
data, banks = month(seed=1)
show("March, begun from February", trained(FedAvg, wide, init_from=MONTHS / "february"))
show("March, begun anew", trained(FedAvg, wide))

# %% [markdown]
# Where to go from here: [rare classes](../rare.md), [edge attributes](../data-edges.md), [training again next
# month](../predicting.md), and [three banks on three hosts](../deployment.md).
