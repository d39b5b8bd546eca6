"""Edits that turn a valid body into a lie, and the one rule that must hold for all of them."""

from dataclasses import dataclass

from hypothesis import strategies as st

from quivermq.batches import Frame, decode_batch, decode_messages
from quivermq.errors import QuiverError

# Sizes, counts and offsets at which readers go wrong: signs, widths, and one past each of them.
TELLING = sorted(
    {0, 1, 2, 3, 4, 7, 8, 16, 64, 100, 1_000, -1, -2, -8}
    | {sign * 2**bits + by for bits in (7, 8, 15, 16, 24, 31, 32, 40, 62, 63)
       for sign in (1, -1) for by in (-1, 0, 1)}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Edit:
    """One change, at `at` modulo the bytes in reach."""

    kind: str
    at: int
    number: int
    width: int

    def apply(self, body: bytearray, reach: int) -> None:
        if not body:
            return
        at = self.at % min(reach, len(body))
        if self.kind == "flip":
            body[at] ^= 1 << self.number % 8
        elif self.kind == "cut":
            del body[at:]
        elif self.kind == "splice":
            source = self.number % len(body)
            body[at : at + self.width] = body[source : source + self.width]
        elif self.kind == "insert":
            body[at:at] = (self.number % 256).to_bytes() * self.width
        else:
            at -= at % self.width
            value = self.number % (1 << 8 * self.width)
            body[at : at + self.width] = value.to_bytes(self.width, "little")


# Most edits are integers overwritten where integers stand: those reach furthest into readers.
edits = st.lists(
    st.builds(
        Edit,
        st.sampled_from(["integer", "integer", "integer", "flip", "splice", "insert", "cut"]),
        st.integers(0, 1 << 16),
        st.sampled_from(TELLING) | st.integers(-64, 4_096),
        st.sampled_from([1, 2, 4, 8]),
    ),
    min_size=1,
    max_size=6,
)


def edited(body: bytes, changes: list[Edit], *, metadata_only: bool) -> bytes:
    changed = bytearray(body)
    reach = 8 + int.from_bytes(body[4:8], "little") if metadata_only else len(body)
    for change in changes:
        change.apply(changed, reach)
    return bytes(changed)


def outcome(frame_bytes: bytes) -> str:
    """What reading these bytes comes to; anything but a typed error or sane messages raises."""
    try:
        frame = Frame.parse(frame_bytes)
        batch = decode_batch(frame)
        messages = decode_messages(frame)
    except QuiverError as error:
        return error.code
    header = frame.header
    assert batch.num_rows == len(messages) == header.count
    # Accepted, so harmless: no message is made of more bytes than the frame declared.
    sizes = (
        len(message.value)
        + len(message.key or b"")
        + sum(len(name.encode()) + len(value) for name, value in message.headers.items())
        for message in messages
    )
    assert sum(sizes) <= header.decoded_bytes
    return "read"
