"""The page's layout: a Jinja template, rendered with everything escaped that is not marked as safe."""

STYLE = """
:root { color-scheme: light dark; --paper: light-dark(#ffffff, #16191d); --ink: light-dark(#1a1a1a, #e8e8e8);
  --grey: light-dark(#666666, #a3a8ae); --line: light-dark(#d9d9d9, #3a3f46); --pale: light-dark(#f6f7f8, #20242a);
  --blue: light-dark(#0072B2, #56B4E9); --warn: light-dark(#fdf3ec, #33241a); --alarm: light-dark(#B00020, #ff8a94); }
* { box-sizing: border-box; }
body { max-width: 1180px; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .7rem; padding-top: .9rem; border-top: 2px solid var(--ink); }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p, ul { margin: .5rem 0; max-width: 48rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; }
li { margin: .2rem 0; }
.lead { font-size: 1.06rem; }
.small, figcaption, .note { color: var(--grey); font-size: .84rem; line-height: 1.4; }
.note { display: block; font-weight: 400; }
tbody th:not(.dense *) .note { display: inline; margin-left: .5em; }
.warn { border-left: 4px solid #D55E00; padding: .4rem .8rem; background: var(--warn); }
.scroll { overflow-x: auto; max-width: 100%; /* a shade at the right edge while there is more */
  background: linear-gradient(to left, var(--paper) 45%, transparent) right / 3rem 100% no-repeat local,
    linear-gradient(to left, var(--line), transparent) right / 1rem 100% no-repeat scroll; }
.side { display: flex; flex-wrap: wrap; gap: 0 3.5rem; align-items: start; }
.side > * { min-width: 0; }
table.narrow { width: auto; min-width: min(24rem, 100%); }
table { border-collapse: collapse; margin: .8rem 0; font-size: .9rem; line-height: 1.35; width: 100%;
  font-variant-numeric: tabular-nums; }
th, td { padding: .38rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th.word, td.word { text-align: left; overflow-wrap: break-word; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
thead th { border-bottom: 1.5px solid var(--ink); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 500; text-align: left; }
td { white-space: nowrap; }
td.word { white-space: normal; }
.facts { table-layout: fixed; }
.facts th:first-child { width: 7.5rem; color: var(--grey); font-weight: 400; }
.dense { font-size: .8rem; }
.dense th, .dense td { padding: .3rem .45rem; }
.dense td.word { min-width: 4.2rem; }
.dense th { white-space: nowrap; }
.best { font-weight: 700; }
.best::before { content: "★ "; color: var(--blue); font-size: .75em; vertical-align: .1em; }
figure { margin: .8rem 0 1rem; }
figcaption { margin-top: .4rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: .9rem 1rem;
  align-items: end; }
.panels > div { max-width: 470px; }
.panels p { margin: 0 0 .1rem; font-size: .84rem; font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin: 0 0 .5rem; padding: 0; list-style: none;
  font-size: .84rem; max-width: none; }
.key { width: 24px; height: 12px; margin-right: .35em; vertical-align: -1px; }
.plot { display: block; width: 100%; height: auto; }
.plot text { font-size: 11px; fill: var(--grey); }
.grid, .axis, .level, .line { fill: none; stroke: var(--line); }
.axis { stroke: var(--grey); }
.level { stroke: var(--grey); stroke-width: 1.5; stroke-dasharray: 2 3; }
.line { stroke: var(--c); stroke-width: 2; }
.bar { fill: var(--c); stroke: var(--paper); stroke-width: .5; }
.pale { fill-opacity: .45; stroke: var(--c); }
.band { fill: var(--c); fill-opacity: .18; }
.motifs > span { display: inline-block; text-align: center; margin-right: .5rem; }
details { margin: .7rem 0; }
summary { cursor: pointer; font-weight: 500; }
pre { background: var(--pale); padding: .8rem 1rem; font-size: .8rem; line-height: 1.45; white-space: pre-wrap;
  overflow-wrap: anywhere; border-radius: 4px; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
footer { margin-top: 3rem; padding-top: .8rem; border-top: 1px solid var(--line); }
@media (max-width: 640px) {
  body { padding: 1.2rem 1rem 3rem; }
  h1 { font-size: 1.45rem; }
  .facts th:first-child { width: 5.2rem; }
  table.narrow { width: 100%; }
  th, td { padding: .35rem .4rem; }
  tbody th:not(.dense *) .note { display: block; margin-left: 0; }
  tbody th:not(.dense *, .facts *) { min-width: 5rem; }
  tbody th:has(.note):not(.dense *) { min-width: 8.2rem; }
  td:not(.dense *) .note { white-space: normal; max-width: 7.5rem; margin-left: auto; }
  .scroll > table:not(.facts) th:first-child { position: sticky; left: 0; background: var(--paper); }
}
@media print {
  :root { color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  h2, h3 { break-after: avoid; } figure, tr { break-inside: avoid; } .scroll { overflow: visible; }
  details::details-content { content-visibility: visible; height: auto; }
  figure { zoom: .7; } /* drawn for the screen's width */
  @page { margin: 16mm 14mm; }
}
"""

