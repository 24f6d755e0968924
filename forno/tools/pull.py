"""``forno pull MODEL``: fetch a model before it is needed, and say where it is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from forno.config import DEFAULT_MODEL
from forno.loader.sources import BUILTIN_MODELS, resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    names = ", ".join(BUILTIN_MODELS)
    text = f"hf:owner/name[:file] or a built-in name: {names} (default: %(default)s)."
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=text)
    parser.add_argument("--verify", action="store_true", help="Hash what is there already, and fetch damaged files again.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")


def run(args: argparse.Namespace) -> int:
    """Print the path of ``args.model`` on stdout, as one JSON object with ``--json``; progress goes to stderr.

    A model of the Hub is brought up to date. ``args.verify`` hashes a fetched model again, and replaces or refuses a
    damaged one. Raises ``ModelError``.
    """
    path = resolve(args.model, verify=args.verify, refresh=True).absolute()
    if args.json:
        print(json.dumps({"model": args.model, "path": str(path), "bytes": _size(path), "verified": args.verify}))
    else:
        print(path)
    return 0


def _size(path: Path) -> int:
    """Bytes of the file, or of the files directly in the directory."""
    return sum(p.stat().st_size for p in (path.iterdir() if path.is_dir() else [path]) if p.is_file())
