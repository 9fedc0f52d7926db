"""The numbers of FairGFL (Zhou et al. 2026) as printed in its section VII and appendix F-A; see `paper.printed`.

Figures 5 to 8 are curves and bars without numbers. Table III has eight overlapping clients, four in a line, and four
without overlap; which of them overlap more is not said.
"""

SHARING = {  # Table III: (true, estimated) shares, which sum to 1 over all clients
    "Cora": (
        (0.0521, 0.0352, 0.0289, 0.0676, 0.0315, 0.0423, 0.0187, 0.0489),
        (0.0367, 0.0421, 0.0312, 0.0608, 0.0231, 0.0356, 0.0238, 0.0375),
    ),
    "CiteSeer": (
        (0.0475, 0.0312, 0.0458, 0.0364, 0.0289, 0.0197, 0.0341, 0.0512),
        (0.0452, 0.0256, 0.0398, 0.0387, 0.0323, 0.0169, 0.0356, 0.0531),
    ),
}
ALONE = {
    "Cora": ((0.0, 0.0, 0.0, 0.0), (0.0058, 0.0083, 0.0091, 0.0072)),
    "CiteSeer": ((0.0, 0.0, 0.0, 0.0), (2.8512e-10, 0.0042, 3.2732e-12, 7.8254e-08)),
}
TABLE_4 = """
Dataset    | Model   | Features | Links | Ratio
Cora       | 1475612 | 25600    | 512   | 1.77
CiteSeer   | 1899544 | 76800    | 512   | 4.07
Reddit     | 329892  | 20480    | 4096  | 7.45
Ogbn-arxiv | 346272  | 16384    | 4096  | 5.91
"""
TABLE_5 = """
Queries               | 1    | 5    | 10   | 20   | 30
fresh noise each time | 72.7 | 87.5 | 93.4 | 98.6 | 99.6
"""
