"use strict";
// The sections of the page, each from its part of the JSON; one without data says which command makes it.

const data = JSON.parse(document.getElementById("data").textContent);
const { parity, faults, predictions, memory, speed } = data.records;

function label(kind) {
  return el("b", { class: `label ${kind}` }, kind);
}

function section(id, title, kinds, ...content) {
  document.getElementById("nav").append(el("a", { href: `#${id}` }, title));
  document.querySelector("main").append(el("section", { id }, el("h2", {}, title, kinds.map(label)), content));
}

function card(id, number, text, kinds, state = "") {
  document.getElementById("cards").append(el("a", { class: "card", href: `#${id}` },
    el("strong", { class: state }, number), el("span", {}, text, " ", kinds.map(label))));
}

function missing(...commands) {
  return el("p", { class: "missing" }, "No data. ", commands.length > 1 ? "These make it: " : "This makes it: ",
    commands.map((command, i) => [i ? ", " : "", el("code", {}, command)]));
}

function note(...text) {
  return el("p", { class: "note" }, text);
}

function verdict(word) {
  return el("span", { class: word.replace(" ", "-") }, word);
}

function machineText(machine) {
  if (!machine) return "machine not recorded";
  return Object.entries(machine).map(([name, value]) => `${name} ${short(value)}`).join(", ");
}

// ---- parity

function shareBar(metric) {
  if (metric.share === null && !metric.beyond) return null;
  const share = metric.share === null ? 1 : Math.min(metric.share, 1);
  const fillBar = el("i", { class: metric.beyond ? "beyond" : "" });
  fillBar.style.width = `${100 * share}%`;
  return el("span", { class: "bar" }, fillBar);
}

function shareText(metric) {
  if (!metric) return "-";
  if (metric.share === null) return metric.beyond ? "beyond" : "-";
  return metric.share >= 10 ? `${short(metric.share, 2)} times` : `${(100 * metric.share).toFixed(metric.share < 0.1 ? 1 : 0)} %`;
}

function metricsTable(row) {
  return el("div", { class: "scroll" }, el("table", { class: "metrics" },
    el("thead", {}, el("tr", {}, ["metric", "value", "at most", "of its bound", "because"].map((name, i) =>
      el("th", { scope: "col", class: i === 1 || i === 2 ? "number" : "" }, name)))),
    el("tbody", {}, row.metrics.map((metric) => el("tr", {},
      el("td", {}, metric.name),
      el("td", { class: `number ${metric.beyond ? "no" : ""}` }, short(metric.value)),
      el("td", { class: "number" }, short(metric.bound)),
      el("td", { class: "share" }, metric.bound === null ? "no bound" : [shareBar(metric), " ", shareText(metric)]),
      el("td", { class: "facts" }, metric.reason))))));
}

function explanation(row) {
  const why = row.explanation;
  if (!why) return null;
  const likely = why.causes.filter((cause) => cause.likelihood >= 0.01);
  return [
    el("h3", {}, "Where and why"),
    why.place ? el("p", { class: "place" }, why.place.text) : null,
    why.problem ? el("p", {}, why.problem) : null,
    likely.length ? el("p", {}, "Known faults that look alike:") : null,
    likely.length ? el("ul", {}, likely.map((cause) => el("li", {}, `${cause.fault}: ${cause.sentence} `,
      el("b", {}, `${(100 * cause.likelihood).toFixed(0)} %`)))) : null,
    why.maps.map(errorMap),
    el("p", {}, "Again: ", el("code", {}, why.again)),
  ];
}

function trace(row) {
  if (!row.trace) return null;
  const viewer = " (open the file at ui.perfetto.dev): ";
  return row.trace.file
    ? el("p", { class: "trace" }, "Trace", viewer, el("a", { href: encodeURI(row.trace.file), download: "" }, row.trace.file))
    : el("p", { class: "trace" }, "Run again with its trace", viewer, el("code", {}, row.trace.command));
}

