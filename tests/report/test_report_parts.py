from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace

import pytest
from rich.console import Console

from modelfactory.report import (
    LossCurve,
    PlanNode,
    ReportData,
    findings_table,
    numbers,
    print_verdict,
    render_report,
    to_markdown,
    variants_table,
)
from modelfactory.report.charts import N_COLOURS, chart_data, styles
from modelfactory.report.forest import forests
from modelfactory.report.graph import MOST_NODES, draw, draw_narrow
from modelfactory.report.labels import told_apart, wrapped
from modelfactory.report.tables import chance_text, estimate_text, parameters_text, seeds_needed
from modelfactory.verdict.words import number, value_text


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (numbers.count(950), "950"),
        (numbers.count(12_345), "12,345"),
        (numbers.count(999_999), "999,999"),
        (numbers.count(13_812_480), "13.8 million"),
        (numbers.count(999_999_999), "1.00 billion"),
        (numbers.flops(1.2401e15), "1.24 PFLOP"),
        (numbers.flops(0.0), "0 FLOP"),
        (numbers.size(999), "999 B"),
        (numbers.size(12_345_678), "12.3 MB"),
        (numbers.duration(3.21), "3.2 s"),
        (numbers.duration(59.99), "1 min 00 s"),
        (numbers.duration(7_385), "2 h 03 min"),
        (numbers.duration(273_600), "3 d 4 h"),
        (numbers.per_cent(1, 8), "12.5 %"),
        (numbers.per_cent(1, 0), "\N{EN DASH}"),
        (number(-0.0004, 2, sign=True), "0.00"),
        (number(-1234.5, 1), "\N{MINUS SIGN}1,234.5"),
    ],
)
def test_numbers_read_well(shown: str, wanted: str) -> None:
    assert shown == wanted


def test_control_characters_are_spelled_out_and_other_scripts_kept() -> None:
    assert numbers.printable("a\x00\u202eb\ud800\n\tü漢😀") == "a\\x00\\u202eb\\ud800\n\tü漢😀"


def test_shares_are_per_cent(data: ReportData) -> None:
    share = next(estimate.measure for estimate in data.estimates if estimate.measure.unit == "share")
    assert value_text(0.4821, share, 0.011) == "48.2 %"


def test_markdown_has_a_row_per_finding_and_escapes_its_marks(data: ReportData) -> None:
    lines = to_markdown(findings_table(data.findings)).splitlines()
    assert len(lines) == 2 + len(data.findings)
    odd = replace(data.variants[0], name="a|b<c>\n")
    table = to_markdown(variants_table(replace(data, variants=(odd,))))
    assert "a\\|b&lt;c>" in table
    assert len(table.splitlines()) == 3


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_terminal_says_the_verdict_within_its_width(data: ReportData, width: int) -> None:
    out = io.StringIO()
    print_verdict(data.findings, Console(file=out, width=width), question=data.question)
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    flat = " ".join(out.getvalue().split())
    assert "Does a Llama-like decoder" in flat
    assert "better on bits_per_byte" in flat
    assert "The interval is uncorrected; p is corrected for 9 comparisons." in flat


def test_the_terminal_names_the_baseline_and_says_in_full_only_what_is_settled(data: ReportData) -> None:
    out = io.StringIO()
    print_verdict(data.findings, Console(file=out, width=140))
    flat = " ".join(out.getvalue().split())
    assert "llama/dedup=none \N{MINUS SIGN} gpt2/dedup=none better" in flat
    assert "p (Holm)" in flat
    settled = {finding.conclusion != "cannot tell" for finding in data.findings}
    assert settled == {True, False}
    for finding in data.findings:
        assert (finding.sentence in flat) == (finding.conclusion != "cannot tell")
    n_open = sum(finding.conclusion == "cannot tell" for finding in data.findings)
    assert re.search(rf"\b{n_open} undecided findings? in full: factory report", flat)


def test_the_terminal_counts_one_comparison_in_the_singular(data: ReportData) -> None:
    out = io.StringIO()
    print_verdict([replace(data.findings[0], n_comparisons=1)], Console(file=out, width=140))
    assert "p is corrected for 1 comparison." in out.getvalue()


def test_the_terminal_speaks_of_no_p_where_there_is_none(data: ReportData) -> None:
    out = io.StringIO()
    print_verdict([replace(data.findings[0], p_corrected=None)], Console(file=out, width=140))
    assert "p is corrected" not in out.getvalue()
    assert "without noise between seeds there is no p." in out.getvalue()


