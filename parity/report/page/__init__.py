"""One HTML page of results, ``refsim report html``: it opens from a file, loads nothing and runs no program elsewhere.

rows      records of commands as rows of the page's tables; every number keeps its label
trends    a history of results as lines over commits
ring      a small ring attention, run now: its trace as bars in lanes, with hazards
write     all of it as JSON in the template
page.html, page.css, table.js, charts.js, page.js   the template and what it shows the JSON with
"""
