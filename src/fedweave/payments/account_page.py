"""A statement of account as a page to print."""

from decimal import Decimal
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedweave.core.text import counted
from fedweave.incentives.statement import MEASURES, totals
from fedweave.payments.accounts import Account
from fedweave.report.template import HEAD, STYLE

NAMES = {
    "alignment": "alignment φ",
    "diversity": "diversity d",
    "value": "value r",
    "leave_one_out": "leave-one-out",
    "density": "reward",
}

MEANT = {
    "alignment": "Alignment is the cosine of a member's update with the joint one.",
    "diversity": "Diversity is a member's share of all known motifs.",
    "value": "Pay is in proportion to value and, where it is positive, to late contribution: value above the member's "
    "own mean in the rounds before.",
    "leave_one_out": "Leave-one-out is what the member's update adds to a round's joint model: the gain in {gains}.",
    "density": "Reward is the share of the joint update's entries that a member got.",
}

_PAGE = (
    HEAD
    + """<title>{{ title }}</title>
<style>{{ style | safe }}
.sum td, .sum th { font-weight: 700; border-top: 1.5px solid var(--ink); }
.fine { color: var(--alarm); }
#rounds td.word:last-child { min-width: 14rem; }
</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
<p class="lead">{{ lead }}</p>
{%- for note in notes %}
<p class="warn">{{ note }}</p>
{%- endfor %}
</header>
<section id="totals">
<h2>Totals</h2>
<p class="small">Measures are means over rounds here.
{%- for name in measures %} {{ meant[name] }}{% endfor %}</p>
<div class="scroll"><table>
<thead><tr><th scope="col" class="word">member</th><th scope="col">rounds</th>
{%- for name in measures %}<th scope="col">{{ names[name] }}</th>{% endfor %}
<th scope="col">paid</th><th scope="col">fined</th><th scope="col">total, {{ currency }}</th></tr></thead>
<tbody>
{%- for row in totals %}
<tr><th scope="row" class="word">{{ row.member }}</th><td>{{ row.rounds }}</td>
{%- for name in measures %}<td>{{ number(row[name]) }}</td>{% endfor %}
<td>{{ money(row.paid) }}</td><td>{{ money(row.fined) }}</td>
<td{% if row.pay < 0 %} class="fine"{% endif %}>{{ money(row.pay) }}</td></tr>
{%- endfor %}
{%- if totals | length > 1 %}
<tr class="sum"><th scope="row" class="word">all members</th><td>{{ rounds }}</td>
{%- for name in measures %}<td></td>{% endfor %}
<td>{{ money(sum.paid) }}</td><td>{{ money(sum.fined) }}</td><td>{{ money(sum.pay) }}</td></tr>
{%- endif %}
</tbody></table></div>
</section>
<section id="rounds">
<h2>Round by round</h2>
<div class="scroll"><table class="dense">
<thead><tr><th scope="col">round</th><th scope="col" class="word">member</th>
{%- for name in measures %}<th scope="col">{{ names[name] }}</th>{% endfor %}
<th scope="col">pay, {{ currency }}</th><th scope="col" class="word">why</th></tr></thead>
<tbody>
{%- for row in lines %}
<tr><td>{{ row.round }}</td><td class="word">{{ row.member }}</td>
{%- for name in measures %}<td>{{ number(row[name]) }}</td>{% endfor %}
<td{% if row.pay < 0 %} class="fine"{% endif %}>{{ money(row.pay) }}</td><td class="word">{{ row.reason }}</td></tr>
{%- endfor %}
</tbody></table></div>
</section>
<section id="seal">
<h2>How to check this</h2>
<p class="small">The hashes stand for the run (its configuration and every member's ledger) and for all lines of the
whole statement. A member checks its lines, with its own ledger, by</p>
<pre>{{ command }}</pre>
<pre>run       {{ run }}
statement {{ digest }}</pre>
</section>
<footer class="small">Written by fedweave {{ version }}. This page loads nothing from elsewhere.</footer>
</body>
</html>
"""
)


def page(whole: Account, table: Any, about: str, command: str) -> str:
    """The page of the lines `table`, all of a statement or one member's; about: what the run is called."""
    rows, found = table.to_pylist(), totals(table).to_pylist()
    rounds = len({row["round"] for row in rows})
    measures = [name for name in MEASURES if any(row[name] is not None for row in rows)]
    summed = {name: sum((row[name] for row in found), Decimal()) for name in ("pay", "paid", "fined")}
    one = f" of {found[0]['member']}" if len(found) == 1 else ""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(_PAGE).render(
        title=f"Statement of account{one}: {about}",
        lead=_lead(whole, len(found), rounds, summed["pay"]),
        notes=[f"In rounds {', '.join(map(str, whole.empty))} there was nothing to divide."] if whole.empty else [],
        style=STYLE,
        names=NAMES,
        meant=MEANT | {"leave_one_out": MEANT["leave_one_out"].format(gains=whole.gains)},
        measures=measures,
        totals=found,
        rounds=rounds,
        sum=summed,
        lines=rows,
        currency=whole.terms.currency,
        number=lambda value: "-" if value is None else f"{value:.4f}",
        money=money,
        command=command,
        run=whole.run,
        digest=whole.digest.digest,
        version=version("fedweave"),
    )


def _lead(whole: Account, members: int, rounds: int, pay: Decimal) -> str:
    budget, currency = money(Decimal(whole.terms.cents).scaleb(-2)), whole.terms.currency
    during = counted(rounds, "round")
    if members == 1:
        return f"{money(pay)} {currency} over {during}, of {budget} {currency} that all members share in a round."
    return f"{budget} {currency} a round over {during}: {money(pay)} {currency} among {members} members."


def money(amount: Decimal) -> str:
    """An amount with its cents, such as 1,234.50, with a proper minus sign."""
    return f"{amount:,.2f}".replace("-", "\N{MINUS SIGN}")
