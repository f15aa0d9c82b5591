"""The same texts read line by line in Python: the parsers' oracle, and the way without a compiler."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_CODE_POINT = r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}"
_IRI = rf'<(?:[^\x00-\x20<>"{{}}|^`\\]|{_CODE_POINT})*>'
_LABEL = "[A-Za-z0-9_:\x80-\U0010ffff]"
_BLANK = rf"_:{_LABEL}(?:(?:{_LABEL}|[-.])*(?:{_LABEL}|-))?"
_LITERAL = (
    rf"\"(?:[^\"\\\n]|\\[tbnrf\"'\\]|{_CODE_POINT})*\""
    rf"(?:@[A-Za-z]+(?:-[A-Za-z0-9]+)*|\^\^{_IRI})?"
)
_TRIPLE = re.compile(
    rf"[ \t]*({_IRI}|{_BLANK})[ \t]*({_IRI})[ \t]*({_IRI}|{_BLANK}|{_LITERAL})[ \t]*\.[ \t]*(?:#.*)?"
)
_NOTHING = re.compile(r"[ \t]*(?:#.*)?")
_ESCAPE = re.compile(rf"\\[tbf']|{_CODE_POINT}")
_SHORT = {"\\t": "\t", "\\b": "\b", "\\f": "\f", "\\'": "'"}
# Leading zeros are passed over: Python refuses to look at thousands of digits.
_WHOLE = re.compile(r"([+-]?)0*([0-9]{1,19})")
_LARGEST = 2**63 - 9  # what the kernel takes without looking at the last digit
_STAYS = {"\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


@dataclass
class PlainTriples:
    """Numbered triples with the names behind the numbers, and the lines that are malformed."""

    triples: list[tuple[int, int, int]] = field(default_factory=list)  # source, relation, target
    nodes: dict[str, int] = field(default_factory=dict)
    relations: dict[str, int] = field(default_factory=dict)
    malformed: list[int] = field(default_factory=list)  # line numbers, from 1


def parse_plain_triples(lines: Iterable[str], *, literals: bool = True) -> PlainTriples:
    """N-Triples, one line after the other."""
    found = PlainTriples()
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\n").removesuffix("\r")
        match = _TRIPLE.fullmatch(line)
        try:
            if match is None:
                if not _NOTHING.fullmatch(line):
                    found.malformed.append(number)
            elif literals or not match[3].startswith('"'):
                source, relation, target = map(_resolve, match.groups())
                found.triples.append(
                    (
                        found.nodes.setdefault(source, len(found.nodes)),
                        found.relations.setdefault(relation, len(found.relations)),
                        found.nodes.setdefault(target, len(found.nodes)),
                    )
                )
        except ValueError:  # an escape that is no character
            found.malformed.append(number)
    return found


def parse_plain_rows(
    lines: Iterable[str], columns: Sequence[str | None]
) -> Iterator[tuple[int, list[int] | None]]:
    """For each line that holds anything: its number from 1, and its numbers, or None if malformed."""
    for number, line in enumerate(lines, start=1):
        fields = re.split(r"[ \t,;\r\n]+", line.strip(" \t,;\r\n"))
        if fields == [""] or fields[0][0] in "#%":
            continue
        kept = [each for each, name in zip(fields, columns, strict=False) if name is not None]
        yield number, _read_row(kept) if len(fields) == len(columns) else None


def _read_row(fields: Sequence[str]) -> list[int] | None:
    row = []
    for each in fields:
        match = _WHOLE.fullmatch(each)
        if match is None or int(match[2]) > _LARGEST:
            return None
        row.append(-int(match[2]) if match[1] == "-" else int(match[2]))
    return row


def _resolve(term: str) -> str:
    if "\\" in term:
        body, quote, suffix = term.rpartition('"') if term[0] == '"' else (term, "", "")
        _resolve_escapes(suffix, is_literal=False)  # a datatype's are refused, or stay as written
        term = _resolve_escapes(body, term[0] == '"') + quote + suffix
    return term[1:-1] if term[0] == "<" else term


def _resolve_escapes(text: str, is_literal: bool) -> str:
    # Escaped backslashes are stepped over as pairs, so that what follows them is not taken for one.
    def replace(match: re.Match[str]) -> str:
        escape = match[0]
        if escape in _SHORT:
            return _SHORT[escape]
        code = int(escape[2:], 16)
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise ValueError(escape)
        character = chr(code)
        return _STAYS.get(character, character) if is_literal else character

    parts = re.split(r"(\\\\)", text)
    return "".join(part if part == "\\\\" else _ESCAPE.sub(replace, part) for part in parts)
