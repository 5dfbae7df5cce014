"""One module per fitted prior: read ``priors/<quantity>/data.csv``, return populations, write ``fit.json``."""

import os

# Cholesky factors of 30 to 100 rows: threads of LAPACK that wait for each other took 47 times the arithmetic on a busy
# machine. Read when the library is loaded, so that a caller who loaded it before decides.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
