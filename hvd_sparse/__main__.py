"""Runs hvd-sparse as python -m hvd_sparse."""

from __future__ import annotations

from hvd_sparse.cli import app

if __name__ == "__main__":
    app()
