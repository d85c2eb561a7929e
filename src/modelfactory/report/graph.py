"""The plan as a drawing: layers from left to right, placed without randomness."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modelfactory.report.data import PlanNode
from modelfactory.report.labels import shortened, told_apart, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_NODES = 40
WIDTH, HEIGHT = 200, 62
COLUMN, ROW, EDGE = 228, 76, 18
STEP = 92
"""From one row of the narrow drawing to the next."""
LINE_LENGTH, DETAIL_LENGTH, _SLACK = 24, 26, 4
"""Characters of each of two lines of a label, of what is below, and left free where a line ends at a word."""
SWEEPS = 4


@dataclass(frozen=True, kw_only=True)
class Box:
    """A node, placed; coordinates in CSS pixels."""

    node: PlanNode
    """What is drawn."""
    x: int
    """Left edge."""
    y: int
    """Top edge."""
    lines: tuple[tuple[int, str], ...]
    """The label in one line or two, each with its distance from the top edge."""
    detail: tuple[int, str]
    """Kind and state, below the label."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A graph, placed."""

    width: int
    """CSS pixels."""
    height: int
    """CSS pixels."""
    boxes: tuple[Box, ...]
    """Nodes."""
    paths: tuple[str, ...]
    """Edges, as SVG path data."""
    merged: bool
    """Whether nodes were merged by kind, because there were too many to read."""


def draw(nodes: Sequence[PlanNode], edges: Sequence[tuple[str, str]]) -> Drawing:
    """Place a graph; stages of one kind are merged where there are more than can be read."""
    merged = len(nodes) > MOST_NODES
    if merged:
        nodes, edges = _merge(nodes, edges)
    known = {node.id for node in nodes}
    edges = [edge for edge in dict.fromkeys(edges) if edge[0] in known and edge[1] in known]
    layers = _ordered(_layers(nodes, edges), edges)
    tallest = max((len(layer) for layer in layers), default=0)
    labels = _labels(nodes)
    boxes = [
        _box(node, labels[node.id], column, row + (tallest - len(layer)) / 2)
        for column, layer in enumerate(layers)
        for row, node in enumerate(layer)
    ]
    places = {box.node.id: box for box in boxes}
    return Drawing(
        width=max(len(layers) * COLUMN - (COLUMN - WIDTH) + 2 * EDGE, 1),
        height=max(tallest * ROW - (ROW - HEIGHT) + 2 * EDGE, 1),
        boxes=tuple(boxes),
        paths=tuple(_path(places[start], places[end]) for start, end in edges),
        merged=merged,
    )


def draw_narrow(nodes: Sequence[PlanNode], edges: Sequence[tuple[str, str]]) -> Drawing:
    """Place a graph from top to bottom, merged by kind: what fits a telephone."""
    merged, edges = _merge(nodes, edges)
    layers = _layers(merged, edges)
    labels = _labels(merged)
    boxes = [
        replace(_box(node, labels[node.id], place, 0), y=EDGE + row * STEP)
        for row, layer in enumerate(layers)
        for place, node in enumerate(layer)
    ]
    places = {box.node.id: box for box in boxes}
    widest = max((len(layer) for layer in layers), default=0)
    return Drawing(
        width=widest * COLUMN + 2 * EDGE,
        height=max(len(layers) * STEP - (STEP - HEIGHT) + 2 * EDGE, 1),
        boxes=tuple(boxes),
        paths=tuple(_path_down(places[start], places[end]) for start, end in edges),
        merged=True,
    )


def _merge(
    nodes: Sequence[PlanNode], edges: Sequence[tuple[str, str]]
) -> tuple[list[PlanNode], list[tuple[str, str]]]:
    kinds: dict[str, list[PlanNode]] = {}
    for node in nodes:
        kinds.setdefault(node.kind, []).append(node)
    merged = [_merged(kind, alike) for kind, alike in kinds.items()]
    kind_of = {node.id: node.kind for node in nodes}
    pairs = ((kind_of[a], kind_of[b]) for a, b in edges if a in kind_of and b in kind_of)
    return merged, [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]


def _merged(kind: str, alike: Sequence[PlanNode]) -> PlanNode:
    states: Counter[str] = Counter()
    for node in alike:
        states[node.state] += node.count
    state = (
        alike[0].state if len(states) == 1 else ", ".join(f"{n} {name}" for name, n in sorted(states.items()))
    )
    return replace(alike[0], id=kind, label=kind, state=state, count=states.total())


