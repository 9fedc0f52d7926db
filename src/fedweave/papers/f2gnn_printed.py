"""The numbers of F²GNN (Cui et al. 2023) as printed in its section VI, in per cent; see `paper.printed`.

Its figure 2 has bars and no numbers.
"""

TABLE_1 = {
    ("Pokec-z", "global"): """
Method     | Accuracy     | AUC          | ΔSP         | ΔEO
FairAug+FL | 64.62 ± 0.65 | 64.73 ± 0.67 | 4.01 ± 0.28 | 3.98 ± 0.51
FairFed    | 65.48 ± 2.63 | 69.72 ± 2.7  | 2.92 ± 1.28 | 3.08 ± 1.21
F²GNN      | 68.17 ± 0.19 | 73.47 ± 0.52 | 1.66 ± 1.02 | 1.49 ± 0.52
""",
    ("Pokec-n", "global"): """
Method     | Accuracy     | AUC          | ΔSP         | ΔEO
FairAug+FL | 64.38 ± 0.38 | 62.45 ± 0.47 | 4.31 ± 1.32 | 5.98 ± 1.96
FairFed    | 61.16 ± 2.46 | 61.97 ± 1.93 | 2.66 ± 1.20 | 3.69 ± 2.95
F²GNN      | 67.00 ± 0.27 | 69.62 ± 1.34 | 0.85 ± 0.31 | 1.00 ± 1.03
""",
    ("Pokec-z", "local"): """
Method     | Accuracy     | AUC          | ΔSP         | ΔEO
FairAug+FL | 63.33 ± 4.91 | 57.8 ± 3.76  | 8.54 ± 0.53 | 8.54 ± 0.53
FairFed    | 59.44 ± 3.60 | 63.7 ± 12.13 | 8.12 ± 3.32 | 7.69 ± 1.96
F²GNN      | 68.43 ± 1.99 | 75.74 ± 2.13 | 7.24 ± 0.99 | 7.35 ± 1.58
""",
    ("Pokec-n", "local"): """
Method     | Accuracy     | AUC          | ΔSP          | ΔEO
FairAug+FL | 61.03 ± 5.89 | 52.50 ± 4.23 | 21.12 ± 0.65 | 28.11 ± 0.71
FairFed    | 56.26 ± 2.42 | 58.41 ± 1.75 | 8.38 ± 4.93  | 7.79 ± 4.36
F²GNN      | 68.19 ± 2.40 | 69.49 ± 3.81 | 8.38 ± 2.27  | 7.23 ± 5.11
""",
}
TABLE_2 = {
    "Pokec-z": """
Method     | Accuracy / (ΔSP + ΔEO) | AUC / (ΔSP + ΔEO)
FairAug+FL | 11.129                 | 12.0854
FairFed    | 5.6581                 | 5.6598
F²GNN      | 21.6445                | 23.3264
""",
    "Pokec-n": """
Method     | Accuracy / (ΔSP + ΔEO) | AUC / (ΔSP + ΔEO)
FairAug+FL | 8.2651                 | 8.235
FairFed    | 5.6581                 | 12.5286
F²GNN      | 36.2460                | 37.6649
""",
}
