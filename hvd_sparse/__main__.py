"""python -m hvd_sparse, which is hvd-sparse."""

from __future__ import annotations

from hvd_sparse.cli import app

if __name__ == "__main__":
    app()
