"""The template of the gradebook: what stands where. `gradebook.py` fills it."""

__all__ = ["PAGE"]

PAGE = """{% extends "base" %}
{% macro chart(drawn) %}
<svg viewBox="0 0 240 106" role="img" aria-label="{{ drawn.said }}">
<line class="axis" x1="0" x2="240" y1="78.5" y2="78.5"/>
{% for mark in drawn.marks %}
<rect class="bar {{ mark.bar.tone }}" x="{{ mark.x }}" y="{{ mark.y }}" width="{{ mark.width }}"\
 height="{{ mark.height }}"/>
<text x="{{ mark.middle }}" y="{{ mark.y - 3 }}" text-anchor="middle">{{ mark.bar.count or "" }}</text>
{% for line in mark.lines %}
<text x="{{ mark.middle }}" y="{{ 90 + 12 * loop.index0 }}" text-anchor="middle">{{ line }}</text>
{% endfor %}
{% endfor %}
</svg>
{% endmacro %}
{% macro who(line) %}<th scope="row"><a href="{{ line.page }}">{{ line.learner }}</a>\
{% if line.id %} <span class="id">{{ line.id }}</span>{% endif %}</th>{% endmacro %}
{% block main %}
<h1>Gradebook</h1>
<p class="muted">{{ course }}. For the one who teaches: it names everybody. A page in <code>feedback/</code> is for its\
 learner alone.{% if tiers %} Learner code ran behind: {{ tiers | join(", ") }}.{% endif %}</p>
<ul class="facts">
{% for number, words in facts %}<li><b>{{ number }}</b> {{ words }}</li>
{% endfor %}
</ul>
{% if parts | length > 1 %}
<nav aria-label="On this page">{% if watch or loose %}<a href="#look">To look at</a>{% endif %}\
{% if overview %}<a href="#all">All chapters</a>{% endif %}\
{% for part in parts %}<a href="#part-{{ loop.index }}">{{ part.sheet.title }}</a>{% endfor %}</nav>
{% endif %}
{% if watch or loose %}
<h2 id="look">To look at</h2>
<p class="muted">What could not be graded as it was, and what was noticed. A note is no accusation: look before you\
 decide.</p>
{% if loose %}
<ul>{% for line in loose %}<li>{{ line }}</li>{% endfor %}</ul>
{% endif %}
{% endif %}
{% if watch %}
<div class="scroll" tabindex="0" role="region" aria-label="To look at"><table class="sortable">
<thead><tr><th scope="col">Learner</th><th scope="col">Chapter</th><th scope="col">Status</th><th scope="col">Why</th>\
</tr></thead>
<tbody>
{% for line in watch %}
<tr>{{ who(line) }}<td>{{ line.chapter or "–" }}</td><td><span class="mark {{ line.status }}">\
{{ line.status | status }}</span></td>\
<td class="why">{% for why in line.why %}{{ why }}{% if not loop.last %}<br>{% endif %}{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% if absent %}
<details><summary>Who has no hand-in</summary>
{% for title, who in absent %}
<p><b>{{ title }}</b> ({{ who | length }}): {{ who | join("; ") }}</p>
{% endfor %}
</details>
{% endif %}
{% if overview %}
<h2 id="all">All chapters</h2>
<div class="scroll" tabindex="0" role="region" aria-label="All chapters"><table class="sortable wide overview">
<caption>Points. A dash: no hand-in. Choose a head to sort by it.</caption>
<thead><tr><th scope="col">Learner</th>{% for sheet in overview.sheets %}<th scope="col" class="num">\
{{ sheet.name[:2] }} of {{ sheet.max_score | number }}</th>{% endfor %}<th scope="col" class="num">Total of\
 {{ overview.total | number }}</th></tr></thead>
<tbody>
{% for line in overview.lines %}
<tr>{{ who(line) }}{% for score in line.scores %}<td class="num" data-value="{{ -1 if score is none else score }}">\
{% if score is none %}–{% else %}{{ score | number }}{% endif %}</td>{% endfor %}<td class="num"\
 data-value="{{ line.total }}">{{ line.total | number }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% for part in parts %}
<h2 id="part-{{ loop.index }}">{{ part.sheet.title }}</h2>
<div class="scroll" tabindex="0" role="region" aria-label="{{ part.sheet.title }}"><table class="sortable wide">
<caption>Points by exercise. Choose a head to sort by it.</caption>
<thead><tr><th scope="col">Learner</th><th scope="col">Status</th>\
{% for column in part.sheet.columns %}<th scope="col" class="num">{{ column.position }} {{ column.id }}\
 ({{ column.max_score | number }})</th>{% endfor %}\
<th scope="col" class="num">Total{% if part.sheet.columns %} of {{ part.sheet.max_score | number }}{% endif %}</th>\
</tr></thead>
<tbody>
{% for line in part.lines %}
<tr>{{ who(line) }}<td><span class="mark {{ line.one.status }}">{{ line.one.status | status }}</span></td>\
{% for cell in line.cells %}{% if cell.item %}<td class="num score" data-value="{{ cell.item.score }}">\
{{ cell.item.score | number }} <span class="mark {{ cell.kind }}" title="{{ cell.word }}">\
<span aria-hidden="true">{{ cell.tick }}</span><span class="hidden">{{ cell.word }}</span></span></td>\
{% else %}<td class="num" data-value="-1">–</td>{% endif %}\
{% endfor %}\
<td class="num" data-value="{{ line.one.score if line.here else -1 }}"><b>\
{% if line.here %}{{ line.one.score | number }}{% else %}–{% endif %}</b></td></tr>
{% endfor %}
</tbody></table></div>
{% if part.charts %}
<h3>How it went</h3>
<ul class="charts">
<li><h4>Hand-ins by share of the points</h4>{{ chart(part.scores) }}</li>
{% for one in part.charts %}
<li><h4>{{ one.column.position }} {{ one.column.title }}</h4>{{ chart(one.bars) }}</li>
{% endfor %}
</ul>
{% endif %}
{% if part.common %}
<h3>The commonest misconceptions</h3>
<div class="scroll" tabindex="0" role="region" aria-label="Misconceptions"><table class="sortable list">
<thead><tr><th scope="col" class="num">Learners</th><th scope="col">Misconception</th><th scope="col">What it\
 believes</th><th scope="col">Exercise</th></tr></thead>
<tbody>
{% for one in part.common %}
<tr><td class="num">{{ one.learners }}</td><td><code>{{ one.name }}</code></td><td class="why">{{ one.belief or "–" }}\
</td><td>{{ one.item }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% endfor %}
{% endblock %}
"""