function caseDetail(row) {
  return el("div", {},
    row.reason ? el("p", { class: "reason" }, row.reason) : null,
    el("p", { class: "facts" }, `${row.source}, seed ${row.seed}, backend ${row.backend}, ${seconds(row.wall_s)} s, started ${row.run_started || "unknown"} on ${machineText(row.run_machine)}`),
    row.hazards && row.hazards.length ? [el("h3", {}, "Hazards"), el("ul", {}, row.hazards.map((text) => el("li", {}, text)))] : null,
    explanation(row),
    trace(row),
    row.metrics.length ? [el("h3", {}, "Metrics"), metricsTable(row)] : null,
    row.error ? [el("h3", {}, "Error"), el("pre", {}, row.error)] : null);
}

function paritySection() {
  const sources = new Set(parity.map((row) => row.source));
  if (!parity.length) {
    section("parity", "Parity", [], missing(data.commands.parity));
    return;
  }
  const by = (word) => parity.filter((row) => row.verdict === word).length;
  card("parity", `${by("passed")} of ${parity.length}`, `parity cases passed, ${by("failed")} failed, ${by("skipped")} skipped`, ["measured"], by("failed") ? "failed" : "passed");
  section("parity", "Parity", ["measured"],
    note("Judged against code that nobody here wrote. A click on a case shows its metrics with bound and reason and, if it failed, where it is wrong first."),
    table({
      rows: parity, noun: "cases", sort: { column: 5, down: false },
      columns: [
        { label: "case", value: (row) => row.id, show: (row) => row.id },
        { label: "model", value: (row) => row.model, wide: true },
        { label: "mesh", value: (row) => row.mesh, wide: true },
        { label: "scheme", value: (row) => row.scheme, wide: true },
        { label: "dtype", value: (row) => row.dtype, wide: true },
        { label: "verdict", value: (row) => row.verdict, show: (row) => verdict(row.verdict) },
        { label: "nearest bound", value: (row) => row.nearest && (row.nearest.share ?? Infinity), number: true, wide: true,
          show: (row) => (row.nearest ? `${row.nearest.name} ${shareText(row.nearest)}` : "-") },
        { label: "s", value: (row) => row.wall_s, show: (row) => seconds(row.wall_s), number: true, wide: true },
      ],
      filters: [
        { label: "mesh", value: (row) => row.mesh }, { label: "model", value: (row) => row.model },
        { label: "scheme", value: (row) => row.scheme }, { label: "verdict", value: (row) => row.verdict },
        ...(sources.size > 1 ? [{ label: "run", value: (row) => row.source }] : []),
      ],
      search: (row) => [row.id, row.reason, row.kind, row.backend, row.parallel, row.source].join(" "),
      detail: caseDetail,
    }));
}

// ---- faults

function caughtBy(row) {
  if (row.caught_by && row.caught_by.length) {
    const by = row.caught_by[0];
    return `${by.metric} ${short(by.value)} > ${short(by.threshold)}`;
  }
  return row.error ? "refused by an error" : "-";
}

function faultDetail(row) {
  return el("div", {},
    row.mistake ? el("p", {}, "A mistake that leads to it: ", row.mistake) : null,
    el("p", { class: "facts" }, `${row.source}, backend ${row.backend}, case ${row.case}, ${seconds(row.seconds)} s`),
    row.caught_by && row.caught_by.length ? [el("h3", {}, "Beyond their bounds"), el("ul", {}, row.caught_by.map((by) =>
      el("li", {}, `${by.metric}: ${short(by.value)}, at most ${short(by.threshold)}`)))] : null,
    row.missed_by && row.missed_by.length ? el("p", {}, "Alone, each of these would have let it pass: ", row.missed_by.join(", ")) : null,
    row.error ? [el("h3", {}, "Refused"), el("pre", {}, row.error)] : null);
}

