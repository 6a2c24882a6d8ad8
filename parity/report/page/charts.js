"use strict";
// Drawings, all of them SVG made from the page's numbers.

/** A map of errors: a cell per number, a shade per decade from 1e-7 to 1, "!" for what is not a number. */
function errorMap(map) {
  const columns = Math.max(...map.errors.map((line) => line.length), 1);
  const cell = Math.max(6, Math.min(26, 640 / columns));
  const left = 34;
  const cells = map.errors.flatMap((line, y) => line.map((error, x) => {
    const title = svg("title", {}, `${map.lines} ${y}, ${map.columns} ${x}: ${error === null ? "nothing" : short(error)}`);
    const at = { x: left + x * cell, y: y * cell, width: cell, height: cell };
    if (error !== null && typeof error !== "number") {
      return svg("g", {}, title, svg("rect", { ...at, class: "lost" }),
        svg("text", { class: "nan", x: at.x + cell / 2 - 2, y: at.y + cell / 2 + 4 }, "!"));
    }
    const shade = error ? Math.min(1, Math.max(0, (Math.log10(error) + 7) / 7)) : 0;
    return svg("rect", { ...at, "fill-opacity": shade.toFixed(3) }, title);
  }));
  const names = map.errors.map((_, y) => (cell >= 11 || y % Math.ceil(11 / cell) === 0
    ? svg("text", { class: "soft", x: left - 6, y: y * cell + cell / 2 + 4, "text-anchor": "end" }, String(y)) : null));
  const height = map.errors.length * cell;
  return el("figure", { style: "margin: 8px 0" },
    el("figcaption", { class: "facts" }, `${map.title}; lines: ${map.lines}, columns: ${map.columns}; darker is worse, a shade per decade from 1e-7 to 1`),
    el("div", { class: "scroll" },
      svg("svg", { class: "map", width: left + columns * cell + 2, height: height + 2, role: "img", "aria-label": map.title }, cells, names)));
}

/** The range of a prediction as a band, the prediction as a line, the published figure as a diamond; seconds / predicted. */
function rangeChart(low, predicted, high, published) {
  const [least, most, width] = [0.5, 2.2, 230];
  const x = (value) => Math.min(width - 4, Math.max(4, width * Math.log(value / predicted / least) / Math.log(most / least)));
  const marks = [svg("line", { class: "axis", x1: 0, x2: width, y1: 9, y2: 9 }),
    svg("rect", { class: "span", x: x(low), width: x(high) - x(low), y: 3, height: 12 }),
    svg("line", { class: "predicted", x1: x(predicted), x2: x(predicted), y1: 1, y2: 17 })];
  let title = `predicted ${seconds(predicted)} s, range ${seconds(low)} to ${seconds(high)} s`;
  if (published !== null) {
    const at = x(published);
    marks.push(svg("path", { class: "published", d: `M${at - 5},9 L${at},4 L${at + 5},9 L${at},14 z` }));
    title += `, published ${seconds(published)} s`;
  }
  return svg("svg", { class: "range", width, height: 18, role: "img", "aria-label": title }, svg("title", {}, title), marks);
}

/** What a stage holds of a device's DRAM: weights, persistent buffers, transient, beside all there is. */
function memoryBar(row) {
  const parts = { weights: row.weights, buffers: row.persistent - row.weights, transient: row.peak - row.persistent };
  const width = 220;
  const scale = width / Math.max(row.total, row.peak);
  let at = 0;
  const rects = Object.entries(parts).map(([name, bytes]) => {
    const rect = svg("rect", { class: name, x: at, y: 2, width: bytes * scale, height: 12 }, svg("title", {}, `${name}: ${mib(bytes)} MiB`));
    at += bytes * scale;
    return rect;
  });
  const label = `${mib(row.peak)} of ${mib(row.total)} MiB`;
  return svg("svg", { class: "memory", width, height: 16, role: "img", "aria-label": label },
    svg("rect", { class: "capacity", x: 0, y: 2, width: row.total * scale, height: 12 }, svg("title", {}, label)), rects,
    row.peak > row.total ? svg("line", { class: "limit", x1: row.total * scale, x2: row.total * scale, y1: 0, y2: 16 }) : null);
}

function mib(bytes) {
  return (bytes / 2 ** 20).toFixed(bytes < 2 ** 27 ? 1 : 0);
}

