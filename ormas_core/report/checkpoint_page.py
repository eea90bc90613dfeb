"""The check of a checkpoint as one page of HTML that needs nothing else."""

from typing import Any, Final

from ormas_core.checkpoint_check import CheckResult
from ormas_core.report.checkpoint_text import amount, summary_line
from ormas_core.version import VERSION

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Check of {{ result.path | plain }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .5rem; border-bottom: 1px solid #ccc; }
td { overflow-wrap: anywhere; }
.severity { font-weight: 600; white-space: nowrap; }
.critical { color: #a30000; } .warning { color: #8a4b00; } .info { color: #24527a; }
.advice { color: #444; }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #161616; } th, td { border-color: #444; }
  .critical { color: #ff8a80; } .warning { color: #ffb74d; } .info { color: #90caf9; }
  .advice { color: #bbb; }
}
</style>
</head>
<body>
<h1>Check of {{ result.path | plain }}</h1>
<p class="{{ 'critical' if code else 'info' }}">Exit code {{ code }}: {{ why | plain }}.</p>
<p>{{ summary | plain }}</p>
<table>
<caption hidden>What was checked</caption>
{% for name, value in facts %}<tr><th scope="row">{{ name }}</th><td>{{ value | plain }}</td></tr>
{% endfor %}</table>
<h2>Findings</h2>
{% if result.findings %}<table>
<thead><tr><th scope="col">Severity</th><th scope="col">Code</th><th scope="col">Where</th>
<th scope="col">What, and what to do</th></tr></thead>
<tbody>
{% for one in result.findings %}<tr><td class="severity {{ one.severity }}">{{ one.severity }}</td>
<td>{{ one.code }}</td><td>{{ one.where | plain }}{% if one.file %}<br>{{ one.file | plain }}\
{% endif %}</td>
<td>{{ one.detail | plain }}<br>
<span class="advice">{{ one.advice }}</span></td></tr>
{% endfor %}</tbody>
</table>{% else %}<p>None.</p>{% endif %}
<p class="advice">ORMAS {{ version }}</p>
</body>
</html>
"""


def checkpoint_html(result: CheckResult, code: int, why: str) -> str:
    """Return a check as a page without scripts that loads nothing; all text is escaped.

    Args:
        result: the check.
        code: exit code of the command.
        why: the sentence that goes with it.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["plain"] = _plain
    facts = [
        ("Kind", result.kind),
        ("Files", ", ".join(result.files)),
        ("Size", amount(result.size)),
        ("Compared with", result.base),
        ("Architecture", result.wiring),
        ("Signed record", result.record),
    ]
    page: Any = environment.from_string(_PAGE)
    return str(
        page.render(
            result=result,
            code=code,
            why=why,
            summary=summary_line(result),
            facts=[(name, value) for name, value in facts if value],
            version=VERSION,
        )
    )


def _plain(text: str) -> str:
    """Return text with control characters, also those that change its direction, escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
