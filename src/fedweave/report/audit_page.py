"""What has left a site, for its owner, as a page to print."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined

from fedweave.core.text import printable
from fedweave.report.flows import Flow, stamp, who
from fedweave.report.ledger import DELTA, called, protected, told
from fedweave.report.template import HEAD, STYLE

_PAGE = (
    HEAD
    + """<title>{{ title }}</title>
<style>{{ style | safe }}
td.word { min-width: 8rem; }
</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
{%- for line in lead %}
<p class="lead">{{ line }}</p>
{%- endfor %}
</header>
{%- for run in runs %}
<section>
<h2>{{ run.heading }}</h2>
{%- for line in run.lines %}
<p class="small">{{ line }}</p>
{%- endfor %}
{%- for line in run.warnings %}
<p class="warn">{{ line }}</p>
{%- endfor %}
{%- if run.rows %}
<div class="scroll"><table class="dense">
<thead><tr>
{%- for name in columns %}<th scope="col"{% if name not in counts %} class="word"{% endif %}>{{ name }}</th>{% endfor %}
</tr></thead>
<tbody>
{%- for row in run.rows %}
<tr>{% for name, cell in row.items() %}<td{% if name not in counts %} class="word"{% endif %}>{{ cell }}</td>
{%- endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- else %}<p>Nothing has left.</p>{% endif %}
</section>
{%- endfor %}
<footer class="small">Written by fedweave {{ version }} from the site's own journals, which hold what left it, not what
reached it. This page loads nothing from elsewhere.</footer>
</body>
</html>
"""
)
_COUNTS = ("messages", "bytes")


class Section(NamedTuple):
    """One run: a heading, what was asked, what was refused or is damaged, and what left."""

    heading: str
    lines: Sequence[str]
    warnings: Sequence[str]
    flows: Sequence[Flow]


def page(title: str, lead: Sequence[str], sections: Sequence[Section], delta: float = DELTA) -> str:
    """The page; `lead` says what all runs come to, and ε of Gaussian noise is stated at `delta`."""
    rows = [[_row(one, delta) for one in section.flows] for section in sections]
    runs = [
        {"heading": one.heading, "lines": one.lines, "warnings": one.warnings, "rows": own}
        for one, own in zip(sections, rows, strict=True)
    ]
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    columns = next((list(row) for own in rows for row in own), [])
    return environment.from_string(_PAGE).render(
        title=title, lead=lead, runs=runs, columns=columns, counts=_COUNTS, style=STYLE, version=version("fedweave")
    )


def _row(one: Flow, delta: float) -> dict[str, str]:
    words = {
        "what for": one.purpose or "not said",
        "to": who(one.receivers, 0),
        "call and key": called(one),
        "what the receiver learns": told(one),
        "mechanism": protected(one, delta),
        "messages": f"{one.messages:,}",
        "bytes": f"{one.bytes:,}",
        "first, last (UTC)": f"{stamp(one.first)}, {stamp(one.last, one.first)}".strip(", "),
    }
    return {name: printable(word) for name, word in words.items()}