/** What a bar of the ring is, in a sentence. */
function barText(bar, ring) {
  const what = bar.lane === "attend"
    ? `attends to what lies in ${bar.buffer}`
    : `${bar.lane.replace("receive", "receives").replace("send", "sends")} ${bar.lane.startsWith("send") ? "to" : "from"} rank ${bar.peer}, ` +
      `${bar.bytes} bytes, ${bar.lane.startsWith("send") ? "out of" : "into"} ${bar.buffer}`;
  const slot = bar.slot ? ` (buffer ${bar.slot})` : "";
  const time = `${bar.start.toFixed(2)} to ${bar.end.toFixed(2)} ms`;
  const hazards = bar.hazards.length ? `. HAZARD: ${ring.hazards[bar.hazards[0]].sentence}` : "";
  const more = bar.hazards.length > 1 ? ` And ${bar.hazards.length - 1} more.` : "";
  return `rank ${bar.rank}, step ${bar.step}: ${what}${slot}, ${time}${hazards}${more}`;
}

/** Lanes by rank; a bar per event of the trace. What a bar is stands in its title and, on hover or focus, below. */
function timeline(ring) {
  const lanes = ["attend", "send K", "send V", "receive K", "receive V"];
  const [left, width, lane, gap, top] = [112, 1080, 15, 12, 20];
  const until = Math.max(...ring.bars.map((bar) => bar.end), 1e-6);
  const x = (ms) => left + (ms / until) * (width - left - 10);
  const y = (rank, name) => top + ring.ranks.indexOf(rank) * (lanes.length * lane + gap) + lanes.indexOf(name) * lane;
  const height = top + ring.ranks.length * (lanes.length * lane + gap) + 16;
  const hint = el("p", { class: "hint facts", "aria-live": "polite" }, "Point at a bar, or tap it.");
  const tick = 10 ** Math.floor(Math.log10(until)) * (until / 10 ** Math.floor(Math.log10(until)) < 3 ? 0.5 : 1);
  const marks = [];
  for (let ms = 0; ms <= until; ms += tick) {
    marks.push(svg("line", { class: "grid", x1: x(ms), x2: x(ms), y1: top - 4, y2: height - 18 }),
      svg("text", { class: "soft", x: x(ms), y: height - 4, "text-anchor": "middle" }, `${Number(ms.toPrecision(3))} ms`));
  }
  const names = ring.ranks.flatMap((rank) => [
    svg("text", { class: "strong", x: 0, y: y(rank, "attend") + 11 }, `rank ${rank}`),
    ...lanes.map((name) => svg("text", { class: "soft", x: left - 8, y: y(rank, name) + 11, "text-anchor": "end" }, name)),
    ...lanes.map((name) => svg("rect", { class: "lane", x: left, y: y(rank, name) + 1, width: width - left - 10, height: lane - 2 })),
  ]);
  const bars = ring.bars.map((bar) => {
    const [from, to, at, text] = [x(bar.start), x(bar.end), y(bar.rank, bar.lane), barText(bar, ring)];
    const say = () => { hint.textContent = text; };
    const long = Math.max(to - from, 2.5);
    return svg("g", { class: `bar-of${bar.hazards.length ? " hazard" : ""}`, tabindex: -1, onpointerenter: say, onclick: say, onfocus: say },
      svg("title", {}, text),
      svg("rect", { class: `slot-${bar.slot}`, x: from, y: at + 1, width: long, height: lane - 2 }),
      long > 9 ? svg("text", { class: "step", x: from + 2.5, y: at + 11 }, String(bar.step)) : null,
      bar.hazards.length ? svg("path", { d: `M${from},${at + 1} l5,-6 l5,6 z` }) : null);
  });
  return el("div", {},
    el("div", { class: "legend" }, el("span", {}, el("i", { class: "slot-A" }), "buffer A"), el("span", {}, el("i", { class: "slot-B" }), "buffer B"),
      el("span", {}, el("i", { class: "slot-" }), "no buffer of the pair"), el("span", {}, el("i", { class: "hazard" }), "use that is part of a hazard"),
      el("span", {}, "number in a bar: ring step")),
    el("div", { class: "scroll" }, svg("svg", { class: "timeline", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "timeline of the ring" }, marks, names, bars)),
    hint);
}

