"""``forno bench``: load any OpenAI-compatible server and measure it; compare, report and ablate are words of its own.

Without one of those words it measures. A word's module is imported only when it is used, since some need what others do not.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from forno.bench.extra import EXTRAS, need
from forno.errors import ResultError
from forno.options import Parser
from forno.tools.bench import run as measuring

WORDS = {
    "run": "load a server and measure it (also without this word)",
    "compare": "compare result files, and say which differences are larger than the noise",
    "report": "turn result files into one self-contained HTML page, or CSV",
    "ablate": "start forno with one technique changed at a time, and say what each is worth",
}
"""Word -> help. Its module is of the same name and has ``add_arguments(parser)`` and ``run(args) -> int``."""


class _LaterParser(Parser):
    """A parser whose options are declared when they are first needed."""

    word = ""

    def _declare(self) -> None:
        if self.word:
            module, self.word = import_module(f"{__name__}.{self.word}"), ""
            module.add_arguments(self)
            self.set_defaults(run_word=module.run)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._declare()
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        self._declare()
        return super().format_help()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options: those of measuring, and the other words."""
    measuring.add_arguments(parser)
    parser.set_defaults(run_word=measuring.run)
    words = parser.add_subparsers(metavar="WORD", title="words", prog=parser.prog, parser_class=_LaterParser)
    for word, text in WORDS.items():
        if find_spec(f"{__name__}.{word}"):
            words.add_parser(word, help=text, description=text[0].upper() + text[1:] + ".").word = word


def run(args: argparse.Namespace) -> int:
    """Do what the word says; returns the exit status. What the system refuses, and a package that is not there, are said."""
    try:
        status = int(args.run_word(args))
        sys.stdout.flush()  # a full disk is an error here, not a remark at the interpreter's end
        return status
    except ModuleNotFoundError:
        need(*EXTRAS)
        raise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ResultError(f"{error.filename or 'standard output'}: {error.strerror or error}") from error
