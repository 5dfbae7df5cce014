"""One module per fitted prior: read ``priors/<quantity>/data.csv``, return populations, write ``fit.json``."""
