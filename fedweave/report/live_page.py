"""The live page: one HTML document that asks its server for the run's state and draws it anew."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fedweave watch</title>
<style>
:root { color-scheme: light dark; --ink: #1a1a1a; --grey: #595959; --line: #d9d9d9; --back: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --grey: #a8a8a8; --line: #444; --back: #161616; } }
* { box-sizing: border-box; }
body { max-width: 1100px; margin: 0 auto; padding: 1.5rem 1rem 3rem; color: var(--ink); background: var(--back);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .2rem; }
p { margin: .3rem 0; overflow-wrap: anywhere; }
.small { color: var(--grey); font-size: .85rem; }
progress { width: 100%; height: .7rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 1.5rem; }
.plot { height: 17rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
</style>
<script src="plotly.js"></script>
</head>
<body>
<h1 id="title">fedweave watch</h1>
<p id="state" role="status">Asking for the run's files …</p>
<progress id="done" value="0" max="1" aria-label="rounds done"></progress>
<p class="small" id="saved"></p>
<div class="grid" id="plots"></div>
<section id="members" hidden><h2>Members</h2>
<p class="small">Test accuracy and loss of the last evaluation; calls that a member missed, was refused or answered
late.</p>
<div class="scroll"><table><thead></thead><tbody></tbody></table></div></section>
<script>
"use strict";
const PAUSE = 2000, COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"];
const byId = (id) => document.getElementById(id);
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const amount = (value) => value === null ? "-" : value.toFixed(4);

function cells(row, tag, texts) {
  for (const text of texts) row.appendChild(document.createElement(tag)).textContent = text;
}

function plot(title, note, lines, log) {
  const id = "plot-" + title.replace(/[^a-z]/gi, "-");
  if (!byId(id)) {
    const box = byId("plots").appendChild(document.createElement("section"));
    box.appendChild(document.createElement("h2")).textContent = title;
    if (note) {
      const said = box.appendChild(document.createElement("p"));
      said.className = "small"; said.textContent = note;
    }
    const place = box.appendChild(document.createElement("div"));
    place.id = id; place.className = "plot";
  }
  const traces = Object.entries(lines).map(([name, points], at) => ({
    name: plain(name), mode: Object.keys(points).length > 60 ? "lines" : "lines+markers",
    x: Object.keys(points).map(Number), y: Object.values(points),
    line: {color: COLOURS[at % COLOURS.length], width: 2}, marker: {size: 4},
  }));
  const axis = {gridcolor: style("--line"), zeroline: false, color: style("--ink")};
  Plotly.react(id, traces, {
    margin: {l: 60, r: 10, t: 8, b: 36}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: style("--ink"), size: 12},
    xaxis: {...axis, title: {text: "round"}}, yaxis: {...axis, type: log ? "log" : "linear"},
    legend: {orientation: "h", y: 1.02, yanchor: "bottom"}, showlegend: true,
  }, {responsive: true, displayModeBar: false});
}

function show(now) {
  if (now.waiting) { byId("state").textContent = "Nothing to show yet: " + now.waiting; return; }
  byId("title").textContent = now.title;
  document.title = now.title + " · round " + now.round;
  const reached = "round " + now.round + " of " + now.rounds;
  byId("state").textContent = now.finished ? "Finished: " + reached + "." : "Running: " + reached + ".";
  byId("done").max = Math.max(1, now.rounds); byId("done").value = now.round;
  const since = now.finished ? "." : "; rounds since then are not in it.";
  byId("saved").textContent = now.directory + ", as saved at " + now.saved + since;
  for (const [what, lines] of Object.entries(now.curves)) plot("Test " + what, "", lines, false);
  plot("Bytes so far", "Of all members together.", now.bytes, false);
  if (Object.keys(now.epsilon).length) {
    const lines = Object.fromEntries(Object.entries(now.epsilon).map(([per, points]) => ["per " + per, points]));
    plot("ε so far",
      "Of the member whom it cost most. Above 10 it protects little, above 100 practically nothing.", lines, true);
  }
  const [head, body] = [byId("members").querySelector("thead"), byId("members").querySelector("tbody")];
  head.replaceChildren(document.createElement("tr")); body.replaceChildren();
  cells(head.firstChild, "th", ["member", "accuracy", "loss", "missing", "refused", "late"]);
  for (const one of now.members) {
    cells(body.appendChild(document.createElement("tr")), "td",
      [one.name, amount(one.accuracy), amount(one.loss), one.missing, one.refused, one.late]);
  }
  byId("members").hidden = !now.members.length;
}

async function ask() {
  try {
    const answer = await fetch("state.json", {cache: "no-store"});
    const now = await answer.json();
    show(now);
    if (now.finished) return;
  } catch (error) {
    byId("state").textContent =
      "The page's server has ended; this is what it said last. `fedweave watch` shows the rest.";
    return;
  }
  setTimeout(ask, PAUSE);
}
ask();
</script>
</body>
</html>
"""
