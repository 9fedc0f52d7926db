"""The live page: one HTML document that asks its server for the run's state and its figures."""

from fedweave.report.template import STYLE

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fedweave watch</title>
<style>STYLE
#done { width: 100%; height: .7rem; }
#plots > div { margin: 1.2rem 0; }
</style>
</head>
<body>
<h1 id="title">fedweave watch</h1>
<p id="state" role="status">Asking for the run's files …</p>
<progress id="done" value="0" max="1" aria-label="rounds done"></progress>
<p class="small" id="saved"></p>
<div id="plots"></div>
<section id="members" hidden><h2>Members</h2>
<p class="small">Test accuracy and loss of the last evaluation; calls that a member missed, was refused or answered
late.</p>
<div class="scroll"><table><thead></thead><tbody></tbody></table></div></section>
<script>
"use strict";
const PAUSE = 2000;
const byId = (id) => document.getElementById(id);
const amount = (value) => value === null ? "-" : value.toFixed(4);

function cells(row, tag, texts) {
  for (const text of texts) row.appendChild(document.createElement(tag)).textContent = text;
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
  const drawn = new DOMParser().parseFromString(now.figures, "text/html");
  byId("plots").replaceChildren(...drawn.body.childNodes);
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
""".replace("STYLE", STYLE)
