"""The numbers of FairGraphFL (Pan et al. 2024) as printed in its section 4.2 and appendix A.3; see `paper.printed`.

Its "CFFL" cites Xu and Lyu 2021 and so stands at RFFL, its "(Xu et al. 2021)" at CGSV, its "Ours" at FairGraphFL.
"""

TABLE_2 = {
    "PROTEINS": """
Method      | fairness      | global        | personalised
Self-train  | -             | -             | 0.712 ± 0.011
FedAvg      | 0.700 ± 0.153 | 0.748 ± 0.006 | 0.750 ± 0.007
FedProx     | 0.717 ± 0.173 | 0.731 ± 0.017 | 0.746 ± 0.007
FedSage     | 0.770 ± 0.048 | 0.740 ± 0.024 | 0.741 ± 0.025
GCFL        | 0.725 ± 0.185 | -             | 0.772 ± 0.019
GCFL+       | 0.734 ± 0.146 | -             | 0.775 ± 0.019
FedStar     | 0.763 ± 0.043 | -             | 0.717 ± 0.138
DW          | 0.702 ± 0.014 | 0.723 ± 0.014 | 0.730 ± 0.014
EU          | 0.733 ± 0.016 | 0.725 ± 0.048 | 0.715 ± 0.141
RFFL        | 0.690 ± 0.117 | 0.735 ± 0.037 | 0.713 ± 0.103
CGSV        | 0.750 ± 0.040 | 0.745 ± 0.022 | 0.737 ± 0.025
FairGraphFL | 0.787 ± 0.052 | 0.753 ± 0.018 | 0.751 ± 0.017
""",
    "DD": """
Method      | fairness      | global        | personalised
Self-train  | -             | -             | 0.587 ± 0.016
FedAvg      | 0.259 ± 0.209 | 0.668 ± 0.032 | 0.657 ± 0.029
FedProx     | 0.283 ± 0.186 | 0.633 ± 0.025 | 0.672 ± 0.020
FedSage     | 0.360 ± 0.159 | 0.671 ± 0.021 | 0.663 ± 0.023
GCFL        | 0.439 ± 0.094 | -             | 0.698 ± 0.013
GCFL+       | 0.379 ± 0.190 | -             | 0.692 ± 0.013
FedStar     | 0.335 ± 0.034 | -             | 0.665 ± 0.109
DW          | 0.305 ± 0.326 | 0.672 ± 0.031 | 0.669 ± 0.033
EU          | 0.381 ± 0.081 | 0.668 ± 0.010 | 0.658 ± 0.382
RFFL        | 0.402 ± 0.141 | 0.658 ± 0.053 | 0.658 ± 0.112
CGSV        | 0.384 ± 0.123 | 0.682 ± 0.011 | 0.659 ± 0.013
FairGraphFL | 0.479 ± 0.067 | 0.692 ± 0.017 | 0.680 ± 0.017
""",
    "IMDB-BINARY": """
Method      | fairness      | global        | personalised
Self-train  | -             | -             | 0.779 ± 0.018
FedAvg      | 0.780 ± 0.143 | 0.779 ± 0.007 | 0.782 ± 0.018
FedProx     | 0.842 ± 0.093 | 0.775 ± 0.018 | 0.756 ± 0.017
FedSage     | 0.870 ± 0.086 | 0.763 ± 0.004 | 0.768 ± 0.003
GCFL        | 0.874 ± 0.040 | -             | 0.830 ± 0.009
GCFL+       | 0.825 ± 0.094 | -             | 0.819 ± 0.007
FedStar     | 0.795 ± 0.071 | -             | 0.776 ± 0.086
DW          | 0.723 ± 0.089 | 0.751 ± 0.011 | 0.762 ± 0.009
EU          | 0.747 ± 0.010 | 0.755 ± 0.023 | 0.759 ± 0.069
RFFL        | 0.795 ± 0.100 | 0.741 ± 0.037 | 0.752 ± 0.034
CGSV        | 0.796 ± 0.085 | 0.781 ± 0.014 | 0.778 ± 0.019
FairGraphFL | 0.907 ± 0.018 | 0.801 ± 0.013 | 0.794 ± 0.005
""",
}
TABLE_4 = """
Method                        | fairness      | global        | personalised
FairGraphFL                   | 0.787 ± 0.052 | 0.753 ± 0.018 | 0.751 ± 0.017
without gradient alignment    | 0.736 ± 0.145 | 0.750 ± 0.019 | 0.743 ± 0.017
without graph diversity       | 0.723 ± 0.082 | 0.748 ± 0.022 | 0.744 ± 0.009
without model gradient        | 0.710 ± 0.146 | 0.751 ± 0.014 | 0.757 ± 0.014
without value-based weights   | 0.741 ± 0.121 | 0.740 ± 0.024 | 0.741 ± 0.042
without motif prototypes      | 0.750 ± 0.040 | 0.741 ± 0.022 | 0.737 ± 0.025
"""
TABLE_5 = """
Method      | fairness      | global        | personalised
Self-train  | -             | -             | 0.594 ± 0.002
GCFL        | 0.337 ± 0.108 | -             | 0.612 ± 0.007
CGSV        | 0.361 ± 0.095 | 0.601 ± 0.010 | 0.598 ± 0.003
FairGraphFL | 0.401 ± 0.052 | 0.620 ± 0.014 | 0.600 ± 0.008
"""
