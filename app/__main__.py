"""``python -m app`` is the command ``specrace``."""

from app.cli import main

main()
