"""Changes samples at random: bits, bytes, numbers, slices, tokens, and pieces of other samples."""

from random import Random

_TELLING = (0, 1, 0x7F, 0x80, 0xFF)
_TELLING_WORDS = (b"\xff" * 4, b"\x7f" + b"\xff" * 3, b"\xff" * 8, bytes(8), b"\x80" + bytes(7))
_TOKENS = (
    b"1e999", b"NaN", b"-1", b"9" * 30, b"9" * 5_000, b"null", b"true", b"{}", b"[" * 1_000,
    b'{"":' * 1_000, b'"\\ud800"', b"{9999999999}", b"\xff\xfe", b"\r\n\r\n", b"%", b"\0",
)  # fmt: skip
"""What readers of texts go wrong at."""
_CHANGES = (1, 1, 1, 2, 4, 6)
"""A single one gets furthest: the next may be refused before it is read."""


def mutated(sample: bytes, others: list[bytes], dice: Random) -> bytes:
    """The sample with some changes; now and then none of it is left."""
    data = bytearray(sample)
    for _ in range(dice.choice(_CHANGES)):
        _change(data, others, dice)
    return bytes(data)


def _change(data: bytearray, others: list[bytes], dice: Random) -> None:
    at = dice.randint(0, len(data))
    end = min(len(data), at + dice.choice((1, 2, 4, 16, 256)))
    match dice.randrange(10):
        case 0 | 9 if data:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        case 1 if data:
            data[dice.randrange(len(data))] = dice.choice(_TELLING)
        case 2:
            word = dice.choice(_TELLING_WORDS)
            data[at : at + len(word)] = word
        case 3:
            del data[at:end]
        case 4:
            data[at:at] = data[at:end] * dice.choice((1, 3, 50))
        case 5:
            other = dice.choice(others)
            begin = dice.randint(0, len(other))
            data[at:end] = other[begin : begin + dice.choice((1, 8, 64, 1_000))]
        case 6:
            del data[at:]
        case 7:
            token = dice.choice(_TOKENS)
            # In the place of as many bytes all lengths stay right.
            data[at : dice.choice((end, at + len(token)))] = token
        case _:
            data[at:at] = dice.randbytes(dice.choice((1, 4, 32)))