FIGURE = """<div id="figure-{{ name }}">
{%- if figure.legend %}
<ul class="legend">
{%- for key in figure.legend %}<li>{{ key | symbol }}{{ key.name }}</li>{% endfor %}</ul>
{%- endif %}
<div class="panels">
{%- for one in figure.panels %}
<div>{% if one.title %}<p>{{ one.title }}</p>{% endif %}{{ one | panel }}</div>
{%- endfor %}
</div></div>"""

HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
"""  # of every page that runs nothing

PAGE = (
    HEAD
    + """<title>{{ title }} · fedweave report</title>
<style>{{ style | safe }}</style>
</head>
<body>
{%- macro grid(table, kind="") %}
<div class="scroll"><table class="{{ kind }}">
{%- if table.head %}
<thead><tr>
{%- for name in table.head %}
<th scope="col"{% if loop.index <= table.words %} class="word"{% endif %}>{{ name }}</th>
{%- endfor %}
</tr></thead>
{%- endif %}
<tbody>
{%- for row in table.rows %}
<tr>
{%- for cell in row %}
{%- set tag = "th" if loop.first else "td" -%}
{%- set kind = ("word" if loop.index <= table.words else "") ~ (" best" if cell.best else "") %}
<{{ tag }}{% if loop.first %} scope="row"{% endif %}{% if kind %} class="{{ kind | trim }}"{% endif %}
{%- if cell.exact %} title="{{ cell.exact }}"{% endif %}>{{ cell.text }}
{%- if cell.note %}<span class="note">{{ cell.note }}</span>{% endif %}</{{ tag }}>
{%- endfor -%}
</tr>
{%- endfor %}
</tbody></table></div>
{%- endmacro %}
{%- macro figure(drawn, caption) %}
{%- if drawn %}<figure>{{ drawn | safe }}<figcaption>{{ caption | coded }}</figcaption></figure>{% endif %}
{%- endmacro %}

<header>
<h1>{{ title }}</h1>
{%- for sentence in leads %}
<p class="lead">{{ sentence }}</p>
{%- endfor %}
{%- for warning in warnings %}
<p class="warn">{{ warning | coded }}</p>
{%- endfor %}
{{ grid(facts, "facts") }}
</header>

<section id="summary">
<h2>Summary</h2>
<p class="small">Test examples, model after the last evaluated round. “Global” is the global test set or, where the
experiment has none, the test examples of all clients together; “local” is the mean over clients of the result on their
own, “trained” the same of each client's model right after its own training.
 “Best val” is the evaluated round with the best mean validation {{ judged }} over clients.
“Pooled” compares examples of different clients, too; “within” only those of the same one. Point at a number for all
its digits.
{%- if seeds %} Mean ± sample standard deviation over seeds.{% endif %}
{%- if unequal %} The runs compared do not have the same seeds, which also decide the split.{% endif %}
{%- if marked %} ★ marks a value that a paired test over the seeds calls better than every other (95 %); there is none
where runs have one seed.{% elif several %} No best value is marked: the runs differ in data or number of
clients, or one is unfinished.{% endif %}</p>
<div class="side">{{ grid(summary, "narrow") }}{{ grid(costs, "narrow") }}</div>
</section>

