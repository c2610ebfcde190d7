# SPDX-License-Identifier: Apache-2.0
"""The drawings of `tencache report`, as SVG text that stands in the page.

The drawings are few and simple, so they are written here: no library to load, nothing to fetch, and
the page's own style sheet gives them their colours, in the dark and on paper, too. Each has a
title, and a description for those who do not see it; numbers stand beside it in the page. Lines are
drawn with at most a few hundred points: of each stretch its largest value, so that no peak is lost.
These are pure functions; threads: any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LEFT, _RIGHT = 860, 84, 16
_TOP, _BOTTOM = 12, 30
_POINTS_MAX = 430
_TICKS = 5
STRETCHES = 430

Points = Sequence[tuple[float, float]]
Format = Callable[[float], str]  # a mark on an axis


@dataclass(frozen=True)
class Line:
    """A line of a chart; `style` is a class of the style sheet."""

    name: str
    points: Points
    style: str
    is_filled: bool = False


@dataclass(frozen=True)
class Bar:
    """A horizontal bar with its text beside it."""

    name: str
    value: float
    text: str
    style: str = "c1"


@dataclass(frozen=True)
class Strip:
    """A row of a timeline: spans of time in which something went on."""

    name: str
    spans: Sequence[tuple[float, float]]
    style: str


def second_text(seconds: float) -> str:
    """The mark on an axis of seconds."""
    return f"{seconds:g} s"


def lines(
    title: str, drawn: Sequence[Line], x_text: Format, y_text: Format, height: int = 240
) -> str:
    """A line chart: time starts at the earliest point, values start at 0."""
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return ""
    x_begin = min(line.points[0][0] for line in drawn)
    x_end = max(line.points[-1][0] for line in drawn)
    highest = max(value for line in drawn for _, value in line.points)
    top = _nice_step(highest) * math.ceil(highest / _nice_step(highest)) if highest > 0 else 1.0
    frame = _Frame(x_begin, max(x_end, x_begin + 1e-9), top, height)
    parts = [*_y_axis(frame, y_text), *_x_axis(frame, x_text)]
    parts += [_path(line, frame) for line in drawn]
    described = "; ".join(
        f"{line.name}: at most {y_text(max(value for _, value in line.points))}" for line in drawn
    )
    return _svg(title, described, height, parts) + _legend(drawn)


def bars(title: str, drawn: Sequence[Bar]) -> str:
    """Bars from 0, one below the other, each with its name and its text."""
    if not drawn:
        return ""
    row, name_width, text_width = 26, 300, 150
    width = _WIDTH - name_width - text_width
    longest = max(bar.value for bar in drawn) or 1.0
    parts = []
    for number, bar in enumerate(drawn):
        y = number * row + 4
        length = width * bar.value / longest
        parts.append(
            f'<text x="{name_width - 8}" y="{y + 14}" text-anchor="end">{_cut(bar.name, 44)}</text>'
            f'<rect class="{bar.style}" x="{name_width}" y="{y}" width="{length:.1f}" height="18">'
            f"<title>{escape(bar.name)}: {escape(bar.text)}</title></rect>"
            f'<text x="{name_width + length + 6:.1f}" y="{y + 14}">{escape(bar.text)}</text>'
        )
    described = "; ".join(f"{bar.name}: {bar.text}" for bar in drawn)
    return _svg(title, described, len(drawn) * row + 8, parts)


def timeline(title: str, strips: Sequence[Strip], begin: float, end: float, x_text: Format) -> str:
    """A row for each strip: darker where more of a stretch of time is covered."""
    strips = [strip for strip in strips if strip.spans]
    if not strips or end <= begin:
        return ""
    row, left = 26, 200
    height = len(strips) * row + _BOTTOM
    width = (_WIDTH - left - _RIGHT) / STRETCHES
    parts = []
    described = []
    for number, strip in enumerate(strips):
        y = number * row
        shares = covered(strip.spans, begin, end, STRETCHES)
        busy = sum(shares) / STRETCHES
        described.append(f"{strip.name}: {busy:.0%} of the time")
        parts.append(
            f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{_cut(strip.name, 30)}</text>'
        )
        parts += [
            f'<rect class="{strip.style}" x="{left + place * width:.1f}" y="{y + 3}" '
            f'width="{length * width:.1f}" height="20" opacity="{share:.2f}"/>'
            for place, length, share in _runs(shares)
        ]
    frame = _Frame(begin, end, 1.0, height, left)
    return _svg(title, "; ".join(described), height, [*parts, *_x_axis(frame, x_text)])


def covered(
    spans: Sequence[tuple[float, float]],
    begin: float,
    end: float,
    stretches: int,
    least: float = 0.02,
) -> list[float]:
    """How much of each stretch the spans cover, at most 1 where several lie over each other.

    A span counts as at least `least` of each stretch that it touches, so that a short one shows.
    """
    width = (end - begin) / stretches
    sums = [0.0] * stretches
    for first, last in spans:
        low, high = max(first, begin), min(last, end)
        if high < low:
            continue
        first_place = min(stretches - 1, int((low - begin) / width))
        for place in range(first_place, stretches):
            left = begin + place * width
            if left >= high and place > first_place:
                break
            share = (min(high, left + width) - max(low, left)) / width
            sums[place] += max(share, least)
    return [min(1.0, value) for value in sums]


def _runs(shares: Sequence[float]) -> list[tuple[int, int, float]]:
    """(place, length, share) of neighbours that look the same; nothing for what is empty."""
    runs: list[tuple[int, int, float]] = []
    place = 0
    for share, group in itertools.groupby(round(value, 2) for value in shares):
        length = len(list(group))
        if share:
            runs.append((place, length, share))
        place += length
    return runs


@dataclass(frozen=True)
class _Frame:
    """Where values lie in the drawing."""

    x_begin: float
    x_end: float
    top: float
    height: int
    left: int = _LEFT

    def x(self, value: float) -> float:
        share = (value - self.x_begin) / (self.x_end - self.x_begin)
        return self.left + share * (_WIDTH - self.left - _RIGHT)

    def y(self, value: float) -> float:
        return self.height - _BOTTOM - value / self.top * (self.height - _BOTTOM - _TOP)


def _path(line: Line, frame: _Frame) -> str:
    points = [(frame.x(x), frame.y(y)) for x, y in thinned(line.points, _POINTS_MAX)]
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = ""
    if line.is_filled:
        floor = frame.y(0)
        area = f"{points[0][0]:.1f},{floor:.1f} {text} {points[-1][0]:.1f},{floor:.1f}"
        drawn = f'<polygon class="{line.style} area" points="{area}"/>'
    title = f"<title>{escape(line.name)}</title>"
    return f'{drawn}<polyline class="{line.style} line" points="{text}">{title}</polyline>'


def thinned(points: Points, most: int) -> list[tuple[float, float]]:
    """At most this many points: of each stretch the one with the largest value, and both ends."""
    if len(points) <= most:
        return list(points)
    size = len(points) / (most - 2)
    chosen = [points[0]]
    for number in range(most - 2):
        part = points[int(number * size) : max(int(number * size) + 1, int((number + 1) * size))]
        chosen.append(max(part, key=lambda point: point[1]))
    return [*chosen, points[-1]]


def _y_axis(frame: _Frame, text: Format) -> list[str]:
    step = _nice_step(frame.top)
    ticks = [step * number for number in range(round(frame.top / step) + 1)]
    return [
        f'<line class="grid" x1="{frame.left}" x2="{_WIDTH - _RIGHT}" '
        f'y1="{frame.y(tick):.1f}" y2="{frame.y(tick):.1f}"/>'
        f'<text x="{frame.left - 8}" y="{frame.y(tick) + 4:.1f}" text-anchor="end">'
        f"{escape(text(tick))}</text>"
        for tick in ticks
    ]


def _x_axis(frame: _Frame, text: Format) -> list[str]:
    step = _nice_step(frame.x_end - frame.x_begin)
    first = math.ceil(frame.x_begin / step) * step
    ticks = []
    while first <= frame.x_end + step * 1e-6:
        ticks.append(first)
        first += step
    return [
        f'<text x="{frame.x(tick):.1f}" y="{frame.height - 8}" text-anchor="middle">'
        f"{escape(text(tick))}</text>"
        for tick in ticks
    ]


def _nice_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, so that some five steps make the span."""
    raw = max(span, 1e-12) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if raw <= power * factor * (1 + 1e-9))


def _cut(text: str, most: int) -> str:
    """The end of a long name tells more than its start."""
    return escape(text if len(text) <= most else "…" + text[1 - most :])


def _legend(drawn: Sequence[Line]) -> str:
    entries = "".join(
        f'<li><span class="key {line.style}"></span>{escape(line.name)}</li>' for line in drawn
    )
    return f'<ul class="legend">{entries}</ul>'


def _svg(title: str, described: str, height: int, parts: Sequence[str]) -> str:
    return (
        f"<figcaption>{escape(title)}</figcaption>"
        f'<svg role="img" viewBox="0 0 {_WIDTH} {height}" aria-label="{escape(title)}: '
        f'{escape(described)}">{"".join(parts)}</svg>'
    )
