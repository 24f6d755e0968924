"""The command line: verbs, each one import and one call. It knows no verb's work.

Whatever takes long to import is imported where it is used, within ``main``: Ctrl-C never meets a bare import statement.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module

TYPE_CHECKING = False  # typing's own takes milliseconds to import
if TYPE_CHECKING:
    from typing import NoReturn

    from forno.options import Parser

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
VERBS = {
    "serve": ("forno.server.main", "serve a model over the OpenAI API"),
    "run": ("forno.tools.run", "chat in the terminal, or answer one prompt from arguments or a pipe"),
    "bench": ("forno.tools.bench", "load any OpenAI-compatible server and measure it; compare, report, ablate"),
    "batch": ("forno.tools.batch", "run an OpenAI batch file (JSONL in, JSONL out), resuming where it stopped"),
    "pull": ("forno.tools.pull", "fetch a model and print its path"),
    "doctor": ("forno.tools.doctor", "what this machine has, and what it reaches: bandwidths and peaks"),
    "top": ("forno.tools.top", "what a running server waits for, now: a view that refreshes"),
    "explain": ("forno.tools.explain", "where a request's time went, and what would have made it faster"),
    "program": ("forno.tools.program", "print a model's program before and after fusion, with its costs"),
}
"""Verb -> (module, help). A module has ``add_arguments(parser)`` and ``run(args) -> int``."""


def parser(verb: str | None = None) -> Parser:
    """The command-line parser; only ``verb``'s module is imported, so that ``--help`` and start-up stay quick."""
    import argparse

    from forno import __version__, env
    from forno.options import Parser

    root = Parser(
        prog="forno",
        description="Serves large language models, and says what it waits for.",
        epilog="environment variables:\n" + "\n".join(f"  {v.name:<15} {v.help}" for v in env.VARIABLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"forno {__version__}")
    verbs = root.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (module, text) in VERBS.items():
        sub = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == verb:
            import_module(module).add_arguments(sub)
    return root


def main(argv: list[str] | None = None) -> int:
    """Run one verb. Returns the exit status: 0, 1 for an error that is explained on stderr, 130 after Ctrl-C."""
    _open_standard_streams()
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output left: what is still buffered goes nowhere, not into a traceback at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _open_standard_streams() -> None:
    """A stream that was closed before the start goes nowhere: else a socket takes its number, and text is sent over it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.fstat(number)
                continue
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", encoding="utf-8"))


def _run(argv: list[str]) -> int:
    from forno.errors import FornoError

    args = parser(next((a for a in argv if a in VERBS), None)).parse_args(argv)
    try:
        return int(import_module(VERBS[args.verb][0]).run(args))
    except FornoError as error:
        from forno.tools.plain import plain

        print(f"forno {args.verb}: " + "\n".join(map(plain, str(error).splitlines())), file=sys.stderr)
        return 1


def entry() -> NoReturn:
    """The process's start and end: what the ``forno`` script calls."""
    status = main()
    if status == INTERRUPTED:  # leave at once, whatever threads are still loading
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    entry()
