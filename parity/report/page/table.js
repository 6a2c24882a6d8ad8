"use strict";
// Elements and tables. Text of records becomes text nodes alone: nothing here parses a string as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; a child that is no node becomes text, null and undefined are left out. */
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

/** A number in a cell: few digits, a count as it is, a word ("nan") as it is, "-" where there is none. */
function short(value, digits = 3) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  return Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? String(Number(value.toPrecision(digits))) : value.toExponential(1);
}

function seconds(value) {
  return value === null || value === undefined ? "-" : value < 100 ? value.toFixed(2) : value.toFixed(0);
}

/** Before or after: numbers by size, others by letter, what is missing always last. */
function compare(a, b, down) {
  const none = (x) => x === null || x === undefined || x === "";
  if (none(a) || none(b)) return none(a) - none(b);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return down ? -order : order;
}

/**
 * A table with filters, a search field and columns to sort by; a click on a row opens what `detail` makes of it.
 *
 * columns: [{label, value: row => what is sorted by, show: row => node or text, number, wide: not on phones, long: may break}]
 * filters: [{label, value: row => text}], search: row => text, detail: row => node or null, noun: what rows are
 */
function table({ rows, columns, filters = [], search = null, detail = null, noun = "rows", sort = null }) {
  const state = { column: sort === null ? null : sort.column, down: sort !== null && sort.down, open: new Set() };
  const chosen = filters.map(() => "");
  let text = "";
  const count = el("output");
  const body = el("tbody");
  const heads = columns.map((column, i) =>
    el("th", { class: classes(column), scope: "col" },
      el("button", { type: "button", onclick: () => {
        state.down = state.column === i ? !state.down : Boolean(column.number);
        state.column = i;
        draw();
      } }, column.label)));

  function classes(column) {
    return [column.number ? "number" : "", column.wide ? "wide" : "", column.long ? "long" : ""].join(" ").trim();
  }

  function shown() {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) =>
      filters.every((filter, i) => chosen[i] === "" || String(filter.value(row)) === chosen[i]) &&
      words.every((word) => search(row).toLowerCase().includes(word)));
    if (state.column === null) return found;
    const value = columns[state.column].value;
    return found.sort((a, b) => compare(value(a), value(b), state.down));
  }

  function lines(row) {
    const open = state.open.has(row);
    const toggle = () => { open ? state.open.delete(row) : state.open.add(row); draw(); };
    const cells = columns.map((column, i) => {
      const content = column.show ? column.show(row) : short(column.value(row));
      const inside = detail && i === 0 ? el("button", { type: "button", class: "open", "aria-expanded": String(open) }, content) : content;
      return el("td", { class: classes(column) }, inside);
    });
    const line = el("tr", detail ? { class: "opens", onclick: toggle } : {}, cells);
    return open ? [line, el("tr", { class: "detail" }, el("td", { colspan: columns.length }, el("div", {}, detail(row))))] : [line];
  }

  function draw() {
    const found = shown();
    const focused = document.activeElement && body.contains(document.activeElement)
      ? [...body.querySelectorAll("button.open")].indexOf(document.activeElement) : -1;
    body.replaceChildren(...found.flatMap(lines));
    if (focused >= 0) body.querySelectorAll("button.open")[focused].focus();
    heads.forEach((head, i) => {
      if (i === state.column) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    count.textContent = `${found.length} of ${rows.length} ${noun}`;
  }

  const choices = filters.map((filter, i) => {
    const values = [...new Set(rows.map((row) => String(filter.value(row))))].sort((a, b) => compare(a, b, false));
    return el("select", { "aria-label": filter.label, onchange: (event) => { chosen[i] = event.target.value; draw(); } },
      el("option", { value: "" }, `${filter.label}: all`),
      values.map((value) => el("option", { value }, value || "-")));
  });
  const field = search && el("input", { type: "search", placeholder: "Words, all of which a row has", "aria-label": `Search ${noun}`,
    oninput: (event) => { text = event.target.value; draw(); } });
  draw();
  return el("div", {},
    search || filters.length ? el("div", { class: "filters" }, choices, field, count) : null,
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body)));
}