function faultsSection() {
  if (!faults.length) {
    section("faults", "Faults", [], missing(data.commands.faults));
    return;
  }
  const put = faults.filter((row) => row.kind === "fault");
  const order = ["survived", "false alarm", "caught", "passed"]; // what is wrong first, clean cases last
  const caught = put.filter((row) => row.verdict === "caught").length;
  const alarms = faults.filter((row) => row.verdict === "false alarm").length;
  card("faults", `${caught} of ${put.length}`, `known faults caught, ${alarms} false alarms`, ["measured"], caught === put.length && !alarms ? "passed" : "failed");
  section("faults", "Faults", ["measured"],
    note(`Known mistakes put in, one at a time: ${caught} of ${put.length} caught, ${alarms} false alarms on ${faults.length - put.length} clean cases.`),
    table({
      rows: [...faults].sort((a, b) => order.indexOf(a.verdict) - order.indexOf(b.verdict)), noun: "records",
      columns: [
        { label: "fault or clean case", value: (row) => row.id },
        { label: "family", value: (row) => row.family || row.kind, wide: true },
        { label: "backend", value: (row) => row.backend, wide: true },
        { label: "verdict", value: (row) => row.verdict, show: (row) => verdict(row.verdict) },
        { label: "caught by", value: caughtBy },
        { label: "what is wrong", value: (row) => row.sentence, wide: true },
      ],
      filters: [{ label: "verdict", value: (row) => row.verdict }, { label: "family", value: (row) => row.family || row.kind },
        { label: "backend", value: (row) => row.backend }],
      search: (row) => [row.id, row.sentence, row.mistake, row.case, row.error, caughtBy(row)].join(" "),
      detail: faultDetail,
    }));
}

// ---- predictions

function rangeLegend(published) {
  return el("p", { class: "facts" }, "Band: range that four in five measurements should lie in; line: ", label("predicted"),
    published ? ["; diamond: ", label("published")] : null, ". Axis: 0.5 to 2.2 times the prediction, logarithmic.");
}

function figuresTable() {
  const inside = data.figures.filter((row) => row.inside).length;
  card("predictions", `${inside} of ${data.figures.length}`, "figures lie in the range", ["published", "predicted"]);
  return [
    el("h3", {}, "Beside published figures"),
    note(`Seconds of whole pipelines; ${inside} of ${data.figures.length} published figures lie in the range, which is made without the model that is judged.`),
    rangeLegend(true),
    table({
      rows: data.figures, noun: "figures",
      columns: [
        { label: "model and system", value: (row) => `${row.model} ${row.size}`,
          show: (row) => [`${row.model} ${row.size}`, el("div", { class: "facts" }, `${row.mesh}, ${row.parallel}`)] },
        { label: "published s", value: (row) => row.measured, show: (row) => short(row.measured), number: true },
        { label: "predicted s", value: (row) => row.predicted, show: (row) => seconds(row.predicted), number: true },
        { label: "range s", value: (row) => row.low, show: (row) => `${seconds(row.low)} to ${seconds(row.high)}`, number: true, wide: true },
        { label: "in range", value: (row) => row.inside, show: (row) => verdict(row.inside ? "yes" : "no") },
        { label: "published / predicted", value: (row) => row.measured / row.predicted, show: (row) => rangeChart(row.low, row.predicted, row.high, row.measured) },
        { label: "source", value: (row) => row.source, wide: true, long: true },
      ],
      filters: [{ label: "model", value: (row) => row.model }, { label: "mesh", value: (row) => row.mesh }, { label: "chip", value: (row) => row.arch }],
      search: (row) => [row.model, row.size, row.mesh, row.parallel, row.source].join(" "),
    }),
  ];
}

