"""Counts, sizes and times as a person reads them."""

from __future__ import annotations

import math
import unicodedata

PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
COUNTS = ("", "thousand", "million", "billion", "trillion")
NONE = "\N{EN DASH}"
SHOWN_CONTROLS = "\n\t"


def count(n: int) -> str:
    """Return 950, 12,345, 13.8 million."""
    if abs(n) < 1_000_000:
        return f"{n:,}"
    value, power = _reduced(float(n), len(COUNTS))
    return f"{value} {COUNTS[power]}"


def flops(n: float) -> str:
    """Return 1.24 PFLOP."""
    return _with_prefix(n, "FLOP")


def size(n_bytes: int) -> str:
    """Return 950 B, 12.3 MB (powers of 1,000)."""
    return f"{n_bytes} B" if abs(n_bytes) < 1000 else _with_prefix(float(n_bytes), "B")


def duration(seconds: float) -> str:
    """Return 3.2 s, 4 min 05 s, 2 h 03 min, 3 d 4 h."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def per_cent(part: float, whole: float) -> str:
    """Return 12.3 %, or a dash where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else NONE


def _with_prefix(n: float, unit: str) -> str:
    value, power = _reduced(n, len(PREFIXES))
    return f"{value} {PREFIXES[power]}{unit}"


def _reduced(n: float, most: int) -> tuple[str, int]:
    """Return three significant digits and the power of 1,000 taken out."""
    if not math.isfinite(n) or n == 0:
        return f"{n:g}", 0
    power = min(max(math.floor(math.log10(abs(n)) / 3), 0), most - 1)
    reduced = n / 1000**power
    if abs(reduced) >= 999.5 and power < most - 1:
        power, reduced = power + 1, reduced / 1000
    digits = min(max(2 - math.floor(math.log10(abs(reduced))), 0), 2)
    return f"{reduced:,.{digits}f}", power


def printable(text: str) -> str:
    """Return text in which control characters, lone surrogates and direction marks are spelled out.

    User text may hold anything; what is not a visible character would vanish, or reorder the page.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in SHOWN_CONTROLS or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn"}:
        return character
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"
