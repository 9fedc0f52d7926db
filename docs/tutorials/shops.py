# %% [markdown]
# # Shops: one model does not fit all (FedEgo)
#
# Five shops sort products into categories. Products bought together are joined. Every shop has its own range: a
# bakery sees little of what a bookshop sells, so that one common model serves nobody well, and each alone has too few
# examples. FedEgo gives every shop a *personal* model: the first layers are averaged, the later ones mixed with the
# server's, and more so the further a shop's range is from everybody's.
#
# How can the server train layers without products? Shops send **mashed ego-graphs**: the average over at least
# `minimum` products' neighborhoods, as embeddings. The products are generated; nothing is downloaded.

# %%
import numpy as np

import fedweave
from fedweave.algorithms import FedAvg, FedEgo, Local

data = fedweave.datasets.load("synthetic", nodes=3000, classes=8, features=40, degree=24, homophily=0.5, signal=1.6)
skew = fedweave.partition.LabelSkew(clients=5, majors=2, major_rate=0.6, share=0.12, test_nodes=150, val=0.3)
cut = skew.cut(data, seed=0)
for number, part in enumerate(cut.parts):
    counts = np.bincount(data.y[part.nodes], minlength=data.classes)
    print(f"shop {number}: {len(part.nodes)} products by category {counts.tolist()}")

# %% [markdown]
# Each shop has two main categories. The model has one reduction layer, two convolutions over the graph and a
# classifier.

# %%
model = fedweave.models.Ego(hidden=32, layers=2, dropout=0.2).build(data.features, data.classes)


def trained(algorithm, rounds=20):
    """The federation and the last round."""
    fed = fedweave.federation(data, cut, algorithm, seed=0)
    *_, last = fedweave.train(algorithm, fed, rounds, eval_every=rounds)
    return fed, last


# %% [markdown]
# Three ways: everybody alone, one common model, and FedEgo. "Own products" are tests of the shop's own range, "all
# products" one test that no shop has seen.

# %%
ways = {
    "alone": Local(model, local_steps=10, lr=0.005),
    "FedAvg": FedAvg(model, local_steps=10, lr=0.005),
    "FedEgo": FedEgo(model, batch=32, batches=5, epochs=2, server_epochs=2, lr=0.005, gamma=3.0),
}
results = {name: trained(algorithm) for name, algorithm in ways.items()}
for name, (_, last) in results.items():
    own, everything = last.summary["local/accuracy"], last.summary["global/accuracy"]
    print(f"{name:7} own products {own:.3f}, all products {everything:.3f}")

tests = sum(int(part.masks[2].sum()) for part in cut.parts)
chance = (2 * 0.25 / tests) ** 0.5
print(f"{tests} tests are of own products: of a difference between accuracies the standard error is about {chance:.3f}")

# %% [markdown]
# On all products FedEgo is far behind FedAvg, and hardly better than alone: a personal model is made for its shop. On a
# shop's own products the three are close together, and which of them is ahead was different with other seeds, so that
# nothing follows from one run. Here, then, nothing speaks for FedEgo. Which is better on your data you measure, with
# several seeds; there is no reason to believe it beforehand. `gamma` sets how personal the models are (larger is more
# so) and should be chosen on validation examples.
#
# Does joining help every single shop? The question a shop asks before it signs anything:

# %%
alone, ego = (results[name][1].of_clients("accuracy") for name in ("alone", "FedEgo"))
for shop, before in alone.items():
    print(f"{shop}: {before:.3f} alone, {ego[shop]:.3f} with FedEgo ({ego[shop] - before:+.3f})")

# %% [markdown]
# Each shop has a fifth of the tests, so that differences of several hundredths can be chance.
#
# How much of the later layers does each shop take over from the server? λ is that share, (EMD / 2)^γ, where EMD is how
# far the shop's range is from everybody's, from 0 to 2. λ near 1 takes over all, λ near 0 nothing.

# %%
fed, last = results["FedEgo"]
for name in ("emd", "lambda"):
    print(name, {shop: round(value, 2) for shop, value in last.of_clients(name, "train").items()})

# %% [markdown]
# λ is small here, as `gamma` is large: after a shop's first round, in which it takes them whole, almost nothing of
# these layers comes from the server. What the shops have in common is the averaged first layer, and a little of the
# later ones that adds up over rounds. The server's training on mashed ego-graphs, for which these leave the shops,
# hardly counts here. A smaller `gamma` takes over more, which need not help.
#
# What left the shops:

# %%
rows = [row for row in fed.ledger.table().to_pylist() if row["direction"] == "up" and row["reveals"]]
for key in dict.fromkeys(row["key"] for row in rows if row["round"] == 1 and row["step"] != "FedEgo.score"):
    own = [row for row in rows if row["key"] == key]
    print(f"{key:15} {sum(row['bytes'] for row in own) / 1e6:5.2f} MB  {own[0]['reveals']}")

# %% [markdown]
# Averages of few products, seen often enough, can be unmixed: `minimum` and `batch` say how many are mixed, and `sigma`
# adds noise. [What to know before real data is behind it](../fedego.md#what-leaves-a-client)
