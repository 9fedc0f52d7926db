"""Makes the folder of parties of one city of Heri-Graphs (Bai et al. 2022) from the published tables in `dataset/`.

python examples/heri_graphs.py Suzhou
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

# party: the links that it holds, and its columns after the index and the post's ID
PARTIES = {"temporal": ("Temporal", 3, 515), "social": ("Social", 518, 883), "spatial": ("Spatial", 883, 985)}


def convert(city: str) -> None:
    """Write `<city>/<party>/nodes.parquet` and `edges.parquet` for each party."""

    def table(name: str) -> pa.Table:
        return csv.read_csv(Path("dataset", city, f"{name}.csv"), parse_options=csv.ParseOptions(delimiter="\t"))

    visual, attributes, links = table("Visual_Features"), table("Attribute_Labels"), table("Edge_List")
    if not attributes["ID"].equals(visual["ID"]):
        raise SystemExit("labels and features are in different orders")
    best = np.stack([attributes.column(i).to_numpy() for i in range(2, 11)]).argmax(0)
    label = pc.if_else(pc.equal(attributes["labelled"], True), pa.array(best), None)
    for party, (kind, first, end) in PARTIES.items():
        folder = Path(city.lower(), party)
        folder.mkdir(parents=True)
        features = {visual.column_names[i]: visual.column(i) for i in range(first, end)}
        pq.write_table(pa.table({"id": visual["ID"], "label": label, **features}), folder / "nodes.parquet")
        held = links.filter((pc.field(f"{kind}_Similarity") > 0) & (pc.field("0") != pc.field("1")))
        pq.write_table(pa.table({"source": held["0"], "target": held["1"]}), folder / "edges.parquet")


if __name__ == "__main__":
    convert(sys.argv[1])