def _layers(nodes: Sequence[PlanNode], edges: Sequence[tuple[str, str]]) -> list[list[PlanNode]]:
    """Return nodes by the length of the longest path that leads to them."""
    depth = dict.fromkeys((node.id for node in nodes), 0)
    for _ in nodes:
        deeper = {end: depth[start] + 1 for start, end in edges if depth[start] + 1 > depth[end]}
        # A cycle, which no plan has, ends here all the same: paths are no longer than there are nodes.
        if not deeper or max(deeper.values()) >= len(nodes):
            break
        depth.update({end: max(deeper[end], depth[end]) for end in deeper})
    _pull_sources(depth, edges)
    layers: list[list[PlanNode]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        layers[depth[node.id]].append(node)
    return [layer for layer in layers if layer]


def _pull_sources(depth: dict[str, int], edges: Sequence[tuple[str, str]]) -> None:
    """Move what is made from nothing next to the first that uses it: shorter lines, fewer crossings."""
    made = {end for _, end in edges}
    for name in depth:
        users = [depth[end] for start, end in edges if start == name]
        if name not in made and users:
            depth[name] = min(users) - 1


def _ordered(layers: list[list[PlanNode]], edges: Sequence[tuple[str, str]]) -> list[list[PlanNode]]:
    """Return layers in which nodes stand near what they hang on (barycentre sweeps)."""
    near: dict[str, list[str]] = {}
    for start, end in edges:
        near.setdefault(start, []).append(end)
        near.setdefault(end, []).append(start)
    for _ in range(SWEEPS):
        places = {node.id: place - len(layer) / 2 for layer in layers for place, node in enumerate(layer)}
        layers = [sorted(layer, key=lambda node: _middle(node.id, near, places)) for layer in layers]
    return layers


def _middle(name: str, near: Mapping[str, Sequence[str]], places: Mapping[str, float]) -> float:
    others = [places[other] for other in near.get(name, ())]
    return sum(others) / len(others) if others else places[name]


def _labels(nodes: Sequence[PlanNode]) -> dict[str, str]:
    """Return the label of each node, cut to two lines; those of one kind stay different."""
    kinds: dict[str, list[PlanNode]] = {}
    for node in nodes:
        kinds.setdefault(node.kind, []).append(node)
    labels: dict[str, str] = {}
    for alike in kinds.values():
        shown = told_apart((_label(node) for node in alike), 2 * LINE_LENGTH - _SLACK)
        labels |= {node.id: shown[_label(node)] for node in alike}
    return labels


def _label(node: PlanNode) -> str:
    return node.label + (_times(node) if node.kind == node.label else "")


def _times(node: PlanNode) -> str:
    return f" \N{MULTIPLICATION SIGN} {node.count:,}" if node.count > 1 else ""


def _box(node: PlanNode, label: str, column: int, row: float) -> Box:
    kind = "" if node.kind == node.label else f"{node.kind}{_times(node)} · "
    lines = wrapped(label, LINE_LENGTH)
    places = (20, 36) if len(lines) > 1 else (27,)
    return Box(
        node=node,
        x=EDGE + column * COLUMN,
        y=EDGE + round(row * ROW),
        lines=tuple(zip(places, lines, strict=True)),
        detail=(53 if len(lines) > 1 else 45, shortened(f"{kind}{node.state}", DETAIL_LENGTH)),
    )


def _path(start: Box, end: Box) -> str:
    x0, y0 = start.x + WIDTH, start.y + HEIGHT // 2
    x1, y1 = end.x, end.y + HEIGHT // 2
    bend = max((x1 - x0) // 2, 20)
    # A line past a column would vanish behind a box in the same row: it goes around above.
    bow = HEIGHT if x1 - x0 > COLUMN else 0
    return f"M{x0} {y0}C{x0 + bend} {y0 - bow} {x1 - bend} {y1 - bow} {x1} {y1}"


def _path_down(start: Box, end: Box) -> str:
    x0, y0, x1, y1 = start.x + WIDTH // 2, start.y + HEIGHT, end.x + WIDTH // 2, end.y
    if y1 - y0 < STEP:
        return f"M{x0} {y0}C{x0} {y0 + 15} {x1} {y1 - 15} {x1} {y1}"
    # A line past a row goes around on the right, the further the longer it is.
    x0, y0, x1, y1 = start.x + WIDTH, start.y + HEIGHT // 2, end.x + WIDTH, end.y + HEIGHT // 2
    bow = min(max(x0, x1) + (y1 - y0) // 5, max(x0, x1) + COLUMN - WIDTH + EDGE)
    return f"M{x0} {y0}C{bow} {y0 + 10} {bow} {y1 - 10} {x1} {y1}"
