"use strict";
// The report's curves, its list of completions, and, under `gspo watch`, its refresh.

// Curves: values under the pointer; a drag zooms, a double click shows all again.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
const chartOf = svg => svg.chart ??= JSON.parse(svg.dataset.chart);
const whole = [0, 1, 0, 1]; // of the axes: left, right, bottom, top
const spell = value => typeof value !== "number" ? value
  : value && Math.abs(value) < 1e-3 ? Number(value.toPrecision(3)).toExponential() : value.toLocaleString("en", { maximumSignificantDigits: 4 });
const between = ([low, high], share) => low + share * (high - low);

function zoom(svg, view) { // view: the part of the axes that is shown
  const chart = chartOf(svg), plot = svg.querySelector(".plot");
  svg.home ??= svg.innerHTML;
  svg.view = view;
  svg.classList.toggle("zoomed", view !== whole);
  if (view === whole) return void (svg.innerHTML = svg.home);
  const [x, y, width, height] = ["x", "y", "width", "height"].map(name => Number(plot.getAttribute(name)));
  plot.setAttribute("viewBox", [view[0] * width, (1 - view[3]) * height, (view[1] - view[0]) * width, (view[3] - view[2]) * height]);
  for (const [axis, range] of [["x", view.slice(0, 2).map(end => between(chart.x, end))], ["y", view.slice(2).map(end => between(chart.y, end))]]) {
    const ticks = [...svg.querySelectorAll(`.tick.${axis}`)], size = range[1] - range[0], power = 10 ** Math.floor(Math.log10(size / ticks.length));
    const round = power * [1, 2, 5, 10].find(each => size / (power * each) < ticks.length), step = axis === "x" ? Math.max(1, round) : round;
    for (const [i, tick] of ticks.entries()) {
      const value = (Math.ceil(range[0] / step) + i) * step, at = (value - range[0]) / size, place = axis === "x" ? x + at * width : y + (1 - at) * height;
      tick.setAttribute(axis, place);
      tick.style.display = at > 1 ? "none" : "";
      tick.textContent = axis === "x" ? chart.names[value] ?? value.toLocaleString("en") : spell(Number((chart.log ? 10 ** value : value).toPrecision(4)));
      if (axis === "y") tick.previousElementSibling.setAttribute("d", at > 1 ? "" : `M${x} ${place}h${width}`);
    }
  }
}