function plansTable() {
  return [
    el("h3", {}, "Configurations of plans"), rangeLegend(false),
    table({
      rows: predictions, noun: "configurations", sort: { column: 3, down: false },
      columns: [
        { label: "model", value: (row) => `${row.model} ${row.size}` },
        { label: "mesh", value: (row) => row.mesh },
        { label: "configuration", value: (row) => `${row.parallel} ${row.topology}` },
        { label: "predicted s", value: (row) => row.total_seconds, show: (row) => seconds(row.total_seconds), number: true },
        { label: "range", value: (row) => row.total_seconds_range.low, wide: true,
          show: (row) => rangeChart(row.total_seconds_range.low, row.total_seconds, row.total_seconds_range.high, null) },
        { label: "bound by", value: (row) => row.bound, wide: true },
        { label: "GB a device", value: (row) => row.memory_gb.weights + row.memory_gb.activations + row.memory_gb.buffers, number: true, wide: true,
          show: (row) => `${(row.memory_gb.weights + row.memory_gb.activations + row.memory_gb.buffers).toFixed(1)} of ${row.memory_gb.capacity.toFixed(1)}` },
      ],
      filters: [{ label: "model", value: (row) => row.model }, { label: "mesh", value: (row) => row.mesh }],
      search: (row) => [row.model, row.size, row.mesh, row.parallel, row.topology, row.source].join(" "),
    }),
  ];
}

function predictionsSection() {
  const kinds = [...(data.figures || predictions.length ? ["predicted"] : []), ...(data.figures ? ["published"] : [])];
  section("predictions", "Predictions", kinds,
    data.figures ? figuresTable() : missing("refsim report html (without --only-records)"),
    predictions.length ? plansTable() : [el("h3", {}, "Configurations of plans"), missing(data.commands.predictions)]);
}

// ---- memory and speed

function memorySection() {
  if (!memory.length) {
    section("memory", "Memory", [], missing("refsim report memory --out DIR", data.commands.memory));
    return;
  }
  const size = (name) => (row) => (row.total ? row[name] : null);
  section("memory", "Memory by stage", ["measured"],
    note("What ttnn's own allocator gave out on a mock mesh, the fullest device, one forward of each stage alone: no hardware, no kernel was run."),
    el("div", { class: "legend" }, ["weights", "buffers", "transient"].map((name) => el("span", {}, el("i", { class: name }), name === "buffers" ? "persistent buffers" : name))),
    table({
      rows: memory, noun: "stages",
      columns: [
        { label: "model", value: (row) => `${row.model} ${row.size}` },
        { label: "mesh", value: (row) => `${row.mesh} ${row.parallel}` },
        { label: "stage", value: (row) => row.stage },
        { label: "of the device's DRAM", value: (row) => (row.total ? row.peak / row.total : null), show: (row) => (row.total ? memoryBar(row) : row.missing) },
        { label: "peak MiB", value: size("peak"), show: (row) => (row.total ? mib(row.peak) : "-"), number: true },
        { label: "of MiB", value: size("total"), show: (row) => (row.total ? mib(row.total) : "-"), number: true, wide: true },
        { label: "L1 KiB of a core", value: (row) => row.l1 && row.l1.peak, number: true, wide: true,
          show: (row) => (row.l1 ? `${(row.l1.peak / 1024).toFixed(0)} of ${(row.l1.total / 1024).toFixed(0)}` : "-") },
        { label: "fits", value: (row) => row.fits, show: (row) => (row.total ? verdict(row.fits ? "yes" : "no") : "-") },
      ],
      filters: [{ label: "model", value: (row) => row.model }, { label: "mesh", value: (row) => row.mesh }],
      search: (row) => [row.model, row.size, row.mesh, row.parallel, row.stage, row.ran, row.missing].join(" "),
    }));
}