{%- if paired.rows %}
<section id="differences">
<h2>Differences between runs</h2>
<p class="small">{{ paired_note }}</p>
{{ grid(paired) }}
</section>
{%- endif %}

<section id="curves">
<h2>Learning curves</h2>
{{ figure(curves, "Grey, dotted: always predicting the most frequent class of the training examples." ~
(" Bands: mean ± one sample standard deviation over seeds." if seeds else "")) }}
{%- if not curves %}<p>No accuracy or loss was measured.</p>{% endif %}
</section>

{%- if confusions %}
<section id="confusion">
<h2>What was taken for what</h2>
{%- for one in confusions %}
{%- if one.title %}<h3>{{ one.title }}</h3>{% endif %}
{{ figure(one.figure, "Test examples by true class, down, and predicted class, across (predictions.parquet). Colours \
are shares of a row.") }}
{%- endfor %}
</section>
{%- endif %}

<section id="clients">
<h2>Clients</h2>
{{ figure(accuracy, accuracy_caption) }}
{%- if not accuracy %}<p>No client has a test {{ judged }}.</p>{% endif %}
{%- if extremes.rows %}{{ grid(extremes) }}{% endif %}
</section>

<section id="gain">
<h2>What joining brings each member</h2>
{%- if gains.rows %}
{{ figure(gain, "Test " ~ judged ~ " of each member in the run less what it has by training alone (`local`, \
`standalone`) with the same seed and split. Members stand by their mean gain over the runs of a split. Of more than \
four splits the first four are drawn.") }}
{{ grid(gains) }}
{%- else %}
<p>Give a run of <code>{{ missing }}</code> with the same seed and split as well, to see what joining brings each member
{{- " (of parties that all have labels)" if missing == "standalone" else "" }}.</p>
{%- endif %}
</section>

{%- if fairness.rows %}
<section id="fairness">
<h2>Fairness between clients</h2>
<p class="small">How evenly the final model serves the clients on their test examples. Training losses, by which FairGFL
defines fairness, are alike wherever models memorise, and are not marked.</p>
{{ grid(fairness, "narrow") }}
{%- if alone.rows %}
<p class="small">Whether clients that do well alone do well together: Pearson's correlation of test {{ judged }} on the
same split, with Fisher's interval.</p>
{{ grid(alone, "narrow") }}
{%- endif %}
</section>
{%- endif %}

{%- if between.rows %}
<section id="groups">
<h2>Fairness between groups of people</h2>
<p class="small">Test examples, model after the last evaluated round;
a prediction of {{ favourable }} counts as favourable. {{ people }} The noise floor is the gap that
a classifier which ignores the group would show on average with as many people in the groups
and as many favourable predictions: a gap near it, or below it, says nothing about the model. A gap is undefined where a
group is empty; such clients are left out of the median and counted. “Fairest round” is the one with the lowest SP + EO
on the validation examples of all clients whose {{ judged }} there exceeds that of the better constant prediction by \
more than fair_margin and that does not predict one class for nearly everybody, else the one with the best such \
{{ judged }}.</p>
{%- for warning in fairest %}
<p class="warn">{{ warning | coded }}</p>
{%- endfor %}
{{ grid(between) }}
</section>
{%- endif %}