def test_the_terminal_says_when_nothing_was_compared() -> None:
    out = io.StringIO()
    print_verdict([], Console(file=out))
    assert "Nothing was compared yet." in out.getvalue()


def test_bars_stand_where_their_numbers_are(data: ReportData) -> None:
    for forest in forests(data.findings):
        for bar in forest.bars:
            assert 0 <= bar.low <= bar.at <= bar.high <= 100
            assert (bar.at > forest.zero) == (bar.finding.difference > 0)
        assert 2 <= len(forest.ticks) <= 7


def test_a_finding_without_noise_still_has_a_place(data: ReportData) -> None:
    bare = replace(data.findings[0], difference=0.0, interval=None, interval_corrected=None)
    bare = replace(bare, measure=replace(bare.measure, margin=0.0))
    (forest,) = forests([bare])
    assert (forest.bars[0].at, forest.bars[0].low) == (50.0, None)


def test_no_two_of_forty_variants_look_alike(data: ReportData) -> None:
    many = replace(
        data, variants=tuple(replace(data.variants[0], name=f"v{n}") for n in range(5 * N_COLOURS))
    )
    looks = {(style["colour"], style["dash"], style["symbol"]) for style in styles(many)}
    assert len(looks) == 5 * N_COLOURS


def test_long_curves_are_thinned_to_means(data: ReportData) -> None:
    n = 10_000
    steps = tuple(range(1, n + 1))
    long = LossCurve(
        variant=data.variants[0].name, seed=0, steps=steps, n_tokens=steps, flops=tuple(map(float, steps)),
        loss=tuple(float(step % 2) for step in steps),
    )  # fmt: skip
    (chart,) = chart_data(replace(data, losses=(long,), evaluations=()))["charts"]
    (series,) = chart["series"]
    assert len(series["y"]) <= 300
    assert series["tokens"][-1] == n
    assert max(abs(y - 0.5) for y in series["y"]) < 0.02


def test_the_mean_of_seeds_is_taken_where_all_have_a_checkpoint(data: ReportData) -> None:
    first, second = [curve for curve in data.evaluations if curve.variant == data.variants[0].name][:6:3]
    short = replace(second, **{f: getattr(second, f)[:2] for f in ("steps", "n_tokens", "flops", "values")})
    (chart,) = chart_data(replace(data, losses=(), evaluations=(first, short)))["charts"]
    mean = next(series for series in chart["series"] if series["seed"] is None)
    assert mean["y"] == pytest.approx([(first.values[i] + second.values[i]) / 2 for i in (0, 1)], rel=1e-5)


def test_the_plan_is_drawn_from_left_to_right(data: ReportData) -> None:
    drawing = draw(data.nodes, data.edges)
    x = {box.node.id: box.x for box in drawing.boxes}
    assert all(x[start] < x[end] for start, end in data.edges)
    places = [(box.x, box.y) for box in drawing.boxes]
    assert len(set(places)) == len(places)


def test_a_plan_too_large_to_read_is_merged_by_kind() -> None:
    nodes = [PlanNode(id=f"{kind}{n}", kind=kind, label=f"{n}", state="stored" if n else "to run")
             for kind in ("train", "evaluate") for n in range(MOST_NODES)]  # fmt: skip
    edges = [(f"train{n}", f"evaluate{n}") for n in range(MOST_NODES)]
    drawing = draw(nodes, edges)
    assert drawing.merged
    assert [(box.node.id, box.node.count) for box in drawing.boxes] == [("train", 40), ("evaluate", 40)]
    assert drawing.boxes[0].node.state == "39 stored, 1 to run"
    assert len(drawing.paths) == 1


def test_a_long_label_has_two_lines_and_keeps_its_end() -> None:
    node = PlanNode(id="a", kind="evaluate", label="llama/dedup=exact/seed=3, step 600", state="to run")
    (box,) = draw([node], []).boxes
    assert box.lines == ((20, "llama/dedup=exact/seed=3"), (36, ", step 600"))
    assert box.detail == (53, "evaluate · to run")


def test_labels_of_one_kind_stay_different_however_long_they_are() -> None:
    names = [f"a decoder of {n} layers with grouped heads, lr={lr}, seed={seed} to step 1,000"
             for n in (4, 8) for lr in (0.001, 0.003) for seed in (1, 2)]  # fmt: skip
    shown = told_apart(names, 48)
    assert list(shown) == names
    assert len(set(shown.values())) == len(names)
    assert max(map(len, shown.values())) <= 48
    nodes = [PlanNode(id=name, kind="train", label=name, state="stored") for name in names]
    boxes = draw(nodes, []).boxes
    assert len({tuple(line for _, line in box.lines) for box in boxes}) == len(names)
    assert all(len(line) <= 24 for box in boxes for _, line in box.lines)