function speedSection() {
  if (!speed.length) {
    section("speed", "Simulator speed", [], missing(data.commands.speed));
    return;
  }
  section("speed", "Simulator speed", ["measured"],
    note(`What it costs to play a mesh: attention on ranks beside one process with the same cores. Measured on ${machineText(speed[0].run_machine)}.`),
    table({
      rows: speed, noun: "measurements",
      columns: [
        { label: "scheme", value: (row) => row.scheme },
        { label: "ranks", value: (row) => row.ranks, number: true },
        { label: "tokens x heads x features", value: (row) => row.rows, show: (row) => `${row.rows} x ${row.heads} x ${row.head_dim}`, wide: true },
        { label: "dtype", value: (row) => `${row.dtype}, ${row.math}`, wide: true },
        { label: "one process s", value: (row) => row.seconds.one_process, show: (row) => short(row.seconds.one_process), number: true },
        { label: "mesh s", value: (row) => row.seconds.mesh, show: (row) => short(row.seconds.mesh), number: true },
        { label: "ratio", value: (row) => row.ratio, number: true,
          show: (row) => `${short(row.ratio)} (${short(row.ratio_range[0])} to ${short(row.ratio_range[1])})` },
        { label: "error of mesh", value: (row) => row.rel_rmse.mesh, number: true, wide: true },
        { label: "right", value: (row) => row.right, show: (row) => verdict(row.right ? "yes" : "no") },
      ],
    }));
}

// ---- trends

/** What one looks at first: a limit that was loosened, what became worse, what is bounded. */
function telling(chart) {
  if (chart.changes.length) return chart.changes.some((change) => change.loosened) ? 3 : 2;
  return (chart.lines[0].limits || []).some((limit) => limit !== null) ? 1 : 0;
}

/** The lines of a series in groups that share a chart: a metric with its limit, seconds, memory. */
function trendCharts(row) {
  const metrics = Object.entries(row.metrics).map(([metric, { metrics: values, thresholds: limits }]) => ({
    title: metric === "one_minus_pcc" ? "1 - PCC" : metric, log: true,
    changes: row.worse.filter((change) => change.metric === metric),
    lines: [{ name: metric === "one_minus_pcc" ? "1 - PCC" : metric, kind: "measured", values, limits }],
  }));
  metrics.sort((a, b) => telling(b) - telling(a));
  const line = (name, key, kind) => (row[key] ? [{ name, kind, values: row[key] }] : []);
  const held = row.kind === "predictions" ? "predicted" : "measured";
  return [...metrics,
    { title: "seconds", changes: [], lines: [...line("measured s", "measured_s", "measured"), ...line("predicted s", "predicted_s", "predicted")] },
    { title: "memory", changes: [], lines: line("GB a device", "memory_gb", held) },
  ].filter((chart) => chart.lines.length);
}

function trendDetail(row) {
  const commits = data.trends.commits;
  const changes = row.worse.map((change) => el("li", { class: change.loosened ? "loosened" : "failed" },
    change.loosened ? "LIMIT LOOSENED " : "", `${commitName(commits[row.at[change.point]])}: ${change.text}`));
  return el("div", {},
    changes.length ? [el("h3", {}, "What became worse, and when"), el("ul", { class: "changes" }, changes)] : el("p", { class: "passed" }, "Nothing became worse beyond noise."),
    trendCharts(row).map((chart) => el("figure", {},
      el("figcaption", {}, chart.title, " ", [...new Set(chart.lines.map((line) => line.kind))].map(label), chart.lines[0].limits ? " dashed: its limit" : ""),
      el("div", { class: "scroll" }, trend(chart.lines, row.at, commits, chart.changes, { log: chart.log })))));
}

