"""Runs hvd-sparse, as the command or as python -m hvd_sparse."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command, if the packages that it takes are installed."""
    try:
        from hvd_sparse.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("packaging", "rich", "typer"):
            raise
        sys.exit(f"hvd-sparse takes the package {error.name}: pip install 'hvd_sparse[cli]'")
    app()


if __name__ == "__main__":
    main()