{%- if incentives %}
<section id="incentives">
<h2>Contributions and what was given for them</h2>
<p class="small">Alignment is the cosine of a client's update with the joint one, diversity its share of all known
motifs, density the share of the joint update's entries that it got.
<code>fedweave statement</code> writes the accounts.</p>
{%- for one in incentives %}
{%- if one.whose %}<h3>{{ one.whose }}</h3>{% endif %}
{{ figure(one.figure, "By round, a line per client.") }}
{{ grid(one.table, "narrow") }}
{%- if one.qualities.rows %}{{ grid(one.qualities, "narrow") }}{% endif %}
{%- if one.motifs %}
<details open><summary>Motifs that each client keeps: the most frequent</summary>
<p class="small">Rings, and bonds that are in no ring, of those that TF-IDF keeps: what nearly every graph has tells
little, and is left out. Vertices have the names of their kinds or, where these are long or missing, their places in the
list of kinds; above a bond is the edge's kind; below, how many of the client's training graphs have the motif.
{%- if one.kinds %} Here, {{ one.kinds }}.{% endif %}</p>
<table class="dense"><tbody>
{%- for client, known in one.motifs.items() %}
<tr><th scope="row" class="word">{{ client }}</th><td class="word motifs">
{%- for motif in known %}
<span title="{{ motif.name }}">{{ motif.svg | safe }}<span class="note">{{ motif.graphs }}</span></span>
{%- endfor %}</td></tr>
{%- endfor %}
</tbody></table></details>
{%- endif %}
{%- endfor %}
</section>
{%- endif %}

<section id="split">
<h2>How the data is split</h2>
{%- if splits.rows %}
<p class="small">An edge is cut at a client that holds one of its ends only; it counts once at each such client. The
share is of the ends of edges.</p>
{{ grid(splits) }}
{%- for part in parts %}
{{ figure(part.figure, part.caption) }}
{%- if part.clients.rows %}
<details><summary>Every client</summary>{{ grid(part.clients, "dense") }}</details>
{%- endif %}
{%- endfor %}
{%- else %}<p>The runs have no partition.parquet, so the split is not known.</p>{% endif %}
</section>

{%- if pairs %}
<section id="pairs">
<h2>What clients share</h2>
<p class="small">For every two clients, the share of the first one's nodes, and links, that the other has too. The truth
is known in simulations alone; estimated is what the server made of what it received, after the last saved round.</p>
{%- for one in pairs %}
{%- if one.title %}<h3>{{ one.title }}</h3>{% endif %}
{{ figure(one.figure, "") }}
{%- if one.table.rows %}
<details><summary>Every client's sum over the others, over the sum of all</summary>
{{ grid(one.table, "dense") }}</details>
{%- endif %}
{%- endfor %}
</section>
{%- endif %}

<section id="ledger">
<h2>What left whom</h2>
{{ figure(traffic, "In all up to each round." ~ (" Of each group's first run." if seeds else "")) }}
{%- for one in disclosures %}
{%- if disclosures | length > 1 %}<h3>{{ one.whose }}</h3>{% endif %}
<ul>
{%- for sentence in one.sentences %}
<li>{{ sentence | coded }}</li>
{%- endfor %}
</ul>
{%- if one.spent.rows %}
<h3>What it cost each member</h3>
<p class="small">ε of differential privacy, of all together that the member sent with noise: it is at most e^ε times as
likely with a record as without it. What left without noise is in no ε; it is named above. An ε above 10 protects
little, above 100 practically nothing.</p>
{{ grid(one.spent, "narrow") }}
{%- endif %}
<details{% if disclosures | length == 1 %} open{% endif %}><summary>The ledger, added up</summary>
<p class="small">Members: {{ one.members | listed }}. Times are of the first and the last message of a kind.</p>
{{ grid(one.table, "dense") }}</details>
{%- endfor %}
<p class="small">The ledger records the name, shape and size of everything that crossed a boundary, and what the
algorithm declares that the receiver learns from it. It does not look into the contents. Kilo is 1,000.</p>
</section>

<section id="repeat">
<h2>How to repeat this</h2>
{%- for run in repeats %}
<details{% if repeats | length == 1 %} open{% endif %}><summary>{{ run.name }}</summary>
<pre>{{ run.command }}</pre>
<p class="small">{{ run.directory }}/config.toml, with every default written out:</p>
<pre>{{ run.config }}</pre>
</details>
{%- endfor %}
</section>

<footer class="small">Written by fedweave {{ version }}. This page loads nothing from elsewhere
and runs no script.</footer>
</body>
</html>
"""
)