function trendsSection() {
  if (!data.trends) {
    section("trends", "Trends", [], missing("refsim history add out/parity", "refsim report html --db history.sqlite"));
    return;
  }
  const { commits, series } = data.trends;
  const state = (row) => (row.worse.some((change) => change.loosened) ? "limit loosened" : row.worse.length ? "became worse" : "steady");
  const by = (word) => series.filter((row) => state(row) === word).length;
  const last = (row) => (row.worse.length ? Math.max(...row.worse.map((change) => row.at[change.point])) : null);
  const errors = (row) => trendCharts(row).filter((one) => one.log);
  const chart = (charts) => (row) => {
    const found = charts(row)[0];
    return found ? trend(found.lines, row.at, commits, found.changes, { log: found.log, small: true }) : "-";
  };
  const kinds = [...new Set(series.flatMap((row) => trendCharts(row).flatMap((one) => one.lines.map((line) => line.kind))))];
  card("trends", String(by("became worse") + by("limit loosened")), `of ${series.length} series became worse in ${commits.length} commits, ${by("limit loosened")} by a loosened limit`,
    kinds, by("became worse") + by("limit loosened") ? "failed" : "passed");
  section("trends", "Trends", kinds,
    note(`${commits.length} commits, ${commitName(commits[0])} to ${commitName(commits[commits.length - 1])}. Worse is what refsim parity diff calls worse: beyond the oracle's own rounding, or a limit that allows more than before. A click on a case shows its charts.`),
    el("div", { class: "legend" }, el("span", {}, el("i", { class: "worse" }), "became worse, beyond noise"), el("span", {}, el("i", { class: "loosened" }), "limit loosened"), el("span", {}, "dashed: limit")),
    table({
      rows: series, noun: "series", sort: { column: 4, down: true },
      columns: [
        { label: "case", value: (row) => row.case, show: (row) => [row.case, el("span", { class: "facts" }, ` ${row.setting}`)] },
        { label: "kind", value: (row) => row.kind, wide: true },
        { label: "error and limit", value: (row) => errors(row).map((one) => one.title)[0], wide: true,
          show: (row) => [el("span", { class: "facts" }, errors(row).map((one) => one.title)[0]), chart(errors)(row)] },
        { label: "seconds", value: (row) => (row.predicted_s || row.measured_s || []).at(-1), wide: true,
          show: chart((row) => trendCharts(row).filter((one) => one.title === "seconds")) },
        { label: "became worse", value: last, show: (row) => (last(row) === null ? "-" : commitName(commits[last(row)]).split(",")[0]) },
        { label: "what", value: state, show: (row) => el("span", { class: state(row).replace(" ", "-") }, state(row)) },
      ],
      filters: [{ label: "what", value: state }, { label: "kind", value: (row) => row.kind }],
      search: (row) => [row.case, row.setting, row.kind, ...row.worse.map((change) => change.text)].join(" "),
      detail: trendDetail,
    }));
}

// ---- ring

function ringSection() {
  if (!data.rings) {
    section("ring", "Timeline of a ring", [], missing("refsim report html (without --only-records)"));
    return;
  }
  const clean = data.rings.find((ring) => !ring.fault);
  if (clean) card("ring", String(clean.hazards.length), "hazards in the ring that was run for this page", ["measured"], clean.hazards.length ? "failed" : "passed");
  section("ring", "Timeline of a ring", ["measured"],
    note("Ring attention, run for this page: keys and values travel while each rank attends to the shard it has. Receives go into one buffer of the pair while the other is attended to and sent on. Times are those of CPU processes that share this machine: order and overlap are the program's, lengths are not a device's."),
    data.rings.map((ring) => [
      el("h3", {}, ring.fault ? `With a known fault put in, ${ring.fault.id}: ${ring.fault.sentence}` : `As it is, ${ring.mesh}, q, k, v of ${ring.shape.join(" x ")}`),
      el("p", { class: ring.hazards.length ? "failed" : "passed" }, `${ring.hazards.length} hazards`),
      timeline(ring),
      ring.hazards.length ? el("details", {}, el("summary", {}, "What is a hazard here"), el("ol", {}, ring.hazards.map((hazard) =>
        el("li", {}, `${hazard.kind}: ${hazard.sentence}`)))) : null,
    ]));
}

// ---- light and dark

function themeButton() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const now = () => chosen || (system.matches ? "dark" : "light");
  const show = () => {
    if (chosen) root.style.colorScheme = chosen;
    button.textContent = now() === "dark" ? "Light" : "Dark";
  };
  button.addEventListener("click", () => { chosen = now() === "dark" ? "light" : "dark"; show(); });
  system.addEventListener("change", show);
  show();
}

document.getElementById("made").textContent = `refsim ${data.made.version}, page made ${data.made.when.replace("T", " ").replace("+00:00", " UTC")}`;
themeButton();
paritySection();
faultsSection();
predictionsSection();
memorySection();
speedSection();
trendsSection();
ringSection();
