"""``python -m facelink``: the command."""

from facelink.cli import main

main()
