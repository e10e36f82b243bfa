"""The grammar of failure statements, read from its file. (I/O)"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from ftrun.supervisor.signatures.grammar import Grammar, parse_grammar

FILE = Path(__file__).with_name("statements.toml")


@cache
def load_grammar() -> Grammar:
    """Our grammar, read once a process. Raises ValueError (one line) for a wrong file."""
    return parse_grammar(tomllib.loads(FILE.read_text("utf-8")))