function hover(svg, event) {
  const chart = chartOf(svg), box = svg.querySelector(".hit").getBoundingClientRect();
  const at = between((svg.view ?? whole).slice(0, 2), (event.clientX - box.left) / box.width), x = between(chart.x, at);
  const nearest = (xs, to) => xs.reduce((best, each, i) => Math.abs(each - to) < Math.abs(xs[best] - to) ? i : best, 0);
  const places = chart.lines.flatMap(line => line[2]), place = places[nearest(places, x)];
  if (place === undefined) return;
  tip.replaceChildren(`${chart.label} ${chart.names[place] ?? Math.round(place).toLocaleString("en")}`);
  for (const [label, css, xs, values] of chart.lines) {
    const i = nearest(xs, place);
    if (Math.abs(xs[i] - place) > 0.02 * (chart.x[1] - chart.x[0])) continue; // it has ended, or begins later
    const row = document.createElement("div"), dot = document.createElement("i");
    dot.className = css;
    row.append(dot, `${label} ${spell(values[i])}`.trim());
    tip.append(row);
  }
  tip.hidden = false;
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.max(event.clientY - tip.offsetHeight - 10, 4)}px`;
}

let drag = null;
const share = (box, event) => [(event.clientX - box.left) / box.width, 1 - (event.clientY - box.top) / box.height]
  .map(value => Math.min(1, Math.max(0, value)));
document.addEventListener("pointerdown", event => {
  if (!event.target.matches?.(".hit") || event.button) return;
  drag = { hit: event.target, begin: share(event.target.getBoundingClientRect(), event), mark: event.target.cloneNode() };
  drag.mark.setAttribute("class", "selected");
});
function selected(event) { // a flat drag takes the whole height
  const [x, y] = share(drag.hit.getBoundingClientRect(), event), [left, right] = [drag.begin[0], x].sort((a, b) => a - b);
  const [low, high] = [drag.begin[1], y].sort((a, b) => a - b);
  return high - low < 0.2 ? [left, right, 0, 1] : [left, right, low, high];
}
document.addEventListener("pointermove", event => {
  const svg = drag ? drag.hit.closest(".chart") : event.target.matches?.(".hit") && event.target.closest(".chart");
  if (!svg) return void (tip.hidden = true);
  hover(svg, event);
  if (!drag) return;
  const size = name => Number(drag.hit.getAttribute(name)), [left, right, low, high] = selected(event);
  drag.mark.setAttribute("x", size("x") + left * size("width"));
  drag.mark.setAttribute("width", (right - left) * size("width"));
  drag.mark.setAttribute("y", size("y") + (1 - high) * size("height"));
  drag.mark.setAttribute("height", (high - low) * size("height"));
  svg.insertBefore(drag.mark, drag.hit);
});
document.addEventListener("pointerup", event => {
  if (!drag) return;
  const svg = drag.hit.closest(".chart"), [left, right, low, high] = selected(event), old = svg.view ?? whole;
  drag.mark.remove();
  drag = null;
  if (right - left < 0.02) return;
  const x = old.slice(0, 2), y = old.slice(2);
  zoom(svg, [between(x, left), between(x, right), between(y, low), between(y, high)]);
});
document.addEventListener("pointercancel", () => { drag?.mark.remove(); drag = null; });
document.addEventListener("dblclick", event => event.target.matches?.(".hit") && zoom(event.target.closest(".chart"), whole));

// The list of completions: searched, filtered, sorted.
let order = null; // column, and 1 for upwards
function arrange() {
  const body = document.querySelector("#completions tbody");
  if (!body) return;
  const words = document.getElementById("words").value.toLowerCase(), which = document.getElementById("which").value;
  const rows = [...body.rows];
  for (const row of rows)
    row.hidden = (which && row.dataset.right !== which) || !row.textContent.toLowerCase().includes(words);
  const value = row => row.dataset[order[0]] === "" ? -Infinity : Number(row.dataset[order[0]]);
  if (order) body.append(...rows.sort((a, b) => (value(a) - value(b)) * order[1] || 0));
  for (const head of document.querySelectorAll("#completions th[data-sort]"))
    head.ariaSort = order?.[0] !== head.dataset.sort ? "none" : order[1] > 0 ? "ascending" : "descending";
  document.getElementById("shown").textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length} shown`;
}
document.addEventListener("input", event => event.target.closest("#filter") && arrange());
document.addEventListener("click", event => {
  const name = event.target.closest("#completions button")?.parentElement.dataset.sort;
  if (!name) return;
  order = [name, order?.[0] === name ? -order[1] : 1];
  arrange();
});

// Refresh: parts that have changed are replaced; a zoomed curve waits, and what is open stays open.
const partsOf = root => new Map([...root.querySelectorAll("[data-part]")].map(part => [part.dataset.part, part]));
let shown = new Map([...partsOf(document)].map(([name, part]) => [name, part.outerHTML]));
function refresh(text) {
  const next = new DOMParser().parseFromString(text, "text/html"), parts = partsOf(next), old = partsOf(document);
  document.title = next.title;
  const open = new Set([...document.querySelectorAll("details[open] > summary")].map(each => each.textContent.replace(/\d/g, "")));
  const html = new Map([...parts].map(([name, part]) => [name, part.outerHTML]));
  if ([...parts.keys()].join() === [...old.keys()].join()) {
    for (const [name, part] of parts) {
      const here = old.get(name);
      if (shown.get(name) === html.get(name)) continue;
      if (here.querySelector(".zoomed")) html.delete(name);
      else here.replaceWith(part);
    }
  } else {
    for (const id of ["words", "which"])
      if (document.getElementById(id) && next.getElementById(id)) next.getElementById(id).value = document.getElementById(id).value;
    document.querySelector("main").replaceWith(next.querySelector("main"));
  }
  shown = html;
  for (const each of document.querySelectorAll("details > summary")) if (open.has(each.textContent.replace(/\d/g, ""))) each.parentElement.open = true;
  arrange();
}
let tag = "";
async function poll() {
  const state = document.getElementById("state");
  try {
    const response = await fetch(location.href, { headers: { "If-None-Match": tag }, cache: "no-store" });
    if (response.ok) {
      tag = response.headers.get("ETag") ?? "";
      refresh(await response.text());
    }
    state.textContent = response.ok || response.status === 304 ? "live" : `not live: ${await response.text()}`;
  } catch {
    state.textContent = "not live: gspo watch has ended. This is what it last showed.";
  }
  setTimeout(poll, 3000);
}
document.documentElement.classList.add("scripted");
arrange();
if (document.getElementById("state")) poll();
