// Charts of a card: course over time, typical courses, odds ratio and stability. Each has a text alternative.

function ticks(low, high, about) {
  const rough = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
  const values = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step)
    values.push(Number(at.toPrecision(12)));
  return values;
}

const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);
const path = (points) =>
  points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function axes(x, y, xTicks, yTicks, box, xLabel) {
  return [
    ...yTicks.flatMap((at) => [
      draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y(at), y2: y(at) }),
      draw("text", { class: "tick", x: box.left - 6, y: y(at) + 4, "text-anchor": "end" }, amount(at)),
    ]),
    ...xTicks.map((at) =>
      draw("text", { class: "tick", x: x(at), y: box.bottom + 16, "text-anchor": "middle" }, amount(at)),
    ),
    draw("text", { class: "tick", x: box.right, y: box.bottom + 32, "text-anchor": "end" }, xLabel ?? ""),
  ];
}

// Median and quartiles of the activity in the patients the phenotype leads in.
function courseChart(band, unit) {
  const box = { left: 40, right: 440, top: 8, bottom: 132 };
  const last = band.x.length - 1;
  const x = scale(band.x[0], band.x[last], box.left, box.right - 10);
  const top = Math.max(...band.high, 1e-9);
  const y = scale(0, top, box.bottom, box.top);
  const upper = band.x.map((at, i) => [x(at), y(band.high[i])]);
  const lower = band.x.map((at, i) => [x(at), y(band.low[i])]).reverse();
  const middle = band.x.map((at, i) => [x(at), y(band.median[i])]);
  const description = `Median activity goes from ${amount(band.median[0])} to ${amount(band.median[last])} over ${last + 1} points.`;
  const drawn =
    band.x.length > 1
      ? [
          draw("path", { class: "band", d: `${path(upper.concat(lower))}Z` }),
          draw("path", { class: "curve", d: path(middle) }),
        ]
      : [
          draw("line", {
            class: "range",
            x1: x(band.x[0]),
            x2: x(band.x[0]),
            y1: y(band.low[0]),
            y2: y(band.high[0]),
          }),
          draw("circle", { class: "dot", cx: x(band.x[0]), cy: y(band.median[0]), r: 4 }),
        ];
  const label = unit === "visits" ? "visit number" : "months since the first visit";
  const integerTicks = ticks(band.x[0], band.x[last], 6).filter((at) => Number.isInteger(at));
  return draw(
    "svg",
    { class: "chart", viewBox: "0 0 440 170", role: "img", "aria-label": description },
    axes(x, y, integerTicks, ticks(0, top, 3), box, label),
    drawn,
  );
}

function sparkline(curve, top) {
  const x = scale(0, curve.length - 1, 2, 118);
  const y = scale(0, top, 38, 3);
  const points = curve.map((value, i) => [x(i), y(value)]);
  return draw(
    "svg",
    { class: "spark", viewBox: "0 0 120 42", "aria-hidden": "true" },
    draw("line", { class: "grid", x1: 2, x2: 118, y1: 38, y2: 38 }),
    draw("path", { class: "band", d: `${path(points)}L118 38L2 38Z` }),
    draw("path", { class: "curve", d: path(points) }),
  );
}

// Means over groups of patients, from first to last visit; never a single patient.
function typicalCourses(typical) {
  const top = Math.max(...typical.flatMap((group) => group.curve), 1e-9);
  return make(
    "ul",
    { class: "typical" },
    typical.map((group) =>
      make(
        "li",
        {},
        group.curve.length > 0 ? sparkline(group.curve, top) : null,
        make("b", {}, group.label),
      ),
    ),
  );
}

// An odds ratio with its interval on a logarithmic axis; the line at 1 is no difference.
function forest(link) {
  const limit = Math.max(4, Math.min(32, Math.ceil(Math.max(link.high, 1 / Math.max(link.low, 1e-3)))));
  const x = scale(-Math.log(limit), Math.log(limit), 12, 288);
  const at = (value) =>
    x(Math.max(-Math.log(limit), Math.min(Math.log(limit), Math.log(Math.max(value, 1e-9)))));
  const marks = limit > 8 ? [1 / 16, 1 / 4, 1, 4, 16] : [0.25, 0.5, 1, 2, 4];
  return draw(
    "svg",
    {
      class: "forest",
      viewBox: "0 0 300 44",
      role: "img",
      "aria-label": `Odds ratio ${ratio(link.odds_ratio)}, 95% interval ${ratio(link.low)} to ${ratio(link.high)}`,
    },
    draw("line", { class: "one", x1: at(1), x2: at(1), y1: 2, y2: 26 }),
    draw("line", { class: "range", x1: at(link.low), x2: at(link.high), y1: 14, y2: 14 }),
    draw("rect", { class: "dot", x: at(link.odds_ratio) - 5, y: 9, width: 10, height: 10 }),
    marks
      .filter((mark) => mark <= limit && mark >= 1 / limit)
      .map((mark) =>
        draw(
          "text",
          { class: "tick", x: at(mark), y: 41, "text-anchor": "middle" },
          mark < 1 ? `1/${Math.round(1 / mark)}` : String(mark),
        ),
      ),
  );
}

// Similarity to the counterpart in each other run.
function strip(runs) {
  const x = scale(0, 1, 6, 294);
  const inside = (value) => x(Math.max(0, Math.min(1, value)));
  return draw(
    "svg",
    {
      class: "strip",
      viewBox: "0 0 300 40",
      role: "img",
      "aria-label": `Similarity between runs: median ${ratio(runs.median)}, from ${ratio(runs.low)} to ${ratio(runs.high)}`,
    },
    draw("line", { class: "axis", x1: 6, x2: 294, y1: 14, y2: 14 }),
    runs.values.map((value) =>
      draw("line", { class: "run", x1: inside(value), x2: inside(value), y1: 7, y2: 21 }),
    ),
    draw("path", { class: "dot", d: `M${inside(runs.median).toFixed(1)} 5l5 9-5 9-5-9z` }),
    [0, 0.5, 1].map((mark) =>
      draw(
        "text",
        {
          class: "tick",
          x: x(mark),
          y: 38,
          "text-anchor": mark === 0 ? "start" : mark === 1 ? "end" : "middle",
        },
        String(mark),
      ),
    ),
  );
}

// The effect size as a dot on a line whose middle is no difference.
function effectMark(effect) {
  const x = scale(-1.2, 1.2, 6, 94);
  const at = x(Math.max(-1.2, Math.min(1.2, effect)));
  return draw(
    "svg",
    { class: "effect", viewBox: "0 0 100 16", "aria-hidden": "true" },
    draw("line", { class: "axis", x1: 4, x2: 96, y1: 8, y2: 8 }),
    draw("line", { class: "one", x1: 50, x2: 50, y1: 2, y2: 14 }),
    draw("line", { class: "range", x1: 50, x2: at, y1: 8, y2: 8 }),
    draw("circle", { class: "dot", cx: at, cy: 8, r: 4 }),
  );
}
