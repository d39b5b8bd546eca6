"""Shows the bytes of messages: as JSON, as text, or as a dump. Pure.

What it returns is text: the templates escape it, and a message with markup is shown, not run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

View = Literal["auto", "json", "text", "hex"]
VIEWS: Final[tuple[View, ...]] = ("auto", "json", "text", "hex")
SHOWN_BYTES: Final = 16 * 1024
"""Of a longer value, the beginning is shown."""
_LINE: Final = 16
_PREVIEW: Final = 160


@dataclass(frozen=True, slots=True)
class ShownValue:
    """Bytes as people read them."""

    text: str
    kind: str
    """"json", "text" or "hex"."""
    is_cut: bool = False


def shown(data: bytes | None, view: View = "auto", most: int = SHOWN_BYTES) -> ShownValue:
    """The bytes in a view, at `most` so many; `auto` takes the first of JSON, text and hex that
    fits."""
    if data is None:
        return ShownValue("", "text")
    part, is_cut = data[:most], len(data) > most
    if view in {"auto", "json"} and not is_cut:
        pretty = _as_json(data)
        if pretty is not None:
            return ShownValue(pretty, "json")
    if view != "hex":
        text = _as_text(part, is_cut=is_cut)
        if text is not None or view in {"text", "json"}:
            return ShownValue(
                part.decode("utf-8", "replace") if text is None else text, "text", is_cut
            )
    return ShownValue(_as_hex(part), "hex", is_cut)


def preview(data: bytes | None) -> str:
    """One line of it."""
    if data is None:
        return ""
    text = _as_text(data[:_PREVIEW], is_cut=len(data) > _PREVIEW)
    if text is None:
        return data[: _PREVIEW // 4].hex(" ") + (" …" if len(data) > _PREVIEW // 4 else "")
    line = " ".join(text.split())
    return line + (" …" if len(data) > _PREVIEW else "")


def headers_of(headers: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Headers with their values as one line each."""
    return [(name, preview(value)) for name, value in headers.items()]


def _as_json(data: bytes) -> str | None:
    # A bare number or word is text to people, and shown as it was sent.
    if data.lstrip()[:1] not in {b"{", b"["}:
        return None
    try:
        return json.dumps(json.loads(data), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _as_text(data: bytes, *, is_cut: bool) -> str | None:
    for end in (len(data), *(range(len(data) - 1, len(data) - 4, -1) if is_cut else ())):
        try:
            text = data[: max(0, end)].decode()
        except UnicodeDecodeError:
            continue
        is_readable = all(letter.isprintable() or letter in "\r\n\t" for letter in text)
        return text if is_readable else None
    return None


def _as_hex(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), _LINE):
        part = data[start : start + _LINE]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * _LINE}} {letters}")
    return "\n".join(lines)
