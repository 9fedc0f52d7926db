# %% [markdown]
# # A platform: clients that share users (FairGFL)
#
# Twelve shops on one platform train a model of their users. Some users buy in many shops. In plain averaging such
# users are counted once for each shop that knows them, so that the shops which share many users steer the model, and
# the others get a worse one. FairGFL lets shops that overlap count less. The catch: nobody may tell whom it shares
# with whom. So shops send noisy codes of a few users, and the server estimates from these how much any two of them
# overlap.
#
# The users are generated; nothing is downloaded.

# %%
import fedweave
from fedweave.algorithms import FairGFL, FedAvg

data = fedweave.datasets.load("synthetic", nodes=3000, classes=5, features=40, degree=6, homophily=0.7, signal=2.0)
cut = fedweave.partition.Overlap(clients=12, overlap=0.1, alpha=0.3).cut(data, seed=0)
true = cut.pairs["nodes"].sum(1)
print("users of each shop:", [len(part.nodes) for part in cut.parts])
print("overlap of users:  ", [f"{value:.1f}" for value in true])

# %% [markdown]
# The second line is, for each shop, the share of its users that another shop has too, added up over all other shops:
# 2 would say that an average user of this shop is known to two others. The first four shops share no user, the last
# four many. Averaging first:

# %%
model = fedweave.models.GCN(hidden=32).build(data.features, data.classes)


def trained(algorithm, rounds=40):
    """The federation and the last round."""
    fed = fedweave.federation(data, cut, algorithm, seed=0)
    *_, last = fedweave.train(algorithm, fed, rounds, eval_every=rounds)
    return fed, last


training = {"local_steps": 3, "optimizer": "sgd", "lr": 0.3}
_, plain = trained(FedAvg(model, **training))


def by_overlap(last):
    """The mean training loss of the shops with no, little and much overlap."""
    losses = [*last.of_clients("loss", "train").values()]
    return [sum(losses[start : start + 4]) / 4 for start in (0, 4, 8)]


def show(name, last):
    """Fairness as the paper measures it: how much the shops' training losses differ."""
    words = ", ".join(f"{value:.3f}" for value in by_overlap(last))
    spread, accuracy = last.summary["fairness/train_loss_variance"], last.summary["global/accuracy"]
    print(f"{name:10} accuracy {accuracy:.3f}, variance of losses {spread:.4f}; no, little, much overlap: {words}")


show("FedAvg", plain)

# %% [markdown]
# Now FairGFL. `lam` is how much the shop with the largest loss counts besides; `epsilon_a` and `epsilon_b` set the
# noise on codes and links before they leave a shop, where a smaller ε means more noise. Its weights sum to less than 1,
# so that a round's step is shorter than FedAvg's; with `normalize` they sum to 1 before λ is added.

# %%
fairness = {"lam": 0.1, "epsilon_a": 3.0, "epsilon_b": 1.0}
fed, fair = trained(FairGFL(model, **fairness, **training))
_, normalised = trained(FairGFL(model, normalize=True, **fairness, **training))
show("FedAvg", plain)
show("FairGFL", fair)
show("normalised", normalised)

# %% [markdown]
# Who gains and who loses, against FedAvg:

# %%
for name, last in (("FairGFL", fair), ("normalised", normalised)):
    moved = [after - before for before, after in zip(by_overlap(plain), by_overlap(last), strict=True)]
    words = "no overlap {:+.3f}, little {:+.3f}, much {:+.3f}".format(*moved)
    print(f"{name:10} losses: {words}, on average {sum(moved) / 3:+.3f}")

# %% [markdown]
# Shops without overlap do better, and those that overlap do worse: they count less. On average losses rise, and that is
# due to the shorter step: with `normalize` the average is near FedAvg's. Whether losses become more alike, which is
# what the variance says, was different with other seeds, so take none of it from one run; and accuracies as close as
# these tell nothing. Either way some are worse off than with FedAvg; whether that is fair is for the shops to decide.
#
# Did the server find out who overlaps? Its estimate, from noisy codes and links alone, beside the truth that no server
# would have. FairGFL's overlap is `alpha` times the overlap of users, as printed above, plus 1 - `alpha` times the same
# of links between users; `alpha` is four fifths here. Two shops have a link in common only where both know both users,
# so that the sum is lower than that of users alone. A shop counts 1 / (1 + estimate), divided by the number of shops,
# and the one with the largest loss in the round `lam` more.

# %%
estimated = fair.of_clients("overlap_estimated", "server")
truth, weight = fair.of_clients("overlap_true", "server"), fair.of_clients("weight", "server")
for shop in fed.clients:
    print(f"{shop}: estimated {estimated[shop]:5.2f}, true {truth[shop]:5.2f}, counts {weight[shop]:.3f}")

worst = max(fed.clients, key=lambda shop: weight[shop] - 1 / (1 + estimated[shop]) / len(fed.clients))
print(f"{worst} had the largest loss in the last round: it counts `lam` = {fairness['lam']} more")

# %% [markdown]
# What did that cost in privacy? The ledger adds up every ε, by what it protects. An ε per code coordinate adds up
# over the code's hundred coordinates: judge by the total, not by the setting. [What ε
# means](../concepts.md#what-epsilon-means)

# %%
from fedweave.privacy.accountant import bounds

for bound in bounds(fed.ledger.table()):
    print(bound)

# %% [markdown]
# The total is large: it promises little for a single user, and it is stated rather than hidden. Smaller ε are a
# setting away, with worse estimates. How well an attacker tells users from such codes is measured by `fedweave
# attack`. [FairGFL's settings and results](../fairgfl.md)
