"""``forno bench report FILE...``: result files as one HTML page or CSV, and a server's steps on its roofline."""

from __future__ import annotations

import argparse
from pathlib import Path

from forno import env
from forno.bench.csv import write_csv, write_requests_csv
from forno.bench.extra import need
from forno.bench.read import read_result
from forno.errors import ConfigError, ResultError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="Result files of forno bench; several are shown side by side.")
    parser.add_argument("-o", "--output", type=Path, metavar="HTML", help="The page to write (default: report.html).")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="Write a row per run; no page without --output.")
    parser.add_argument("--csv-requests", type=Path, metavar="FILE", help="Write a row per request; no page without --output.")
    parser.add_argument(
        "--roofline",
        metavar="URL",
        help="Instead of results, draw the last steps of a forno server on the roofline of its machine; "
        "a file with its /debug/state does too.",
    )


def run(args: argparse.Namespace) -> int:
    """Write what was asked for and print where; returns the exit status."""
    if bool(args.roofline) == bool(args.files):
        raise ConfigError("name result files of `forno bench`, or a server with --roofline URL")
    tables = [(args.csv, write_csv), (args.csv_requests, write_requests_csv)]
    wanted = [(path, write) for path, write in tables if path is not None]
    output = args.output or (None if wanted else Path("roofline.html" if args.roofline else "report.html"))
    if output is not None:
        need("matplotlib", what="a page with plots")
    try:
        if args.roofline:
            from forno.bench.report.roofline import write_roofline

            write_roofline(args.roofline, output or "roofline.html", env.API_KEY.get())
        else:
            results = [read_result(file) for file in args.files]
            for path, write in wanted:
                write(results, path, names_of(args.files))
            if output is not None:
                from forno.bench.report import write_html

                write_html(results, output, names_of(args.files))
    except OSError as error:
        raise ResultError(f"cannot write {error.filename}: {error.strerror}") from None
    for path in [path for path, _ in wanted] + ([output] if output else []):
        print(path)
    return 0


def names_of(files: list[str]) -> list[str]:
    """Files by their names alone, as far as those tell them apart."""
    for names in ([Path(f).stem for f in files], [Path(f).name for f in files]):
        if len(set(names)) == len(names):
            return names
    return files
