"use strict";
(function () {
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const root = document.documentElement;
  const view = { x: "tokens", logx: false, logy: false, seeds: true, tail: false, hidden: new Set(), width: null };
  const axisTitle = { tokens: "training tokens", flops: "training FLOPs" };
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  // Plotly reads its own little markup in texts; names are to be shown as they are.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%/g, "&#37;");

  function trace(chart, series) {
    const style = data.variants[series.variant];
    const mean = series.seed === null;
    const who = mean ? (series.n_seeds > 1 ? "mean of " + series.n_seeds + " seeds" : "1 seed") : "seed " + series.seed;
    const from = view.tail ? series[view.x][series.y.length - 1] / 2 : 0;
    const kept = series[view.x].map((x) => x >= from);
    return {
      x: series[view.x].filter((_, i) => kept[i]), y: series.y.filter((_, i) => kept[i]), type: "scatter", name: plain(style.name),
      mode: mean && chart.markers ? "lines+markers" : "lines",
      opacity: mean ? 1 : 0.42,
      visible: !view.hidden.has(series.variant) && (mean || view.seeds),
      line: { color: colour("--c" + style.colour), width: mean ? 2.6 : 1, dash: style.dash },
      marker: { symbol: style.symbol, size: 8 },
      hovertemplate: "<b>" + plain(style.name) + "</b> (" + who + ")<br>%{x:.4s} " +
        (view.x === "tokens" ? "tokens" : "FLOPs") + "<br>%{y:.4~g} " + plain(chart.unit) + "<extra></extra>",
    };
  }

  // What guessing scores, from end to end of the axis; a trace and no shape, so that the axis reaches it.
  function chance(chart) {
    const xs = chart.series.flatMap((series) => series[view.x]);
    return {
      x: [Math.min(...xs), Math.max(...xs)], y: [chart.chance, chart.chance], type: "scatter", mode: "lines", name: "chance",
      line: { color: colour("--muted"), width: 1.5, dash: "dot" },
      hovertemplate: "chance<br>%{y:.4~g} " + plain(chart.unit) + "<extra></extra>",
    };
  }

  function traces(chart) {
    const drawn = chart.series.map((series) => trace(chart, series));
    return chart.chance === null ? drawn : [chance(chart), ...drawn];
  }

  function layout(chart) {
    const axis = {
      color: colour("--muted"), gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: false,
      automargin: true, exponentformat: "power", tickfont: { size: 12 },
    };
    const logTicks = (log) => (log ? { type: "log", dtick: undefined } : { type: "linear" });
    const xTicks = view.x === "tokens" ? { tickformat: "~s" } : { tickformat: "" };
    const places = new Set(chart.series.flatMap((series) => series[view.x]));
    if (places.size === 1) Object.assign(xTicks, { tickmode: "array", tickvals: [...places] });  // else 3.1995k
    return {
      margin: { l: 52, r: 12, t: 8, b: 44 }, showlegend: false, hovermode: "closest", dragmode: "zoom",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", width: view.width ? view.width(chart) : undefined,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--text") },
      hoverlabel: { bgcolor: colour("--page"), font: { color: colour("--text") }, bordercolor: colour("--line") },
      xaxis: Object.assign({}, axis, logTicks(view.logx), xTicks, { title: { text: axisTitle[view.x], standoff: 8, font: { size: 12 } }, nticks: 6 }),
      yaxis: Object.assign({}, axis, logTicks(view.logy), { title: { text: "" }, nticks: 7 }),
      datarevision: 0, uirevision: [view.x, view.logx, view.logy, view.tail].join(),
    };
  }

  const config = {
    displaylogo: false, responsive: true, showLink: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };

  function draw() {
    for (const chart of data.charts) {
      Plotly.react(chart.id, traces(chart), layout(chart), config);
    }
  }

  for (const button of document.querySelectorAll("[data-x]")) {
    button.addEventListener("click", () => {
      view.x = button.dataset.x;
      for (const other of document.querySelectorAll("[data-x]")) other.setAttribute("aria-pressed", String(other === button));
      draw();
    });
  }
  for (const box of document.querySelectorAll("[data-option]")) {
    box.addEventListener("change", () => { view[box.dataset.option] = box.checked; draw(); });
  }
  for (const button of document.querySelectorAll("[data-variant]")) {
    button.addEventListener("click", () => {
      const index = Number(button.dataset.variant);
      const shown = view.hidden.has(index);
      if (shown) view.hidden.delete(index); else view.hidden.add(index);
      button.setAttribute("aria-pressed", String(shown));
      draw();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  // Paper is white and about 690 CSS pixels wide, whatever the window is.
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    for (const full of document.querySelectorAll("details.full:not([open])")) { full.open = true; full.dataset.opened = "print"; }
    view.width = (chart) => (chart.id === "loss" ? 680 : 328);
    draw();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    for (const full of document.querySelectorAll("details.full[data-opened]")) { full.open = false; delete full.dataset.opened; }
    view.width = null;
    draw();
  });
  draw();
  root.dataset.drawn = "true";
})();