@pytest.mark.parametrize("most", [24, 48])
def test_labels_that_differ_in_one_hidden_place_show_it(most: int) -> None:
    names = [f"{'x' * 40}, lr={lr}, {'y' * 40}" for lr in ("0.001", "0.003")]
    shown = told_apart(names, most)
    assert "1" in shown[names[0]]
    assert "3" in shown[names[1]]
    assert told_apart(["short", "short", names[0]], most)["short"] == "short"


def test_a_box_says_its_whole_label_in_its_title(data: ReportData) -> None:
    node = PlanNode(id="a", kind="train", label="z" * 90, state="stored")
    page = render_report(replace(data, nodes=(node,), edges=()))
    assert f"<title>train: {'z' * 90}, stored</title>" in page


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("low to step 8", ("low to step 8",)),
        ("64 wide, lr=0.001, seed=1 to step 50", ("64 wide, lr=0.001,", "seed=1 to step 50")),
        ("a" * 40, ("a" * 24, "a" * 16)),
        ("a " * 23 + "bc", ("a " * 11 + "a", "a " * 11 + "bc")),
    ],
)
def test_a_label_is_wrapped_at_a_space(text: str, lines: tuple[str, ...]) -> None:
    assert wrapped(text, 24) == lines


def test_parameters_that_are_trained_are_named_where_not_all_are(data: ReportData) -> None:
    variant = replace(data.variants[0], n_parameters=12_345_678, n_trainable=65_536)
    assert parameters_text(variant) == "12.3 million (65,536 trained)"
    assert parameters_text(replace(variant, n_trainable=12_345_678)) == "12.3 million"
    assert parameters_text(replace(variant, n_trainable=None)) == "12.3 million"


def test_on_a_telephone_the_plan_goes_from_top_to_bottom_and_fits(data: ReportData) -> None:
    drawing = draw_narrow(data.nodes, data.edges)
    assert [box.node.kind for box in drawing.boxes] == [
        "documents",
        "tokenizer",
        "tokens",
        "train",
        "evaluate",
    ]
    assert all(above.y < below.y for above, below in itertools.pairwise(drawing.boxes))
    assert drawing.width <= 400 - 2 * 14
    assert len(drawing.paths) == 6
    assert draw_narrow([], []).boxes == ()


def test_the_plan_of_five_kinds_fits_a_desk_screen(data: ReportData) -> None:
    assert draw(data.nodes, data.edges).width <= 1160


def test_chance_levels_are_named_where_a_task_has_one(data: ReportData) -> None:
    assert chance_text(data) == "Guessing would score: next_line 25.0 %."
    assert chance_text(replace(data, evaluations=())) == ""
    charts = {chart["title"]: chart["chance"] for chart in chart_data(data)["charts"]}
    assert charts == {
        "Training loss": None,
        "bits_per_byte": None,
        "next_line": 25,
        "complete_function": None,
    }


def test_an_exact_bound_is_marked_as_one(data: ReportData) -> None:
    share = next(estimate for estimate in data.estimates if estimate.measure.unit == "share")
    none = replace(share, value=0.0, interval=(0.0, 0.109), exact=True)
    assert estimate_text(none) == "0.0 % (0.0 to 10.9; exact bound)"


@pytest.mark.parametrize(
    ("seeds", "items", "text"),
    [
        (4, None, "4 more"),
        (None, None, "more items, not seeds"),
        (None, 5_405, "5,405 items in all, not seeds"),
    ],
)
def test_what_would_settle_it_is_said_without_a_riddle(
    data: ReportData, seeds: int | None, items: int | None, text: str
) -> None:
    finding = replace(data.findings[0], conclusion="cannot tell", seeds_needed=seeds, items_needed=items)
    assert seeds_needed(finding) == text


def test_an_empty_plan_and_a_cycle_are_drawn_all_the_same() -> None:
    assert draw((), ()).boxes == ()
    two = [PlanNode(id=name, kind="k", label=name, state="stored") for name in "ab"]
    assert len(draw(two, [("a", "b"), ("b", "a"), ("a", "gone")]).boxes) == 2