/**
 * Lines over commits, a dot per point; their limit as a dashed step, with a flag where it was loosened.
 *
 * lines: [{name, kind, values, limits?}], at: place of each point among the commits, changes: [{point, text, loosened}]
 */
function trend(lines, at, commits, changes, { log = false, small = false } = {}) {
  const [width, height, left, top, below] = small ? [150, 30, 3, 8, 3] : [900, 190, 62, 16, 34];
  const all = lines.flatMap((line) => [...line.values, ...(line.limits || [])]).filter((value) => typeof value === "number");
  const positive = all.filter((value) => value > 0);
  const least = positive.length ? Math.min(...positive) : 1;
  const scaled = (value) => (log ? Math.log10(Math.max(value, least)) : value); // what is 0 or less lies at the lowest
  const [low, high] = log ? [scaled(least), scaled(Math.max(...positive, least))] : [Math.min(0, ...all), Math.max(...all, 1e-9)];
  const x = (point) => left + ((at[point] + 0.5) / commits.length) * (width - left - 4);
  const y = (value) => top + (1 - (scaled(value) - low) / Math.max(high - low, 1e-9)) * (height - top - below);
  const steps = (values) => values.map((value, i) => (typeof value !== "number" ? "" :
    typeof values[i - 1] === "number" ? `H${x(i)} V${y(value)}` : `M${x(i)},${y(value)}`)).join(" ");
  const joined = (values) => values.map((value, i) => (typeof value !== "number" ? "" :
    `${typeof values[i - 1] === "number" ? "L" : "M"}${x(i)},${y(value)}`)).join(" ");
  const text = (point, line) => {
    const limit = line.limits && line.limits[point];
    const said = changes.filter((change) => change.point === point).map((change) => `. ${change.text}`).join("");
    return `${commitName(commits[at[point]])}: ${line.name} ${short(line.values[point])}${limit ? `, at most ${short(limit)}` : ""}${said}`;
  };
  const marks = [];
  if (!small) {
    for (const value of high > low ? [0, 0.5, 1].map((share) => low + share * (high - low)) : [low]) {
      const height = y(log ? 10 ** value : value);
      marks.push(svg("line", { class: "grid", x1: left, x2: width - 4, y1: height, y2: height }),
        svg("text", { class: "soft", x: left - 6, y: height + 4, "text-anchor": "end" }, short(log ? 10 ** value : value)));
    }
    const every = Math.ceil(at.length / 9);
    at.forEach((place, i) => i % every || marks.push(svg("text", { class: "soft", x: x(i), y: height - 16, "text-anchor": "middle" }, commitName(commits[place]).split(",")[0]),
      svg("text", { class: "soft", x: x(i), y: height - 3, "text-anchor": "middle" }, commits[place].date.slice(0, 10))));
  }
  for (const line of lines) {
    if (line.limits) marks.push(svg("path", { class: "bound", d: steps(line.limits) }));
    marks.push(svg("path", { class: `line ${line.kind}`, d: joined(line.values) }));
    line.values.forEach((value, i) => {
      if (value === null || value === undefined) return;
      const worse = changes.some((change) => change.point === i && !change.loosened);
      marks.push(typeof value === "number"
        ? svg("circle", { class: worse ? "worse" : line.kind, cx: x(i), cy: y(value), r: worse ? 4 : small ? 1.5 : 3 }, svg("title", {}, text(i, line)))
        : svg("text", { class: "nan", x: x(i) - 2, y: top + 4 }, "!", svg("title", {}, text(i, line))));
    });
    changes.forEach(({ point, loosened, text }) => {
      const limit = line.limits && line.limits[point];
      if (loosened && typeof limit === "number") {
        marks.push(svg("path", { class: "loosened", d: `M${x(point)},${y(limit) + 1} l-5,-8 h10 z` }, svg("title", {}, text)));
      }
    });
  }
  const label = `${lines.map((line) => line.name).join(" and ")} over ${at.length} commits`;
  return svg("svg", { class: "trend", width, height, role: "img", "aria-label": label }, marks);
}

/** A commit in words: twelve digits of a hash, and its date. */
function commitName(commit) {
  return `${commit.commit.replace(/^([0-9a-f]{12})[0-9a-f]{28}/, "$1")}, ${commit.date.slice(0, 10)}`;
}
