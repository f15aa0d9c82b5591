"""Ways in which files go wrong: bytes that flip, ends that are cut off, numbers that grow."""

import contextlib
import gzip
import random
import zlib
from pathlib import Path

# What parsers stumble over: signs, numbers at the ends of types, half an escape, another magic number.
SPLICES = (
    b"",
    b"\x00",
    b"\n",
    b"\r\n",
    b"\xff\xfe",
    b"-",
    b"+",
    b"-1",
    b"0" * 5000,
    b"9" * 19,
    b"9" * 5000,
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"4294967296",
    b"2147483648",
    b"1e9",
    b"\\u",
    b"\\UFFFFFFFF",
    b'"',
    b"<",
    b">",
    b"_:",
    b"^^",
    b"@",
    b"#",
    b",",
    b"PK\x03\x04",
    b"\x1f\x8b\x08",
    b"\x93NUMPY\x01\x00",
    b"\x93NUMPY\x03\x00",
    b"[" * 300,
    b"(" * 300,
    b"None",
    b"True",
    b"{}",
    b"\xd9\xa3",  # a three, in Arabic
    b"\xc2\xb2",  # a two, above the line
)


def damage(content: bytes, chance: random.Random) -> bytes:
    """`content` with one to three things wrong."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = chance.choice((_flip, _flip, _cut, _splice, _splice, _swap, _repeat))(
            content, chance
        )
    return content


def damage_bytes(place: Path, chance: random.Random) -> Path:
    """Damage one file, `place` or one in it: as it lies there, or what is packed in it."""
    files = (
        [place] if place.is_file() else sorted(each for each in place.rglob("*") if each.is_file())
    )
    path = chance.choice(files)
    content = path.read_bytes()
    if path.suffix == ".gz" and chance.random() < 0.7:
        with contextlib.suppress(OSError, EOFError, zlib.error):
            path.write_bytes(gzip.compress(damage(gzip.decompress(content), chance), 1, mtime=0))
            return path
    path.write_bytes(damage(content, chance))
    return path


def _flip(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if changed:
            changed[_place(changed, chance)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _splice(content: bytes, chance: random.Random) -> bytes:
    at = _place(content, chance)
    return content[:at] + chance.choice(SPLICES) + content[at + chance.choice((0, 0, 1, 4)) :]


def _swap(content: bytes, chance: random.Random) -> bytes:
    one, other = sorted((_place(content, chance), _place(content, chance)))
    return content[other:] + content[one:other] + content[:one]


def _repeat(content: bytes, chance: random.Random) -> bytes:
    at = _place(content, chance)
    return (
        content[:at] + content[at : at + chance.randrange(40)] * chance.randrange(4) + content[at:]
    )


def _place(content: bytes | bytearray, chance: random.Random) -> int:
    """A position, often in the first bytes, where headers are."""
    return chance.randrange(max(1, min(len(content), 130 if chance.random() < 0.4 else 1 << 40)))
