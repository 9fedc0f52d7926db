"""The numbers of GLASU (Zhang et al. 2023) as printed in its section 5; see `paper.printed`.

Table 5 prints one number for all M of centralized training; it stands in every column here.
"""

TABLE_2 = """
Dataset   | Cent.      | StAl.      | Sim.       | GLASU-1    | GLASU-4
Cora      | 80.9 ± 0.6 | 74.6 ± 0.5 | 80.1 ± 1.2 | 81.0 ± 1.3 | 80.3 ± 1.2
PubMed    | 84.9 ± 0.6 | 77.2 ± 0.5 | 82.7 ± 1.2 | 82.3 ± 1.6 | 83.8 ± 1.8
CiteSeer  | 70.2 ± 0.8 | 64.4 ± 0.5 | 70.0 ± 1.2 | 70.0 ± 1.7 | 68.8 ± 3.3
Suzhou    | 94.3 ± 0.3 | 51.6 ± 0.9 | 93.5 ± 0.6 | 92.7 ± 1.4 | 90.4 ± 0.8
Venice    | 95.7 ± 0.5 | 33.5 ± 2.1 | 93.1 ± 1.3 | 92.2 ± 0.6 | 91.0 ± 1.6
Amsterdam | 94.6 ± 0.1 | 59.8 ± 1.0 | 95.5 ± 0.8 | 93.1 ± 0.8 | 94.9 ± 0.4
Reddit    | 95.6 ± 0.1 | 87.3 ± 0.3 | 95.3 ± 0.7 | 95.7 ± 0.6 | 94.7 ± 1.1
"""
TABLE_3 = {
    "PubMed": """
Layers   | K=4        | K=2        | K=1
Accuracy | 82.5 ± 1.0 | 83.8 ± 1.8 | 82.2 ± 0.7
Runtime  | 130 ± 12   | 96.6 ± 9.9 | 81.3 ± 6.5
Saving   | -          | 25.7       | 37.5
""",
    "Amsterdam": """
Layers   | K=4        | K=2        | K=1
Accuracy | 93.6 ± 0.7 | 94.9 ± 0.4 | 92.0 ± 1.7
Runtime  | 913 ± 76   | 544 ± 44   | 382 ± 35
Saving   | -          | 40.4       | 58.2
""",
}
TABLE_4 = {
    "PubMed": """
Stale    | Q=2        | Q=4        | Q=8        | Q=16
Accuracy | 82.5 ± 1.6 | 82.0 ± 2.4 | 82.1 ± 0.3 | N/A
Runtime  | 66.1 ± 5.0 | 43.8 ± 4.0 | 88.9 ± 7.4 | > 128
""",
    "Amsterdam": """
Stale    | Q=2        | Q=4        | Q=8        | Q=16
Accuracy | 89.2 ± 0.4 | 89.3 ± 0.7 | 90.7 ± 0.5 | 90.3 ± 1.1
Runtime  | 1323 ± 44  | 521 ± 44   | 324 ± 31   | 250 ± 24
""",
}
TABLE_5 = {
    "CiteSeer": """
Clients | M=3        | M=5        | M=7
Cent.   | 70.2 ± 0.8 | 70.2 ± 0.8 | 70.2 ± 0.8
StAl.   | 64.4 ± 0.5 | 44.6 ± 0.3 | 36.6 ± 0.8
GLASU   | 68.8 ± 3.3 | 69.5 ± 1.4 | 69.4 ± 0.7
""",
    "PubMed": """
Clients | M=3        | M=5        | M=7
Cent.   | 84.9 ± 0.6 | 84.9 ± 0.6 | 84.9 ± 0.6
StAl.   | 77.2 ± 0.5 | 73.8 ± 0.5 | 67.0 ± 1.3
GLASU   | 83.8 ± 1.8 | 84.6 ± 0.4 | 84.4 ± 0.2
""",
}
