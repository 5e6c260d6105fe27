"use strict";
// Draws the charts of a page from the JSON in it: curves to switch on and off, with hover and zoom.
(() => {
  const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const element = (kind, parent, text = "", attributes = {}) => {
    const made = document.createElement(kind);
    made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return parent.appendChild(made);
  };
  const stroke = series => color(`--c${series.color % 7}`);
  // More than seven rows differ in their dashes. Those of trained networks are short.
  const DASHES = [[], [12, 4], [12, 4, 2, 4]];
  const dash = series => (series.deployed ? DASHES[Math.floor(series.color / 7) % 3] : [5, 4]);
  const hidden = { row: new Set(), seed: new Set(), network: new Set(["trained"]) };
  const kind = series => (series.deployed ? "deployed" : "trained");
  const isShown = series => !hidden.row.has(series.row) && !hidden.seed.has(series.seed) &&
    !hidden.network.has(kind(series));
  const name = series => [series.row, series.network].join(" ");
  const MANY = 48; // curves in a chart above which only the first seed is shown at first
  let plots = [];

  function controls(data, place) {
    place.replaceChildren();
    const all = data.charts.flatMap(chart => chart.series);
    const groups = { row: all.map(s => s.row), network: all.map(kind), seed: all.map(s => s.seed) };
    for (const [group, values] of Object.entries(groups)) {
      const choices = [...new Set(values)];
      if (group === "seed" && !plots.length && all.length / data.charts.length > MANY) choices.slice(1).forEach(s => hidden.seed.add(s));
      if (choices.length < 2) {
        hidden[group].clear();
        continue;
      }
      const part = element("span", place, group === "row" ? "" : `${group}: `);
      for (const value of choices) {
        const button = element("button", part, "", { type: "button" });
        if (group === "row") {
          const dot = element("i", button);
          dot.style.background = stroke(all.find(s => s.row === value));
        }
        button.append(String(value));
        button.setAttribute("aria-pressed", !hidden[group].has(value));
        button.addEventListener("click", () => {
          const on = hidden[group].delete(value);
          if (!on) hidden[group].add(value);
          button.setAttribute("aria-pressed", on);
          for (const { plot, chart } of plots) {
            plot.batch(() => chart.series.forEach((s, n) => plot.setSeries(n + 1, { show: isShown(s) })));
          }
        });
      }
    }
    const reset = element("button", place, "Reset zoom", { type: "button" });
    reset.addEventListener("click", () => plots.forEach(({ plot }) => plot.setData(plot.data)));
  }

  // Vertical lines for new policies, and a mark at each chosen epoch.
  function marks(data) {
    return plot => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.strokeStyle = color("--line");
      ctx.fillStyle = color("--soft");
      ctx.setLineDash([4, 4]);
      ctx.beginPath();
      for (const { epoch } of data.policies) {
        const x = plot.valToPos(epoch, "x", true);
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
      }
      ctx.stroke();
      ctx.font = `${11 * devicePixelRatio}px system-ui`;
      data.chosen.forEach(({ epoch, text }, number) => {
        const x = plot.valToPos(epoch, "x", true), y = bbox.top + bbox.height - (number * 14 + 4) * devicePixelRatio;
        ctx.textAlign = x > bbox.left + bbox.width / 2 ? "right" : "left";
        ctx.fillText(ctx.textAlign === "right" ? `${text} ▾` : `▾ ${text}`, x, y);
      });
      ctx.restore();
    };
  }

  // The values under the pointer. Seeds of a row are averaged.
  function readout(data, chart, place) {
    return plot => {
      const at = plot.cursor.idx;
      if (at == null) {
        place.textContent = "";
        return;
      }
      const found = new Map();
      chart.series.filter(isShown).forEach(s => {
        if (s.y[at] == null) return;
        found.set(name(s), [...(found.get(name(s)) ?? []), s.y[at]]);
      });
      const mean = values => values.reduce((a, b) => a + b) / values.length;
      const texts = [...found].map(([label, values]) => [mean(values), label]).sort((a, b) => b[0] - a[0]);
      const more = texts.length > 8 ? ", ..." : "";
      place.textContent = `epoch ${data.x[at]}: ` +
        texts.slice(0, 8).map(([value, label]) => `${label} ${value.toFixed(1)} %`).join(", ") + more;
    };
  }

  function draw(data) {
    const place = document.getElementById("charts");
    if (!place || !data.charts) return;
    const zooms = plots.map(({ plot }) => {
      const { min, max } = plot.scales.x, x = plot.data[0];
      return min > x[0] || max < x.at(-1) ? { min, max } : null;
    });
    plots.forEach(({ plot }) => plot.destroy());
    place.replaceChildren();
    controls(data, document.getElementById("controls"));
    plots = data.charts.map((chart, number) => {
      const box = element("div", place, "", { class: "chart" });
      element("h3", box, chart.title);
      const last = chart.series.filter(s => s.deployed).map(s => `${name(s)} ${s.y.findLast(v => v != null)} %`);
      const canvas = element("div", box, "", {
        role: "img", "aria-label": `Accuracy over epochs. At the end: ${last.slice(0, 12).join(", ")}`,
      });
      const values = element("p", box, "", { class: "readout" });
      const axis = { stroke: color("--soft"), grid: { stroke: color("--field") }, ticks: { show: false } };
      const plot = new uPlot({
        width: box.clientWidth, height: 230,
        scales: { x: { time: false } },
        axes: [{ ...axis, label: "epoch", labelSize: 18, size: 32 }, { ...axis, size: 42 }],
        cursor: { sync: { key: "epochs" }, drag: { x: true, y: false } },
        series: [{}, ...chart.series.map(s => ({
          label: name(s), stroke: stroke(s), width: s.deployed ? 2 : 1, show: isShown(s), spanGaps: true,
          dash: dash(s), points: { show: data.x.length < 2 },
        }))],
        hooks: { draw: [marks(data)], setCursor: [readout(data, chart, values)] },
      }, [data.x, ...chart.series.map(s => s.y)], canvas);
      if (zooms[number]) plot.setScale("x", zooms[number]);
      new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: 230 })).observe(box);
      return { plot, chart };
    });
  }

  let data = JSON.parse(document.getElementById("data").textContent);
  draw(data);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(data));

  // A watched page loads the runs again and again. Only changed curves are drawn again.
  const WAIT = 2000;
  const runs = document.getElementById("runs");

  function list(rows) {
    runs.replaceChildren();
    for (const row of rows) {
      const line = element("tr", runs);
      element("th", line, row.run, { scope: "row" });
      for (const key of ["status", "progress", "left", "accuracy"]) element("td", line, row[key] ?? "");
      element("pre", element("td", line), row.log ?? "");
    }
  }

  async function watch() {
    const state = document.getElementById("state"), shown = data;
    try {
      data = await (await fetch("data.json")).json();
      state.textContent = `${data.runs.length} runs, ${data.runs.filter(r => r.status === "running").length} in training`;
    } catch {
      state.textContent = "The server has stopped. Start `peerdg watch` again.";
    }
    list(data.runs);
    if (JSON.stringify(data.charts) !== JSON.stringify(shown.charts)) draw(data);
    setTimeout(watch, WAIT);
  }

  if (runs) watch();
})();
