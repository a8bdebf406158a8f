"""Every figure and table of both papers: `haim2022.py` and `buzaglo2023.py` have a function for each."""
